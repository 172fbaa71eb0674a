//! Forms for the actions on a key.

use maud::{Markup, html};

use super::super::admin_form::AdminForm;
use super::super::user::ConsoleUser;
use super::query::KeyQuery;
use crate::policy::{ListedOverride, ListedRule, RuleOrigin, timestamp};
use crate::transport::http::AppState;

/// The values of an override form with errors.
#[derive(Clone, Default, Debug)]
pub(super) struct EnteredValues {
    pub(super) limits: String,
    pub(super) duration: String,
    pub(super) error: Option<String>,
}

/// All forms that the server permits.
pub(super) fn forms(
    app: &AppState,
    user: &ConsoleUser,
    query: &KeyQuery,
    typed: &EnteredValues,
) -> Markup {
    let listed = app.policies.rule(&query.rule);
    html! {
        @if !user.can_change() {
            p.muted {
                "To reset a key or override its limits, start the server with "
                code { "TIDEGATE_ADMIN_TOKEN" } "."
            }
        } @else {
            div.actions {
                (reset(user, query))
                @if listed.is_some() {
                    @let present = app.policies.find_override(&query.rule, &query.key);
                    @let active = present.filter(|present| present.inactive.is_none());
                    (set_override(user, query, typed, active.as_ref()))
                }
            }
        }
        @if let Some(listed) = &listed { (origin(app, user, query, listed)) }
    }
}

fn reset(user: &ConsoleUser, query: &KeyQuery) -> Markup {
    html! {
        section.card aria-labelledby="reset" {
            h2 #reset { "Reset" }
            p.muted { "Resets the key\u{2019}s usage under all limits shown. Reservations are kept." }
            details.confirm {
                summary #ask-reset { "Reset\u{2026}" }
                form.action method="post" action="/keys/reset" {
                    p { "Reset " code { (query.display()) } "? Its usage is forgotten, and this cannot be undone." }
                    (hidden(query))
                    (token(user))
                    button.danger type="submit" { "Reset this key" }
                }
            }
        }
    }
}

fn set_override(
    user: &ConsoleUser,
    query: &KeyQuery,
    typed: &EnteredValues,
    present: Option<&ListedOverride>,
) -> Markup {
    html! {
        section.card aria-labelledby="override" {
            h2 #override { "Temporary override" }
            @if query.key.is_empty() {
                p.muted { "This rule counts all requests together: there is no key to override." }
            } @else {
                @if let Some(present) = present {
                    p {
                        "Active: " code { (present.limits.join(" + ")) }
                        @if let Some(until) = present.until { " until " time { (timestamp(until)) } }
                        ", set by " (present.by) "."
                    }
                    form.action method="post" action="/keys/override/end" {
                        (hidden(query))
                        (token(user))
                        button.quiet type="submit" { "End now" }
                    }
                }
                form.action method="post" action="/keys/override" {
                    (hidden(query))
                    label { span { "Limits" }
                        input type="text" name="limits" value=(typed.limits) placeholder="1000/s" required maxlength="1024"
                            spellcheck="false" autocapitalize="none" autocomplete="off"
                            aria-describedby=[typed.error.is_some().then_some("override-wrong")];
                    }
                    label { span { "for" }
                        input.short type="text" name="for" value=(if typed.duration.is_empty() { "1h" } else { &typed.duration })
                            list="spans" required maxlength="32" spellcheck="false" autocapitalize="none";
                    }
                    datalist #spans { @for span in ["10m", "1h", "8h", "1d", "7d"] { option value=(span) {} } }
                    (token(user))
                    button type="submit" { "Override" }
                }
                @if let Some(error) = &typed.error {
                    pre.wrong #override-wrong role="alert" { (error) }
                }
                p.muted {
                    "Replaces the rule\u{2019}s limits for this key; join several with " code { " + " }
                    ". It applies on top of whatever rule is in force, on all servers of the store."
                }
            }
        }
    }
}

/// A notice if the rule was set at run time.
fn origin(app: &AppState, user: &ConsoleUser, query: &KeyQuery, listed: &ListedRule) -> Markup {
    let name = &listed.file.name;
    html! {
        @if listed.origin == RuleOrigin::Runtime {
            section.notice {
                h2 { "This rule was set at run time" }
                @if app.policies.is_in_file(name) {
                    p {
                        code { (name) } " replaces the rule of the policy file: changes in the file have no effect until the \
                        run-time rule is deleted."
                    }
                    @if user.can_change() {
                        form.action method="post" action="/keys/take-back" {
                            (hidden(query))
                            (token(user))
                            button.quiet type="submit" { "Revert to the policy file" }
                        }
                    }
                } @else {
                    p { "The policy file has no rule " code { (name) } "." }
                }
            }
        }
    }
}

fn hidden(query: &KeyQuery) -> Markup {
    html! { input type="hidden" name=(KeyQuery::FIELD) value=(query.encoded()); }
}

fn token(user: &ConsoleUser) -> Markup {
    html! {
        @if user.needs_token() {
            label { span { "Admin token" }
                input type="password" name=(AdminForm::TOKEN) required autocomplete="off" spellcheck="false";
            }
        }
    }
}
