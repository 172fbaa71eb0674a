//! `POST /v1/reserve`, `/v1/commit`, `/v1/cancel` and `/v1/renew`.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use tidegate::{Cost, Costs, Rule};

use crate::check::{CheckError, CheckService, Operation, ReserveOptions, SettleAction};
use crate::transport::auth::AccessLevel;
use crate::transport::http::json::{CallBody, CheckBody, DecisionBody, SettleBody, SettlementBody};
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
    let operation = Operation::Reserve(ReserveOptions {
        ttl: body.ttl_ms.map(Duration::from_millis),
        charge_on_expiry: body.on_expiry.is_some(),
    });
    let decision =
        app.service.run(operation, &body.checks(&app.service)?, body.id.as_deref()).await?;
    Ok(response::decided(&decision))
}

/// `POST /v1/commit`
pub(crate) async fn commit(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let body: SettleBody = app.read_json(AccessLevel::Check, request).await?;
    let body = body.of(CallBody::COMMIT)?;
    let each = body.each()?;
    let costs = match body.cost {
        _ if body.costs.is_some() => Costs::Each(&each),
        Some(cost) => Costs::All(Cost::total(cost)),
        None => Costs::AsHeld,
    };
    settle(&app, &body.reservation, SettleAction::Commit(costs)).await
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
    let id = body.reservation.parse().map_err(CheckError::Refused)?;
    let decision = app.service.settle(id, SettleAction::Renew(ttl)).await?;
    let expired = Some(decision.decision.expired());
    let body = DecisionBody { expired, reservation: None, ..DecisionBody::new(&decision) };
    Ok(response::standing(&decision, &body))
}

async fn settle(
    app: &AppState,
    reservation: &str,
    action: SettleAction<'_>,
) -> Result<Response, HttpProblem> {
    let id = reservation.parse().map_err(CheckError::Refused)?;
    let decision = app.service.settle(id, action).await?;
    let policy = app.service.active();
    let is_gone = |rule: &str| policy.policy.rule(rule).is_none() && rule != Rule::ADHOC;
    let body = SettlementBody::new(reservation, &decision, is_gone);
    Ok(response::standing(&decision, &body))
}
