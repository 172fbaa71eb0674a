//! JSON over HTTP, and forward-auth for proxies.
//!
//! # Layout
//!
//! - `routes`: every address, with who answers and what the document says about it. `openapi`:
//!   the document; `operation` and `examples`: its parts.
//! - `calls`: check, record, refund, reserve, commit, cancel, renew. `bodies`: their JSON.
//! - `authorize`: forward-auth. `keys`: inspect, reset, explain. `rules`: the policy in force.
//!   `strict`: their JSON. `simulate`: limits on imagined traffic. `status`: health and metrics. `live`: what was seen lately. `envoy`: what
//!   envoyproxy/ratelimit answers.
//! - [`problem`]: what went wrong. [`connection`]: one client; `patience` and `activity`: how long it may take; `kept`:
//!   until when.

pub(crate) mod activity;
mod authorize;
mod bodies;
mod calls;
pub mod connection;
mod envoy;
mod examples;
pub(crate) mod kept;
mod keys;
mod live;
mod openapi;
mod operation;
mod patience;
pub mod problem;
mod routes;
mod rules;
mod simulate;
mod status;
mod strict;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use tidegate::{Inspection, RuleLimit};

use self::bodies::Object;
use self::connection::Sorry;
use self::problem::Problem;
use self::routes::Route;
use crate::console::{self, Console};
use crate::drain::Drain;
use crate::envoy::grpc::Grpc;
use crate::envoy::service::RateLimits;
use crate::explain::Explained;
use crate::metrics;
use crate::policies::Policies;
use crate::service::{Answer, Service};
use crate::tokens::{Access, Tokens};
use crate::trace::Tracer;
use crate::unfinished::{Counted, NoRoom};

/// The longest body in bytes.
const MAX_BODY: usize = 64 << 10;
/// How long a client may take to send it.
const BODY_DEADLINE: Duration = Duration::from_secs(5);

/// What every handler has at hand.
#[derive(Clone)]
pub struct Door {
    /// Whom to ask.
    pub service: Arc<Service>,
    /// Who may change the rules, and how.
    pub policies: Arc<Policies>,
    /// What opens the door.
    pub tokens: Arc<Tokens>,
    /// Who answers what Envoy asks.
    pub envoy: Arc<RateLimits>,
    /// What the pages need.
    pub console: Arc<Console>,
    /// Whether the server is about to end.
    pub drain: Drain,
}

/// Everything under one address, gRPC too.
pub fn router(door: Door, grpc: &Grpc) -> Router {
    let add = |router: Router<Door>, route: Route| router.route(route.path, route.handlers);
    let calls = routes::calls().into_iter().fold(Router::new(), add);
    let calls = calls.route("/json", post(envoy::should_rate_limit));
    let calls = calls.route_layer(from_fn_with_state(door.clone(), measure));
    let all = routes::others().into_iter().fold(calls, add);
    let all = all.route("/healthcheck", get(envoy::health)).merge(console::router(&door));
    let add = |router: Router<Door>, path: String| router.route_service(&path, grpc.clone());
    let all = Grpc::addresses().into_iter().fold(all, add);
    all.fallback(not_found).method_not_allowed_fallback(not_allowed).with_state(door)
}

impl Sorry<axum::body::Body> for Router {
    fn sorry() -> Response {
        let detail = "the server has made a mistake; it may have been charged, so retry with an id";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response()
    }
}

/// Tells how long an answer took.
async fn measure(State(door): State<Door>, request: Request, next: Next) -> Response {
    let clock = door.service.clock();
    let before = clock.elapsed();
    let response = traced(&door, request, next).await;
    let took: Duration = clock.elapsed().saturating_sub(before).into();
    door.service.metrics().observe(metrics::Door::Http, took);
    response
}

/// Answers in a span, if the call has one.
async fn traced(door: &Door, request: Request, next: Next) -> Response {
    let begin = |tracer: &Arc<Tracer>| {
        // Whoever may not ask decides nothing, not even whether there is a span.
        let headers = Some(request.headers()).filter(|it| door.admit(Access::Check, it).is_ok());
        tracer.begin(metrics::Door::Http, headers)
    };
    let Some(span) = door.service.tracer().and_then(begin) else { return next.run(request).await };
    // The addresses of calls have nothing of the caller's in them, and methods may.
    let route = request.uri().path().to_owned();
    let known = [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::HEAD];
    let method = known.into_iter().find(|method| method == request.method());
    let mut span = match method {
        Some(method) => {
            let span = span.named(format!("{method} {route}"));
            span.with("http.request.method", method.as_str().to_owned())
        }
        None => span.named(format!("HTTP {route}")).with("http.request.method", "_OTHER"),
    }
    .with("http.route", route);
    let response = span.around(next.run(request)).await;
    span.set("http.response.status_code", response.status().as_u16().into());
    if response.status().is_server_error() {
        span.fail();
    }
    response
}

async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no such address; see /openapi.json for all there are")
}

async fn not_allowed() -> Problem {
    let detail = "not with this method; see /openapi.json";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

impl Door {
    /// Lets somebody in who may do this.
    fn admit(&self, needed: Access, headers: &HeaderMap) -> Result<(), Problem> {
        let shown = token(headers).and_then(|token| self.tokens.access_with(token));
        if shown.max(Some(self.tokens.access())) >= Some(needed) {
            return Ok(());
        }
        if needed == Access::Admin && !self.tokens.has_admin() {
            let detail = "this needs an admin token, and the server has none; \
                          set TIDEGATE_ADMIN_TOKEN";
            return Err(Problem::new(StatusCode::FORBIDDEN, detail));
        }
        if shown.is_some() {
            return Err(Problem::new(StatusCode::FORBIDDEN, "this needs the admin token"));
        }
        let detail = "show the token as Authorization: Bearer, or as X-Tidegate-Token";
        Err(Problem::new(StatusCode::UNAUTHORIZED, detail))
    }
}

/// The token that a request shows: in a header of our own, for the sake of proxies that pass on
/// the client's `Authorization`, or as a bearer token.
pub(crate) fn token(headers: &HeaderMap) -> Option<&[u8]> {
    match headers.get("x-tidegate-token") {
        Some(token) => Some(token.as_bytes()),
        None => tidegate_tower::extract::bearer(headers).map(str::as_bytes),
    }
}

/// The body of a request, in JSON.
async fn read_json<T: serde::de::DeserializeOwned>(request: Request) -> Result<T, Problem> {
    parse_json(&read_body(request).await?)
}

fn parse_json<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    match serde_json::from_slice(body) {
        Ok(Object(value)) => Ok(value),
        Err(_) => Err(explain_json::<T>(body)),
    }
}

/// The body of a request that claims to be JSON.
async fn read_body(request: Request) -> Result<Bytes, Problem> {
    is_json_request(request.headers())?;
    read_bytes(request).await
}

/// The body of a request.
pub(crate) async fn read_bytes(request: Request) -> Result<Bytes, Problem> {
    const TOO_LONG: (StatusCode, &str) =
        (StatusCode::PAYLOAD_TOO_LARGE, "the body is too long; send at most 64 KiB");
    let door = request.extensions().get().copied().unwrap_or(metrics::Door::Http);
    let body = request.into_body();
    // What is announced need not come.
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(Problem::new(TOO_LONG.0, TOO_LONG.1));
    }
    let reading = Limited::new(Counted::new(body, door), MAX_BODY).collect();
    let (status, detail) = match tokio::time::timeout(BODY_DEADLINE, reading).await {
        Ok(Ok(body)) => return Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => TOO_LONG,
        Ok(Err(error)) if error.is::<NoRoom>() => {
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, NoRoom.to_string()));
        }
        Ok(Err(_)) => (StatusCode::BAD_REQUEST, "the body cannot be read"),
        Err(_) => (StatusCode::REQUEST_TIMEOUT, "the body was too long in coming"),
    };
    Err(Problem::new(status, detail))
}

/// Reads it once more, to tell which field is wrong.
fn explain_json<T: serde::de::DeserializeOwned>(body: &[u8]) -> Problem {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let Err(error) = serde_path_to_error::deserialize::<_, Object<T>>(&mut deserializer) else {
        return Problem::new(StatusCode::BAD_REQUEST, "there is something behind the JSON value");
    };
    let path = error.path().to_string();
    let detail = error.into_inner().to_string();
    // The path ends in a question mark where no field was read yet.
    let place = path.strip_suffix('?').unwrap_or(&path).trim_end_matches('.');
    // A field that is there twice or not at all is named by the error alone.
    let name = ["duplicate field `", "missing field `"]
        .iter()
        .find_map(|start| detail.strip_prefix(start)?.split('`').next());
    let field = match (place, name) {
        ("", None) => return Problem::new(StatusCode::BAD_REQUEST, detail),
        ("", Some(name)) => name.to_string(),
        (place, None) => place.to_string(),
        (place, Some(name)) => format!("{place}.{name}"),
    };
    Problem::field(field, detail)
}

/// A missing content type counts as JSON.
fn is_json_request(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.get(CONTENT_TYPE).is_none_or(|value| is_json(value.as_bytes())) {
        return Ok(());
    }
    let detail = "send JSON with Content-Type: application/json; with curl, --json instead of -d";
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
}

fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    essence.eq_ignore_ascii_case(b"application/json")
        || (essence.len() > 5 && essence[essence.len() - 5..].eq_ignore_ascii_case(b"+json"))
}

/// A decision as the calls answer it.
pub(crate) fn decision_json(answer: &Answer) -> serde_json::Value {
    serde_json::to_value(bodies::DecisionBody::new(answer)).unwrap_or_default()
}

/// What a key has used as `GET /v1/keys` tells it.
pub(crate) fn inspection_json(found: &[(Arc<RuleLimit>, Inspection)]) -> serde_json::Value {
    serde_json::to_value(keys::InspectionBody::new(found)).unwrap_or_default()
}

/// Sentences as `GET /v1/explain` tells them.
pub(crate) fn explained_json(explained: Explained) -> serde_json::Value {
    serde_json::to_value(keys::ExplainBody::from(explained)).unwrap_or_default()
}

/// What `GET /v1/live` answers, for tests of who reads it.
#[cfg(test)]
pub(crate) fn live_example() -> serde_json::Value {
    examples::seen_lately()
}

pub(crate) use simulate::{ReportBody, Task};

/// A JSON value with status 200.
fn ok(body: &impl serde::Serialize) -> Response {
    calls::json(StatusCode::OK, HeaderMap::new(), body)
}

/// Text with a content type.
fn text(content_type: &'static str, body: impl IntoResponse) -> Response {
    ([(CONTENT_TYPE, content_type)], body).into_response()
}
