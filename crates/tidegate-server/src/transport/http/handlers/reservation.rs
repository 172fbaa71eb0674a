//! `POST /v1/reserve`, `/v1/commit`, `/v1/cancel` and `/v1/renew`.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;

use crate::check::{CheckError, CheckService, Operation, SettleAction};
use crate::transport::auth::AccessLevel;
use crate::transport::http::json::{CallBody, CheckBody, DecisionBody, SettleBody};
use crate::transport::http::problem::HttpProblem;
use crate::transport::http::response;
use crate::transport::http::state::AppState;

/// `POST /v1/reserve`. An exempt key is allowed without a reservation.
pub(crate) async fn reserve(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let body: CheckBody = app.read_json(AccessLevel::Check, request).await?;
    let body = body.of(CallBody::RESERVE)?;
    let operation = Operation::Reserve(body.ttl_ms.map(Duration::from_millis));
    let checks = body.checks_to_reserve(&app.service)?;
    let decision = app.service.run(operation, &checks, body.id.as_deref()).await?;
    Ok(response::decided(&decision))
}

/// `POST /v1/commit`
pub(crate) async fn commit(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let body: SettleBody = app.read_json(AccessLevel::Check, request).await?;
    let body = body.of(CallBody::COMMIT)?;
    settle(&app, &body.reservation, SettleAction::Commit(body.cost)).await
}

/// `POST /v1/cancel`
pub(crate) async fn cancel(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let body: SettleBody = app.read_json(AccessLevel::Check, request).await?;
    let body = body.of(CallBody::CANCEL)?;
    settle(&app, &body.reservation, SettleAction::Cancel).await
}

/// `POST /v1/renew`
pub(crate) async fn renew(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let body: SettleBody = app.read_json(AccessLevel::Check, request).await?;
    let body = body.of(CallBody::RENEW)?;
    let ttl = body.ttl_ms.map_or(CheckService::DEFAULT_TTL, Duration::from_millis);
    settle(&app, &body.reservation, SettleAction::Renew(ttl)).await
}

async fn settle(app: &AppState, id: &str, action: SettleAction) -> Result<Response, HttpProblem> {
    let id = id.parse().map_err(CheckError::Refused)?;
    let decision = app.service.settle(id, action).await?;
    let expired = Some(decision.decision.expired());
    let body = DecisionBody { expired, reservation: None, ..DecisionBody::new(&decision) };
    Ok(response::standing(&decision, &body))
}
