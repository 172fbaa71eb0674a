//! What envoyproxy/ratelimit answers over HTTP, answered in the same way. Not in our document: it is not ours.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};

use super::problem::Problem;
use super::{Door, calls, parse_json, read_bytes};
use crate::envoy::json::{self, RequestBody};
use crate::envoy::proto::Code;
use crate::envoy::service::Fault;
use crate::tokens::Access;

/// `POST /json`. Whatever the content type is: curl's `--data` has another.
pub(super) async fn should_rate_limit(
    State(door): State<Door>,
    request: Request,
) -> Result<Response, Problem> {
    door.admit(Access::Check, request.headers())?;
    let body: RequestBody = parse_json(&read_bytes(request).await?)?;
    let response = door.envoy.decide(&body.into()).await.map_err(|fault| match fault {
        Fault::Invalid(told) => Problem::new(StatusCode::BAD_REQUEST, told),
        Fault::Unavailable(told) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, told),
    })?;
    let status = match response.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok | Code::Unknown => StatusCode::OK,
    };
    Ok(calls::json(status, HeaderMap::new(), &json::response(&response)))
}

/// `GET /healthcheck`: the store answers, and the server is not about to end.
pub(super) async fn health(State(door): State<Door>) -> Response {
    if door.service.health().up && !door.drain.has_begun() {
        "OK".into_response()
    } else {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
