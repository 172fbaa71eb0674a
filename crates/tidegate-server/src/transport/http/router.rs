//! Router of the HTTP listener, with timing and tracing of calls.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post, put};
use http::{Method, StatusCode};

use super::guard::{refuse_other_sites, require_host};
use super::handlers::{
    check, envoy_json, forward_auth, keys, live, overrides, reservation, rules, simulate, status,
};
use super::openapi;
use super::problem::HttpProblem;
use super::state::AppState;
use crate::observe::metrics::ListenerKind;
use crate::observe::otlp::{RequestSpan, Tracer};
use crate::transport::auth::AccessLevel;
use crate::transport::caller_deadline::{http_timeout, within_deadline};
use crate::transport::envoy::grpc::GrpcServices;
use crate::transport::listener::http_connection::PanicResponse;

/// The HTTP API, the gRPC services and `pages`, the console's.
pub fn router(app: AppState, grpc: &GrpcServices, pages: Router) -> Router {
    // The durations of these calls are observed.
    let calls = Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/record", post(check::record))
        .route("/v1/refund", post(check::refund))
        .route("/v1/reserve", post(reservation::reserve))
        .route("/v1/commit", post(reservation::commit))
        .route("/v1/cancel", post(reservation::cancel))
        .route("/v1/renew", post(reservation::renew))
        .route("/v1/extend", post(reservation::extend))
        .route("/json", post(envoy_json::should_rate_limit))
        .route_layer(from_fn_with_state(app.clone(), measure));
    let one_rule = get(rules::show).put(rules::put).delete(rules::delete);
    let changes = put(overrides::put).delete(overrides::delete);
    let api = calls
        .route("/v1/keys/{rule}/{key}", get(keys::inspect).delete(keys::reset))
        .route("/v1/keys", get(keys::inspect).delete(keys::reset))
        .route("/v1/explain", get(keys::explain))
        .route("/v1/rules", get(rules::list))
        .route("/v1/rules/{name}", one_rule)
        .route("/v1/overrides/{rule}/{key}", changes.clone().get(overrides::show))
        .route("/v1/overrides", changes.get(overrides::list))
        .route("/v1/live", get(live::live))
        .route("/v1/simulate", post(simulate::simulate))
        .route_layer(from_fn_with_state(app.clone(), refuse_other_sites));
    // A proxy may pass on the client's Host, Origin and Sec-Fetch-Site.
    let forward_auth = Router::new()
        .route("/v1/authorize", any(forward_auth::authorize))
        .route_layer(from_fn_with_state(app.clone(), measure));
    let all = api
        .merge(forward_auth)
        .route("/metrics", get(status::metrics))
        .route("/healthz", get(status::health))
        .route("/readyz", get(status::ready))
        .route("/openapi.json", get(openapi::openapi))
        .route("/healthcheck", get(envoy_json::health))
        // Merged before the fallbacks: they apply to the routes that exist when they are set.
        .merge(pages.with_state(()));
    let add = |router: Router<AppState>, path: String| router.route_service(&path, grpc.clone());
    let all = GrpcServices::paths().into_iter().fold(all, add);
    with_fallbacks(all, app)
}

/// The probes alone.
pub(super) fn health_router(app: AppState) -> Router {
    let all =
        Router::new().route("/healthz", get(status::health)).route("/readyz", get(status::ready));
    with_fallbacks(all, app)
}

fn with_fallbacks(all: Router<AppState>, app: AppState) -> Router {
    let all = all.fallback(not_found).method_not_allowed_fallback(method_not_allowed);
    all.layer(from_fn(require_host)).with_state(app)
}

impl PanicResponse<axum::body::Body> for Router {
    fn panic_response() -> Response {
        let detail = "internal error; the request may have been charged: retry with an id";
        HttpProblem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response()
    }
}

/// Observes the duration of a call, and runs it in a span if it is sampled, with the deadline of
/// its caller.
async fn measure(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let clock = app.service.clock();
    let before = clock.elapsed();
    let begin = |tracer: &Arc<Tracer>| {
        // Without access, the caller's traceparent does not decide whether there is a span.
        let headers =
            Some(request.headers()).filter(|it| app.admit(AccessLevel::Check, it).is_ok());
        tracer.begin(ListenerKind::Http, headers)
    };
    let span = app.service.tracer().and_then(begin);
    let timeout = http_timeout(request.headers());
    // Boxed: a request that waits for permits would else hold the larger of both several times.
    let handled: Pin<Box<dyn Future<Output = Response> + Send>> = match span {
        Some(span) => Box::pin(traced(span, request, next)),
        None => Box::pin(next.run(request)),
    };
    let response = within_deadline(timeout, clock, handled).await;
    let took: Duration = clock.elapsed().saturating_sub(before).into();
    app.service.metrics().observe(ListenerKind::Http, took);
    response
}

/// Runs a call in a span.
async fn traced(span: RequestSpan, request: Request, next: Next) -> Response {
    // Paths of calls contain nothing of the caller's; a method may.
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

async fn not_found() -> HttpProblem {
    HttpProblem::new(StatusCode::NOT_FOUND, "not found; see /openapi.json")
}

async fn method_not_allowed() -> HttpProblem {
    HttpProblem::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed; see /openapi.json")
}
