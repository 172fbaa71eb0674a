//! `POST /v1/check`, `/v1/record` and `/v1/refund`.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use tidegate_config::RefundToken;

use crate::check::{CheckDecision, Operation};
use crate::observe::metrics::ListenerKind;
use crate::transport::auth::AccessLevel;
use crate::transport::http::json::{CallBody, CheckBody, DecisionBody};
use crate::transport::http::problem::HttpProblem;
use crate::transport::http::response;
use crate::transport::http::state::AppState;
use crate::transport::listener::http_connection::ConnectionInfo;

/// Longest wait for permits.
const MAX_WAIT_MS: u64 = 60_000;

/// `POST /v1/check`
pub(crate) async fn check(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let connection = ConnectionInfo::of(request.extensions());
    let waits = connection.map(|connection| connection.waits.clone()).unwrap_or_default();
    let body: CheckBody = app.read_json(AccessLevel::Check, request).await?;
    let body = body.of(CallBody::CHECK)?;
    let checks = body.checks(&app.service)?;
    if body.wait_ms.is_some_and(|wait| wait > MAX_WAIT_MS) {
        return Err(HttpProblem::field("wait_ms", "too long; at most 60000"));
    }
    let (operation, _waiting) = match body.wait_ms {
        _ if checks.iter().all(|check| check.cost == 0) => (Operation::Peek, None),
        None | Some(0) => (Operation::Check, None),
        Some(wait) => app.service.begin_wait(Duration::from_millis(wait), &waits),
    };
    let result = app.service.run(operation, &checks, body.id.as_deref()).await;
    app.service.count_request(ListenerKind::Http, operation, &result);
    let decision = result?;
    if operation == Operation::Peek {
        return Ok(response::standing(&decision, &DecisionBody::new(&decision)));
    }
    Ok(response::decided(&decision))
}

/// `POST /v1/record`
pub(crate) async fn record(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let decision = record_or_refund(&app, Operation::Record, CallBody::RECORD, request).await?;
    Ok(response::standing(&decision, &DecisionBody::new(&decision)))
}

/// `POST /v1/refund`
pub(crate) async fn refund(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    if app.service.active().refund_token == RefundToken::Admin {
        app.admit(AccessLevel::Admin, request.headers())?;
    }
    let decision = record_or_refund(&app, Operation::Refund, CallBody::REFUND, request).await?;
    let refunded = Some(decision.decision.refunded().get());
    let body = DecisionBody { refunded, ..DecisionBody::new(&decision) };
    Ok(response::standing(&decision, &body))
}

async fn record_or_refund(
    app: &AppState,
    operation: Operation,
    call: CallBody,
    request: Request,
) -> Result<CheckDecision, HttpProblem> {
    let body: CheckBody = app.read_json(AccessLevel::Check, request).await?;
    let body = body.of(call)?;
    Ok(app.service.run(operation, &body.checks(&app.service)?, body.id.as_deref()).await?)
}
