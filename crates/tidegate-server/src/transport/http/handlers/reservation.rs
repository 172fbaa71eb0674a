//! `POST /v1/reserve`, `/v1/commit`, `/v1/cancel`, `/v1/renew` and `/v1/extend`.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Deserialize;
use tidegate::pricing::TokenUsage;
use tidegate::{Cost, Costs, Extension, Micros, Rule};

use crate::check::{
    CheckDecision, CheckError, CheckService, Operation, ReserveOptions, SettleAction, UsageCosts,
};
use crate::observe::metrics::ListenerKind;
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
    let active = app.service.active();
    let mut options = ReserveOptions {
        ttl: body.ttl_ms.map(Duration::from_millis),
        charge_on_expiry: body.on_expiry.is_some(),
        tag: body.model.as_deref().map(|model| active.model_tag(model)),
        ..Default::default()
    };
    let mut checks = body.checks_to_reserve(&app.service)?;
    let (id, service) = (body.id.as_deref(), &app.service);
    options.quantity = body.quantity(&mut checks)?;
    let operation = Operation::Reserve(options);
    let result = service.run(operation, &checks, id).await;
    service.count_request(ListenerKind::Http, operation, &result);
    let decision = result?;
    Ok(response::decided(&decision))
}

/// `POST /v1/commit`
pub(crate) async fn commit(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let body: SettleBody = app.read_json(AccessLevel::Check, request).await?;
    let body = body.of(CallBody::COMMIT)?;
    if body.usage.is_some() && (body.cost.is_some() || body.costs.is_some()) {
        return Err(HttpProblem::field("usage", "usage excludes cost and costs; remove one"));
    }
    let id = body.reservation.parse().map_err(CheckError::Refused)?;
    let active = app.service.active();
    // The tokens were used: what cannot be read is charged as reserved.
    let usage = body.usage.as_ref().map(TokenUsage::deserialize);
    let used = match &usage {
        Some(Ok(usage)) => active.costs_of_usage(usage, body.model.as_deref(), id),
        _ => UsageCosts::default(),
    };
    let each = body.each()?;
    let costs = match body.cost {
        _ if !used.rules.is_empty() => Costs::Each(&used.rules),
        _ if body.costs.is_some() => Costs::Each(&each),
        Some(cost) => Costs::All(Cost::total(cost)),
        None => Costs::AsHeld,
    };
    let settled = app.service.settle(id, SettleAction::Commit(costs)).await?;
    let usage = matches!(usage, Some(Err(_))).then_some("invalid");
    let reply = settlement(&app, &body.reservation, &settled);
    let reply = SettlementBody { usage, priced_as: used.priced_as, ..reply };
    Ok(response::standing(&settled, &reply))
}

/// `POST /v1/cancel`
pub(crate) async fn cancel(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let body: SettleBody = app.read_json(AccessLevel::Check, request).await?;
    let body = body.of(CallBody::CANCEL)?;
    let id = body.reservation.parse().map_err(CheckError::Refused)?;
    let settled = app.service.settle(id, SettleAction::Cancel).await?;
    Ok(response::standing(&settled, &settlement(&app, &body.reservation, &settled)))
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

/// `POST /v1/extend`. The costs are totals.
pub(crate) async fn extend(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let body: SettleBody = app.read_json(AccessLevel::Check, request).await?;
    let body = body.of(CallBody::EXTEND)?;
    let totals = &body.each()?[..];
    if totals.is_empty() {
        return Err(HttpProblem::field("costs", "required: the total of each rule to extend"));
    }
    let id = body.reservation.parse().map_err(CheckError::Refused)?;
    let ttl = body.ttl_ms.map(|ttl| Micros::from(Duration::from_millis(ttl)));
    let to = Extension { totals, min: body.min.map(Cost::total), ttl };
    let decision = app.service.settle(id, SettleAction::Extend(to)).await?;
    Ok(response::decided(&decision))
}

fn settlement<'a>(
    app: &AppState,
    reservation: &'a str,
    settled: &'a CheckDecision,
) -> SettlementBody<'a> {
    let active = app.service.active();
    let is_gone = |rule: &str| active.policy.rule(rule).is_none() && rule != Rule::ADHOC;
    SettlementBody::new(reservation, settled, is_gone)
}
