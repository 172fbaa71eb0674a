//! The rules page: active policy, last reload and validation. Imports: admin_form, error_page,
//! form, layout, links, page, user.

mod delete;
mod last_reload;
pub(super) mod row;
mod validate;

pub(super) use delete::delete;
pub(super) use validate::validate;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::form::FormFields;
use super::layout::NavItem;
use super::page::{page, page_links};
use super::user::ConsoleUser;
use crate::policy::{ListedOverride, PolicyStatus, RulePage};
use crate::text::format::number;
use crate::transport::http::AppState;

const PAGE_LEN: usize = 100;

/// `GET /rules[?filter=..][&page=2]`
pub(super) async fn list(
    State(app): State<AppState>,
    user: ConsoleUser,
    fields: FormFields,
) -> Response {
    let filter = fields.text("filter").trim();
    let nth = fields.text("page").parse::<usize>().ok().filter(|nth| *nth > 0).unwrap_or(1);
    let selected = app.policies.rule_page(filter, (nth - 1).saturating_mul(PAGE_LEN), PAGE_LEN);
    let (status, changes) = (app.policies.status(), app.policies.changes());
    let overrides = app.policies.overrides();
    let now = app.service.clock().now();
    let body = html! {
        h1 { "Rules" }
        (reload_error(&status))
        section aria-labelledby="policy" {
            div.bar {
                h2 #policy { "Active policy" }
                form.filter method="get" action="/rules" role="search" {
                    label.hidden for="filter" { "Rules whose name contains" }
                    input #filter type="search" name="filter" value=(filter) placeholder="name contains\u{2026}"
                        spellcheck="false" autocapitalize="none";
                    button type="submit" { "Filter" }
                }
            }
            (table(&selected, &overrides, filter, &user))
            (pages(&selected, filter, nth))
        }
        (last_reload::section(changes.as_deref(), &status, now))
        (validate::form("", &validate::empty_result()))
    };
    page(&user, NavItem::Rules, "Rules", &body)
}

/// The error of the last reload, if it failed, and the problems of the control plane.
fn reload_error(status: &PolicyStatus) -> Markup {
    html! {
        @if let Some(error) = &status.error {
            section.notice role="status" {
                h2 { "The policy file was not loaded" }
                p { "It has errors. The last valid policy stays active until they are fixed." }
                pre { (error) }
            }
        }
        @if let Some(problems) = &status.control_plane {
            section.notice role="status" {
                h2 { "The control plane has problems" }
                pre { (problems) }
            }
        }
    }
}

fn table(
    selected: &RulePage,
    overrides: &[ListedOverride],
    filter: &str,
    user: &ConsoleUser,
) -> Markup {
    let RulePage { rules, matching, all } = selected;
    html! {
        @if rules.is_empty() {
            p.empty {
                @if *all == 0 { "No rules: nothing is limited." }
                @else if *matching == 0 { "No rule has \u{201c}" (filter) "\u{201d} in its name." }
                @else { "No such page." }
            }
        } @else {
            div.scroll tabindex="0" role="region" aria-labelledby="rules-caption" {
                table.rules.stack {
                    caption #rules-caption {
                        (number(*matching as u64))
                        @if matching != all { " of " (number(*all as u64)) }
                        @if *all == 1 { " rule" } @else { " rules" }
                        ", in evaluation order"
                    }
                    thead {
                        tr {
                            th scope="col" { "Rule" }
                            th scope="col" { "Limits" }
                            th scope="col" { "Key" }
                            th scope="col" { "Applies to" }
                            th scope="col" { "Options" }
                        }
                    }
                    tbody { @for rule in rules { (row::row(rule, overrides, user)) } }
                }
            }
        }
    }
}

fn pages(selected: &RulePage, filter: &str, nth: usize) -> Markup {
    let last = selected.matching.div_ceil(PAGE_LEN);
    let filter: String = form_urlencoded::byte_serialize(filter.as_bytes()).collect();
    let link = |nth: usize| format!("/rules?filter={filter}&page={nth}");
    page_links(nth, last, link)
}
