//! Deletes a run-time rule.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};

use super::super::admin_form::AdminForm;
use super::super::error_page::ErrorPage;
use super::super::user::ConsoleUser;
use crate::policy::{CountsOnDelete, PutCondition};
use crate::transport::http::AppState;
use crate::transport::http::problem::HttpProblem;

/// `POST /rules/delete`
pub(crate) async fn delete(
    State(app): State<AppState>,
    form: AdminForm,
) -> Result<Response, ErrorPage> {
    let name = form.fields.text("name");
    let deleted =
        app.policies.delete(name, CountsOnDelete::Keep, PutCondition::Any, &form.by).await;
    deleted.map_err(HttpProblem::from)?;
    Ok(Redirect::to("/rules").into_response())
}

/// The form, if the server permits changes.
pub(super) fn form(user: &ConsoleUser, name: &str) -> Markup {
    html! {
        @if user.can_change() {
            form.inline method="post" action="/rules/delete" {
                input type="hidden" name="name" value=(name);
                @if user.needs_token() {
                    label {
                        span.hidden { "Admin token" }
                        input type="password" name=(AdminForm::TOKEN) placeholder="admin token" required
                            autocomplete="off";
                    }
                }
                button.quiet type="submit" { "Delete" span.hidden { " the rule " (name) } }
            }
        }
    }
}
