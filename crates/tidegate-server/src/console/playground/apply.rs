//! Sets a rule at run time to limits that were tried.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use maud::{Markup, html};
use tidegate_config::RuleFile;

use super::super::admin_form::AdminForm;
use super::super::error_page::ErrorPage;
use super::super::links::rule_path;
use super::super::user::ConsoleUser;
use super::input::PlaygroundInput;
use crate::policy::PutCondition;
use crate::transport::http::AppState;
use crate::transport::http::problem::HttpProblem;

/// Upper bound of the suggested rule names.
const MAX_NAMES: usize = 200;

/// `POST /playground/apply`: the rule as it is, with other limits.
pub(crate) async fn apply(
    State(app): State<AppState>,
    form: AdminForm,
) -> Result<Response, ErrorPage> {
    let name = form.fields.text("rule").trim();
    let Some(listed) = app.policies.rule(name) else {
        let detail = format!("no rule named {name:?}; add it to the policy first");
        return Err(ErrorPage::new(StatusCode::NOT_FOUND, detail));
    };
    let limits = form.fields.text("limits").split(" + ").map(|limit| limit.trim().into());
    let rule = RuleFile { limits: limits.collect(), ..listed.file };
    app.policies.put(&rule, PutCondition::Any, &form.by).await.map_err(HttpProblem::from)?;
    Ok(Redirect::to(&rule_path(name)).into_response())
}

/// The form, if the server permits changes. It shows the limits before they are applied.
pub(super) fn form(app: &AppState, user: &ConsoleUser, input: &PlaygroundInput) -> Markup {
    let active = app.service.active();
    let names = active.policy.rules().iter().map(|rule| rule.name()).take(MAX_NAMES);
    let limits = input.limits.first().map_or("", |limit| limit);
    html! {
        @if user.can_change() {
            section.card.copies aria-labelledby="apply-title" {
                h2 #apply-title { "Apply to a rule" }
                details.confirm {
                    summary #ask-apply { "Apply\u{2026}" }
                    form.action method="post" action="/playground/apply" {
                        p {
                            "Sets the rule at run time: its other fields stay, and changes of its limits in the policy \
                            file have no effect until the run-time rule is deleted. What was used counts under the new limits."
                        }
                        label { span { "Rule" }
                            input type="text" name="rule" list="apply-rules" required maxlength="64"
                                spellcheck="false" autocapitalize="none" autocomplete="off";
                        }
                        datalist #apply-rules { @for name in names { option value=(name) {} } }
                        label { span { "Limits, joined with " code { " + " } }
                            input type="text" name="limits" value=(limits) required maxlength="1024"
                                spellcheck="false" autocapitalize="none" autocomplete="off";
                        }
                        @if user.needs_token() {
                            label { span { "Admin token" }
                                input type="password" name=(AdminForm::TOKEN) required autocomplete="off" spellcheck="false";
                            }
                        }
                        button.danger type="submit" { "Set the rule" }
                    }
                }
            }
        }
    }
}
