//! Questions about rules, and what becomes of reservations.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};

use super::bodies::{CheckBody, DecisionBody, SettleBody};
use super::problem::{Problem, limit_headers, standing_headers};
use super::{Door, read_json};
use crate::service::{Answer, Failure, Service, Settle, Verb};
use crate::tokens::Access;

/// The longest wait for one's turn.
const MAX_WAIT_MS: u64 = 60_000;

type Answered = Result<Response, Problem>;

/// `POST /v1/check`
pub(super) async fn check(State(door): State<Door>, request: Request) -> Answered {
    let body: CheckBody = door.open(Access::Check, request).await?;
    refuse("ttl_ms", body.ttl_ms.is_some())?;
    let asks = body.asks()?;
    if body.wait_ms.is_some_and(|wait| wait > MAX_WAIT_MS) {
        return Err(Problem::field("wait_ms", "is too long; wait at most 60000"));
    }
    let verb = match body.wait_ms {
        _ if asks.iter().all(|ask| ask.cost == 0) => Verb::Peek,
        None | Some(0) => Verb::Check,
        Some(wait) => Verb::Wait(Duration::from_millis(wait)),
    };
    let answer = door.service.ask(verb, &asks, body.id.as_deref()).await?;
    if verb == Verb::Peek {
        return Ok(told(&answer, &DecisionBody::new(&answer)));
    }
    Ok(json(
        status_of(answer.decision.allowed()),
        limit_headers(&answer),
        &DecisionBody::new(&answer),
    ))
}

/// `POST /v1/record`
pub(super) async fn record(State(door): State<Door>, request: Request) -> Answered {
    let answer = tell(&door, Verb::Record, request).await?;
    Ok(told(&answer, &DecisionBody::new(&answer)))
}

/// `POST /v1/refund`
pub(super) async fn refund(State(door): State<Door>, request: Request) -> Answered {
    let answer = tell(&door, Verb::Refund, request).await?;
    let refunded = Some(answer.decision.refunded().get());
    Ok(told(&answer, &DecisionBody { refunded, ..DecisionBody::new(&answer) }))
}

async fn tell(door: &Door, verb: Verb, request: Request) -> Result<Answer, Problem> {
    let body: CheckBody = door.open(Access::Check, request).await?;
    refuse("ttl_ms", body.ttl_ms.is_some())?;
    refuse("wait_ms", body.wait_ms.is_some())?;
    Ok(door.service.ask(verb, &body.asks()?, body.id.as_deref()).await?)
}

/// `POST /v1/reserve`
pub(super) async fn reserve(State(door): State<Door>, request: Request) -> Answered {
    let body: CheckBody = door.open(Access::Check, request).await?;
    refuse("wait_ms", body.wait_ms.is_some())?;
    let ttl = body.ttl_ms.map(Duration::from_millis);
    let answer = door.service.ask(Verb::Reserve(ttl), &body.asks()?, body.id.as_deref()).await?;
    // Somebody exempt is allowed and has nothing to settle.
    let allowed = answer.decision.allowed();
    Ok(json(status_of(allowed), limit_headers(&answer), &DecisionBody::new(&answer)))
}

/// `POST /v1/commit`
pub(super) async fn commit(State(door): State<Door>, request: Request) -> Answered {
    let body: SettleBody = door.open(Access::Check, request).await?;
    refuse("ttl_ms", body.ttl_ms.is_some())?;
    settle(&door, &body.reservation, Settle::Commit(body.cost)).await
}

/// `POST /v1/cancel`
pub(super) async fn cancel(State(door): State<Door>, request: Request) -> Answered {
    let body: SettleBody = door.open(Access::Check, request).await?;
    refuse("ttl_ms", body.ttl_ms.is_some())?;
    refuse("cost", body.cost.is_some())?;
    settle(&door, &body.reservation, Settle::Cancel).await
}

/// `POST /v1/renew`
pub(super) async fn renew(State(door): State<Door>, request: Request) -> Answered {
    let body: SettleBody = door.open(Access::Check, request).await?;
    refuse("cost", body.cost.is_some())?;
    let ttl = body.ttl_ms.map_or(Service::DEFAULT_TTL, Duration::from_millis);
    settle(&door, &body.reservation, Settle::Renew(ttl)).await
}

async fn settle(door: &Door, id: &str, how: Settle) -> Answered {
    let id = id.parse().map_err(Failure::Refused)?;
    let answer = door.service.settle(id, how).await?;
    let expired = Some(answer.decision.expired());
    let body = DecisionBody { expired, reservation: None, ..DecisionBody::new(&answer) };
    Ok(told(&answer, &body))
}

/// Refuses a field that belongs to another call.
fn refuse(field: &str, given: bool) -> Result<(), Problem> {
    if given { Err(Problem::field(field, "has no meaning here; leave it out")) } else { Ok(()) }
}

fn status_of(allowed: bool) -> StatusCode {
    if allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS }
}

/// What a limit is like after something that is never denied, and so is no reason to come back.
pub(super) fn told(answer: &Answer, body: &DecisionBody<'_>) -> Response {
    json(StatusCode::OK, standing_headers(answer), body)
}

/// A body in JSON.
pub(super) fn json(
    status: StatusCode,
    mut headers: HeaderMap,
    body: &impl serde::Serialize,
) -> Response {
    let mut bytes = Vec::with_capacity(512);
    if serde_json::to_writer(&mut bytes, body).is_err() {
        // Nothing that is answered can fail to be written; if it does, it is our mistake.
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (status, headers, bytes).into_response()
}

impl Door {
    /// Reads a body from somebody who may do this.
    async fn open<T: serde::de::DeserializeOwned>(
        &self,
        access: Access,
        request: Request,
    ) -> Result<T, Problem> {
        self.admit(access, request.headers())?;
        read_json(request).await
    }
}
