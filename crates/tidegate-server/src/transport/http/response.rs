//! Builds responses.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};

use super::json::DecisionBody;
use super::problem::{limit_headers, standing_headers};
use crate::check::CheckDecision;

pub(crate) fn json(
    status: StatusCode,
    mut headers: HeaderMap,
    body: &impl serde::Serialize,
) -> Response {
    let mut bytes = Vec::with_capacity(512);
    if serde_json::to_writer(&mut bytes, body).is_err() {
        // Every body can be serialised; a failure is a bug.
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut response = Response::new(bytes.into());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// A JSON body with status 200.
pub(crate) fn ok(body: &impl serde::Serialize) -> Response {
    json(StatusCode::OK, HeaderMap::new(), body)
}

/// A body of another content type, with status 200.
pub(crate) fn text(content_type: &'static str, body: impl IntoResponse) -> Response {
    ([(CONTENT_TYPE, content_type)], body).into_response()
}

/// A decision: status 200 or 429, with the headers of both.
pub(crate) fn decided(decision: &CheckDecision) -> Response {
    let status = match decision.decision.allowed() {
        true => StatusCode::OK,
        false => StatusCode::TOO_MANY_REQUESTS,
    };
    json(status, limit_headers(decision), &DecisionBody::new(decision))
}

/// The state of limits after a call that is never denied: status 200, without `Retry-After`.
pub(crate) fn standing(decision: &CheckDecision, body: &impl serde::Serialize) -> Response {
    json(StatusCode::OK, standing_headers(decision), body)
}
