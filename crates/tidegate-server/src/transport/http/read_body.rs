//! Request bodies: size, deadline, content type and JSON errors.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::extract::Request;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use serde::de::DeserializeOwned;

use super::json::StrictObject;
use super::problem::HttpProblem;
use super::state::AppState;
use crate::observe::metrics::ListenerKind;
use crate::transport::auth::AccessLevel;
use crate::transport::listener::http_connection::ConnectionInfo;
use crate::transport::listener::partial_requests::{BudgetedBody, RequestBudgetExhausted};

/// Longest body, in bytes.
const MAX_BODY: usize = 64 << 10;
/// Time for a client to send the body.
const BODY_DEADLINE: Duration = Duration::from_secs(5);

/// The content type that a call accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExpectedContent {
    /// JSON, or none given.
    Json,
    Any,
}

impl AppState {
    /// Checks access, then reads a JSON body.
    pub(crate) async fn read_json<T: DeserializeOwned>(
        &self,
        needed: AccessLevel,
        request: Request,
    ) -> Result<T, HttpProblem> {
        self.admit(needed, request.headers())?;
        parse_json(&read_bytes(request, ExpectedContent::Json).await?)
    }
}

/// Parses a JSON object; an error names the field.
pub(crate) fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, HttpProblem> {
    match serde_json::from_slice(body) {
        Ok(StrictObject(value)) => Ok(value),
        Err(_) => Err(explain_json::<T>(body)),
    }
}

/// The body of a request of this content type.
pub(crate) async fn read_bytes(
    request: Request,
    expected: ExpectedContent,
) -> Result<Bytes, HttpProblem> {
    let content_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    if expected == ExpectedContent::Json && content_type.is_some_and(|given| !is_json(given)) {
        let detail =
            "send JSON with Content-Type: application/json; with curl, --json instead of -d";
        return Err(HttpProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    const TOO_LONG: (StatusCode, &str) = (StatusCode::PAYLOAD_TOO_LARGE, "body larger than 64 KiB");
    let connection = ConnectionInfo::of(request.extensions());
    let listener = connection.map_or(ListenerKind::Http, |connection| connection.listener);
    let body = request.into_body();
    // A body whose announced length is too large is refused before it is read.
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(HttpProblem::new(TOO_LONG.0, TOO_LONG.1));
    }
    let mut reading = pin!(Limited::new(BudgetedBody::new(body, listener), MAX_BODY).collect());
    // Most bodies arrive with their head and need no timer.
    let arrived = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
    let read = match arrived {
        Poll::Ready(read) => Ok(read),
        Poll::Pending => tokio::time::timeout(BODY_DEADLINE, reading).await,
    };
    let (status, detail) = match read {
        Ok(Ok(body)) => return Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => TOO_LONG,
        Ok(Err(error)) if error.is::<RequestBudgetExhausted>() => {
            return Err(HttpProblem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                RequestBudgetExhausted.to_string(),
            ));
        }
        Ok(Err(_)) => (StatusCode::BAD_REQUEST, "failed to read the body"),
        Err(_) => (StatusCode::REQUEST_TIMEOUT, "request body timed out"),
    };
    Err(HttpProblem::new(status, detail))
}

/// Parses an invalid body once more, slowly, to name the invalid field.
fn explain_json<T: DeserializeOwned>(body: &[u8]) -> HttpProblem {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let Err(error) = serde_path_to_error::deserialize::<_, StrictObject<T>>(&mut deserializer)
    else {
        return HttpProblem::new(StatusCode::BAD_REQUEST, "trailing data after the JSON value");
    };
    let path = error.path().to_string();
    let detail = error.into_inner().to_string();
    // The path ends in a question mark where no field was read yet.
    let place = path.strip_suffix('?').unwrap_or(&path).trim_end_matches('.');
    // Only the message names a field that is duplicate or missing.
    let name = ["duplicate field `", "missing field `"]
        .iter()
        .find_map(|start| detail.strip_prefix(start)?.split('`').next());
    let field = match (place, name) {
        ("", None) => return HttpProblem::new(StatusCode::BAD_REQUEST, detail),
        ("", Some(name)) => name.to_string(),
        (place, None) => place.to_string(),
        (place, Some(name)) => format!("{place}.{name}"),
    };
    HttpProblem::field(field, detail)
}

fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    essence.eq_ignore_ascii_case(b"application/json")
        || (essence.len() > 5 && essence[essence.len() - 5..].eq_ignore_ascii_case(b"+json"))
}
