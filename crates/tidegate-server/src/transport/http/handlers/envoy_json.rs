//! `POST /json` and `GET /healthcheck`, as envoyproxy/ratelimit serves them. The OpenAPI document
//! does not contain them.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};

use crate::observe::metrics::ListenerKind;
use crate::transport::auth::AccessLevel;
use crate::transport::envoy::error::EnvoyError;
use crate::transport::envoy::json::{self, RateLimitRequestBody};
use crate::transport::envoy::proto::Code;
use crate::transport::http::problem::HttpProblem;
use crate::transport::http::read_body::{ExpectedContent, parse_json, read_bytes};
use crate::transport::http::response;
use crate::transport::http::state::AppState;

/// `POST /json`. Any content type is accepted: `curl --data` sends that of a form.
pub(crate) async fn should_rate_limit(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    app.admit(AccessLevel::Check, request.headers())?;
    let body: RateLimitRequestBody = parse_json(&read_bytes(request, ExpectedContent::Any).await?)?;
    let result = app.envoy.decide(&body.into()).await;
    app.envoy.count_request(ListenerKind::Http, &result);
    let decided = result.map_err(|error| match error {
        EnvoyError::Invalid(detail) => HttpProblem::new(StatusCode::BAD_REQUEST, detail),
        EnvoyError::Unavailable(detail) => {
            HttpProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    })?;
    let status = match decided.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok | Code::Unknown => StatusCode::OK,
    };
    Ok(response::json(status, HeaderMap::new(), &json::response(&decided)))
}

/// `GET /healthcheck`: 200 if the server is ready and does not drain.
pub(crate) async fn health(State(app): State<AppState>) -> Response {
    if app.is_ready(&app.service.health()) && !app.drain.has_begun() {
        "OK".into_response()
    } else {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
