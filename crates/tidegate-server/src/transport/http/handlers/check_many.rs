//! `POST /v1/check-many`.

use axum::extract::{Request, State};
use axum::response::Response;

use crate::check::{CheckDecision, CheckService, Operation};
use crate::observe::metrics::ListenerKind;
use crate::transport::auth::AccessLevel;
use crate::transport::http::json::{
    CheckItem, CheckManyBody, CheckManyResponse, CheckResultBody, DecisionBody, StrictObject,
};
use crate::transport::http::problem::HttpProblem;
use crate::transport::http::response;
use crate::transport::http::state::AppState;

/// The result of one check.
type ItemResult = Result<CheckDecision, HttpProblem>;

/// `POST /v1/check-many`: independent checks, always 200. Each result has its own outcome.
pub(crate) async fn check_many(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let body: CheckManyBody = app.read_json(AccessLevel::Check, request).await?;
    let count = body.checks.len();
    if count == 0 || count > CheckService::MAX_INDEPENDENT {
        let detail = format!("{count} checks; use 1 to {}", CheckService::MAX_INDEPENDENT);
        return Err(HttpProblem::field("checks", detail));
    }
    let results = decide(&app.service, &body.checks).await;
    let results = results.iter().map(result_body).collect();
    Ok(response::ok(&CheckManyResponse { results }))
}

/// Decides the checks that are valid.
async fn decide(service: &CheckService, items: &[StrictObject<CheckItem>]) -> Vec<ItemResult> {
    let mut checks = Vec::with_capacity(items.len());
    let mut results: Vec<Option<ItemResult>> = Vec::with_capacity(items.len());
    for StrictObject(item) in items {
        let check = item.check(service);
        results.push(check.map(|check| checks.push(check)).err().map(Err));
    }
    let decided = service.check_many(&checks).await;
    for (check, result) in checks.iter().zip(&decided) {
        let operation = if check.cost == 0 { Operation::Peek } else { Operation::Check };
        service.count_request(ListenerKind::Http, operation, result);
    }
    let mut decided = decided.into_iter();
    let mut next = || decided.next().map(|result| result.map_err(HttpProblem::from));
    results.into_iter().filter_map(|invalid| invalid.or_else(&mut next)).collect()
}

fn result_body(result: &ItemResult) -> CheckResultBody<'_> {
    match result {
        Ok(decision) => CheckResultBody::Decision(DecisionBody::new(decision)),
        Err(problem) => CheckResultBody::Problem(problem.body()),
    }
}
