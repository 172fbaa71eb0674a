//! Router of the HTTP listener.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::future::RouteFuture;
use axum::routing::{MethodRouter, any, get, post, put};
use http::StatusCode;
use http::header::ACCEPT;
use hyper::body::Incoming;
use tower::Service;

use super::guard::{from_own_site, has_host, missing_host, refuse_other_sites};
use super::handlers::{
    check, check_many, envoy_json, forward_auth, keys, live, overrides, reservation, rules,
    simulate, status,
};
use super::measure::measure;
use super::openapi;
use super::problem::HttpProblem;
use super::state::AppState;
use crate::transport::envoy::grpc::GrpcServices;
use crate::transport::listener::http_connection::PanicResponse;

/// The HTTP API, the gRPC services and `pages`, the console's.
pub fn router(app: AppState, grpc: &GrpcServices, pages: Router) -> HttpService {
    let one_rule = get(rules::show).put(rules::put).delete(rules::delete);
    let changes = put(overrides::put).delete(overrides::delete);
    let api = Router::new()
        .route("/v1/keys/{rule}/{key}", get(keys::inspect).delete(keys::reset))
        .route("/v1/keys", get(keys::inspect).delete(keys::reset))
        .route("/v1/explain", get(keys::explain))
        .route("/v1/rules", get(rules::list))
        .route("/v1/rules/{name}", one_rule)
        .route("/v1/overrides/{rule}/{key}", changes.clone().get(overrides::show))
        .route("/v1/overrides", changes.get(overrides::list))
        .route("/v1/live", get(live::live))
        .route("/v1/simulate", post(simulate::simulate))
        .route_layer(from_fn_with_state(app.clone(), from_own_site));
    // A proxy may pass on the client's Host, Origin and Sec-Fetch-Site.
    let authorize = any(|State(app): State<AppState>, request: Request| {
        measure(app, request, forward_auth::authorize)
    });
    let all = api
        .route("/v1/check", call(check::check))
        .route("/v1/check-many", call(check_many::check_many))
        .route("/v1/record", call(check::record))
        .route("/v1/refund", call(check::refund))
        .route("/v1/reserve", call(reservation::reserve))
        .route("/v1/commit", call(reservation::commit))
        .route("/v1/cancel", call(reservation::cancel))
        .route("/v1/renew", call(reservation::renew))
        .route("/v1/extend", call(reservation::extend))
        .route("/json", call(envoy_json::should_rate_limit))
        .route("/v1/authorize", authorize)
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

/// A call that checks or settles, which is measured. It calls its handler directly: as middleware,
/// each of these steps would copy the route and allocate a future for every request.
fn call<H, F>(handler: H) -> MethodRouter<AppState>
where
    H: Fn(State<AppState>, Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, HttpProblem>> + Send + 'static,
{
    post(|State(app): State<AppState>, request: Request| async move {
        refuse_other_sites(&app, &request)?;
        Ok::<_, HttpProblem>(measure(app, request, handler).await)
    })
}

/// What envoyproxy/ratelimit serves over HTTP, and the probes.
pub(crate) fn ratelimit_router(app: AppState) -> HttpService {
    let all = Router::new()
        .route("/json", call(envoy_json::should_rate_limit))
        .route("/healthcheck", get(envoy_json::health))
        .route("/healthz", get(status::health))
        .route("/readyz", get(status::ready));
    with_fallbacks(all, app)
}

/// The metrics alone.
pub(super) fn metrics_router(app: AppState) -> HttpService {
    with_fallbacks(Router::new().route("/metrics", get(status::metrics)), app)
}

/// The probes alone.
pub(super) fn health_router(app: AppState) -> HttpService {
    let all =
        Router::new().route("/healthz", get(status::health)).route("/readyz", get(status::ready));
    with_fallbacks(all, app)
}

fn with_fallbacks(all: Router<AppState>, app: AppState) -> HttpService {
    let all = all.fallback(not_found).method_not_allowed_fallback(method_not_allowed);
    HttpService(all.with_state(app))
}

/// A router for requests that have a host.
#[derive(Clone, Debug)]
pub struct HttpService(Router);

impl HttpService {
    /// The routes alone, which take requests with any body.
    pub fn into_routes(self) -> Router {
        self.0
    }
}

impl Service<http::Request<Incoming>> for HttpService {
    type Response = Response;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<http::Request<Incoming>>::poll_ready(&mut self.0, context)
    }

    fn call(&mut self, request: http::Request<Incoming>) -> Self::Future {
        match has_host(&request) {
            true => self.0.call(request),
            false => Router::new().fallback(missing_host).call(request),
        }
    }
}

impl PanicResponse<axum::body::Body> for HttpService {
    fn panic_response() -> Response {
        let detail = "internal error; the request may have been charged: retry with an id";
        HttpProblem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response()
    }
}

async fn not_found(request: Request) -> Response {
    let accepted = request.headers().get(ACCEPT).and_then(|accepted| accepted.to_str().ok());
    if accepted.is_some_and(|accepted| accepted.contains("text/html")) {
        return (StatusCode::NOT_FOUND, Html(NOT_FOUND_PAGE)).into_response();
    }
    HttpProblem::new(StatusCode::NOT_FOUND, "not found; see /openapi.json").into_response()
}

/// What a browser shows for an unknown address. It needs no style sheet, so that it is served by
/// every listener.
const NOT_FOUND_PAGE: &str = "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
    <title>Not found - Tidegate</title>\n<h1>Not found</h1>\n\
    <p>No page has this address. Go to the <a href=\"/\">console</a>, or see the \
    <a href=\"/openapi.json\">description of the API</a>.</p>\n</html>\n";

async fn method_not_allowed() -> HttpProblem {
    HttpProblem::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed; see /openapi.json")
}
