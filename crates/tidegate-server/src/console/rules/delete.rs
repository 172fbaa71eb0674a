//! Taking back a rule that was set while running.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use maud::{Markup, html};

use super::super::change::Change;
use super::super::trouble::Trouble;
use super::super::visitor::Visitor;
use crate::http::Door;
use crate::policies::NotChanged;

/// `POST /rules/delete`
pub(in super::super) async fn delete(
    State(door): State<Door>,
    change: Change,
) -> Result<Response, Trouble> {
    let deleted = door.policies.delete(change.fields.text("name"));
    deleted.map_err(|not| {
        let status = match not {
            NotChanged::Unknown => StatusCode::NOT_FOUND,
            _ => StatusCode::CONFLICT,
        };
        Trouble::new(status, not.to_string())
    })?;
    Ok(Redirect::to("/rules").into_response())
}

/// The form for it, where somebody could use it.
pub(super) fn form(visitor: &Visitor, name: &str) -> Markup {
    html! {
        @if visitor.can_change() {
            form.inline method="post" action="/rules/delete" {
                input type="hidden" name="name" value=(name);
                @if visitor.needs_token() {
                    label {
                        span.hidden { "Admin token" }
                        input type="password" name=(Change::TOKEN) placeholder="admin token" required
                            autocomplete="off";
                    }
                }
                button.quiet type="submit" { "Take back" span.hidden { " the rule " (name) } }
            }
        }
    }
}
