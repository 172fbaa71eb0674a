//! Refuses requests before they reach a handler: without a host, or of a web page of another site.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::HOST;
use http::{StatusCode, Version};

use super::problem::HttpProblem;
use super::state::AppState;
use crate::transport::cross_site::is_cross_site;

/// Whether a request has the host that its version requires: HTTP/1.1 exactly one `Host`, by RFC
/// 9112. A proxy in front could go by another one.
pub(super) fn has_host<B>(request: &http::Request<B>) -> bool {
    request.version() != Version::HTTP_11 || request.headers().get_all(HOST).iter().count() == 1
}

/// The response to a request that has not.
pub(super) async fn missing_host() -> HttpProblem {
    HttpProblem::new(StatusCode::BAD_REQUEST, "send exactly one Host header")
}

/// Without a check token, refuses API calls that a browser sends for a page of another site: such a
/// page could charge keys, and read the responses by DNS rebinding.
///
/// Host names are checked on loopback only: callers on other machines use names that the server
/// does not know.
pub(super) fn refuse_other_sites(app: &AppState, request: &Request) -> Result<(), HttpProblem> {
    if app.tokens.guards_checks() {
        return Ok(());
    }
    if is_cross_site(request.uri(), request.headers()) {
        let detail = "cross-site request refused; set TIDEGATE_TOKEN and send the token";
        return Err(HttpProblem::new(StatusCode::FORBIDDEN, detail));
    }
    if app.hosts.is_loopback() && app.hosts.exclude(request) {
        let detail = "unknown host name; use the server's address, start it with --console-host \
                      NAME, or set TIDEGATE_TOKEN";
        return Err(HttpProblem::new(StatusCode::MISDIRECTED_REQUEST, detail));
    }
    Ok(())
}

/// The same as middleware.
pub(super) async fn from_own_site(
    State(app): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, HttpProblem> {
    refuse_other_sites(&app, &request)?;
    Ok(next.run(request).await)
}
