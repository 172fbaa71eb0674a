//! Refuses requests before they reach a handler: without a host, or of a web page of another site.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::HOST;
use http::{StatusCode, Version};

use super::problem::HttpProblem;
use super::state::AppState;
use crate::transport::cross_site::is_cross_site;

/// Refuses HTTP/1.1 requests without exactly one `Host`, as RFC 9112 requires. A proxy in front
/// could go by another one.
pub(super) async fn require_host(request: Request, next: Next) -> Response {
    let hosts = request.headers().get_all(HOST).iter().count();
    if request.version() == Version::HTTP_11 && hosts != 1 {
        let detail = "send exactly one Host header";
        return HttpProblem::new(StatusCode::BAD_REQUEST, detail).into_response();
    }
    next.run(request).await
}

/// Without a check token, refuses API calls that a browser sends for a page of another site: such a
/// page could charge keys, and read the responses by DNS rebinding.
///
/// Host names are checked on loopback only: callers on other machines use names that the server
/// does not know.
pub(super) async fn refuse_other_sites(
    State(app): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    if app.tokens.guards_checks() {
        return next.run(request).await;
    }
    if is_cross_site(request.uri(), request.headers()) {
        let detail = "cross-site request refused; set TIDEGATE_TOKEN and send the token";
        return HttpProblem::new(StatusCode::FORBIDDEN, detail).into_response();
    }
    if app.hosts.is_loopback() && app.hosts.exclude(&request) {
        let detail = "unknown host name; use the server's address, start it with --console-host \
                      NAME, or set TIDEGATE_TOKEN";
        return HttpProblem::new(StatusCode::MISDIRECTED_REQUEST, detail).into_response();
    }
    next.run(request).await
}
