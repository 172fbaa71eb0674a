//! What every answer of the console goes through.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, StatusCode};

use super::trouble::Trouble;
use crate::http::Door;

/// What a browser is told about every answer. Nothing comes from elsewhere and nothing runs that is not in our own
/// files; no other page has it in a frame; and only forms of our own know where they came from. Without the last, the
/// browser would hide from us that they did.
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

/// Answers those who mean us, and tells their browsers what to beware of.
pub(super) async fn guard(State(door): State<Door>, request: Request, next: Next) -> Response {
    let mut response = if door.console.hosts.include(&request) {
        next.run(request).await
    } else {
        let detail = "the console does not go by this name; use the server's address, or start it with \
                      --console-host and the name that you use";
        Trouble::new(StatusCode::MISDIRECTED_REQUEST, detail).into_response()
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
