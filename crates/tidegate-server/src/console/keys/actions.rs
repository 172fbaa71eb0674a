//! Actions on a key. They redirect to the page, so that reloading it does not repeat them.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;

use super::super::admin_form::AdminForm;
use super::super::error_page::ErrorPage;
use super::super::user::ConsoleUser;
use super::forms::EnteredValues;
use super::overrides;
use super::page::{CompletedAction, shown};
use super::query::KeyQuery;
use crate::check::Operation;
use crate::policy::{CountsOnDelete, PutCondition, RuleChangeError};
use crate::transport::http::AppState;
use crate::transport::http::problem::HttpProblem;

/// `POST /keys/reset`
pub(crate) async fn reset(
    State(app): State<AppState>,
    form: AdminForm,
) -> Result<Response, ErrorPage> {
    let query = key_query(&form)?;
    let check = query.check(&app.service, 0).map_err(HttpProblem::from)?;
    let reset = [check];
    app.service.run(Operation::Reset, &reset, None).await.map_err(HttpProblem::from)?;
    form.by.log_reset(&reset[0]);
    Ok(redirect(&query, CompletedAction::Reset))
}

/// `POST /keys/override`
pub(crate) async fn set_override(
    State(app): State<AppState>,
    user: ConsoleUser,
    form: AdminForm,
) -> Result<Response, ErrorPage> {
    let query = key_query(&form)?;
    let (limits, duration) = (form.fields.text("limits"), form.fields.text("for"));
    let error = match overrides::read(&query.key, limits, duration) {
        Err(error) => error,
        Ok((one, end)) => {
            let put =
                app.policies.put_override(&query.rule, &one, end, PutCondition::Any, &form.by);
            match put.await {
                Ok(_) => return Ok(redirect(&query, CompletedAction::Overridden)),
                Err(RuleChangeError::Faulty(problems)) => {
                    problems.iter().map(|one| one.message()).collect::<Vec<_>>().join("\n")
                }
                Err(error) => return Err(HttpProblem::from(error).into()),
            }
        }
    };
    let typed =
        EnteredValues { limits: limits.into(), duration: duration.into(), error: Some(error) };
    Ok(shown(&app, &user, &query, None, &typed).await)
}

/// `POST /keys/override/end`
pub(crate) async fn end_override(
    State(app): State<AppState>,
    form: AdminForm,
) -> Result<Response, ErrorPage> {
    let query = key_query(&form)?;
    let any = PutCondition::Any;
    let deleted = app.policies.delete_override(&query.rule, &query.key, any, &form.by).await;
    deleted.map_err(HttpProblem::from)?;
    Ok(redirect(&query, CompletedAction::Ended))
}

/// `POST /keys/take-back`
pub(crate) async fn revert_rule(
    State(app): State<AppState>,
    form: AdminForm,
) -> Result<Response, ErrorPage> {
    let query = key_query(&form)?;
    if !app.policies.is_in_file(&query.rule) {
        let detail = "the policy file has no rule of this name; delete it on the rules page";
        return Err(ErrorPage::new(StatusCode::CONFLICT, detail));
    }
    let kept = CountsOnDelete::Keep;
    let deleted = app.policies.delete(&query.rule, kept, PutCondition::Any, &form.by).await;
    deleted.map_err(HttpProblem::from)?;
    Ok(redirect(&query, CompletedAction::Reverted))
}

fn key_query(form: &AdminForm) -> Result<KeyQuery, ErrorPage> {
    let query = KeyQuery::from_form(&form.fields);
    if query.is_empty() {
        let detail = "incomplete form; go back and use the form";
        return Err(ErrorPage::new(StatusCode::BAD_REQUEST, detail));
    }
    Ok(query)
}

fn redirect(query: &KeyQuery, done: CompletedAction) -> Response {
    let (query, field, name) = (query.encoded(), CompletedAction::FIELD, done.name());
    Redirect::to(&format!("/keys?{query}&{field}={name}")).into_response()
}
