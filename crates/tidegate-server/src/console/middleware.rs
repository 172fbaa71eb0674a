//! Host check and security headers of every response of the console.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, StatusCode};

use super::error_page::ErrorPage;
use super::state::ConsoleContext;

/// Only files of the console are loaded and run, and no page can be framed. The referrer is sent to
/// the same origin only: with `no-referrer`, browsers send `Origin: null` with our own forms.
const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
        ),
    ),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (REFERRER_POLICY, HeaderValue::from_static("same-origin")),
];

/// Refuses requests for other host names, and adds the security headers.
pub(super) async fn guard(
    State(context): State<ConsoleContext>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = if context.app.hosts.include(&request) {
        next.run(request).await
    } else {
        let detail =
            "unknown host name; use the server's address, or start it with --console-host NAME";
        ErrorPage::new(StatusCode::MISDIRECTED_REQUEST, detail).into_response()
    };
    add_headers(response.headers_mut());
    response
}

fn add_headers(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(name, value);
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}
