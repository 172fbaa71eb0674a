//! The policy in force.
//!
//! # Layout
//!
//! - `row`: one rule, as people read it. `delete`: taking one back. `changed`: what the last reading changed.
//! - `validate`: is a text a policy?

mod changed;
mod delete;
mod row;
mod validate;

pub(super) use delete::delete;
pub(super) use validate::validate;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::form::Fields;
use super::page::{Nav, page};
use super::visitor::Visitor;
use crate::http::Door;
use crate::plot::number;
use crate::policies::{Condition, Selection};

/// The most rules on one page.
const PAGE_LEN: usize = 100;

/// `GET /rules[?filter=..][&page=2]`
pub(super) async fn list(State(door): State<Door>, visitor: Visitor, fields: Fields) -> Response {
    let filter = fields.text("filter").trim();
    let nth = fields.text("page").parse::<usize>().ok().filter(|nth| *nth > 0).unwrap_or(1);
    let selected = door.policies.some_rules(filter, (nth - 1).saturating_mul(PAGE_LEN), PAGE_LEN);
    let (condition, changes) = (door.policies.condition(), door.policies.changes());
    let now = door.service.clock().now();
    let body = html! {
        h1 { "Rules" }
        (mistakes(&condition))
        section aria-labelledby="policy" {
            div.bar {
                h2 #policy { "The policy in force" }
                form.filter method="get" action="/rules" role="search" {
                    label.hidden for="filter" { "Rules whose name contains" }
                    input #filter type="search" name="filter" value=(filter) placeholder="name contains\u{2026}"
                        spellcheck="false" autocapitalize="none";
                    button type="submit" { "Filter" }
                }
            }
            (table(&selected, filter, &visitor))
            (pages(&selected, filter, nth))
        }
        (changed::section(changes.as_deref(), &condition, now))
        (validate::form("", &validate::nothing_yet()))
    };
    page(&visitor, Nav::Rules, "Rules", &body)
}

/// Why the file as it is now is not in force, if it is not.
fn mistakes(condition: &Condition) -> Markup {
    html! {
        @if let Some(error) = &condition.error {
            section.notice role="status" {
                h2 { "The file as it is now is not in force" }
                p { "It has mistakes. The last good policy stays until they are mended." }
                pre { (error) }
            }
        }
    }
}

fn table(selected: &Selection, filter: &str, visitor: &Visitor) -> Markup {
    let Selection { rules, matching, all } = selected;
    html! {
        @if rules.is_empty() {
            p.empty {
                @if *all == 0 { "There are no rules; nothing is limited." }
                @else if *matching == 0 { "No rule has \u{201c}" (filter) "\u{201d} in its name." }
                @else { "There are fewer pages than that." }
            }
        } @else {
            div.scroll tabindex="0" role="region" aria-labelledby="rules-caption" {
                table.rules {
                    caption #rules-caption {
                        (number(*matching as u64))
                        @if matching != all { " of " (number(*all as u64)) }
                        @if *all == 1 { " rule" } @else { " rules" }
                        ", in the order in which they are looked at"
                    }
                    thead {
                        tr {
                            th scope="col" { "Rule" }
                            th scope="col" { "Limits" }
                            th scope="col" { "Counts" }
                            th scope="col" { "Applies to" }
                            th scope="col" { "Also" }
                        }
                    }
                    tbody { @for rule in rules { (row::row(rule, visitor)) } }
                }
            }
        }
    }
}

fn pages(selected: &Selection, filter: &str, nth: usize) -> Markup {
    let last = selected.matching.div_ceil(PAGE_LEN);
    let filter: String = form_urlencoded::byte_serialize(filter.as_bytes()).collect();
    let link = |nth: usize| format!("/rules?filter={filter}&page={nth}");
    html! {
        @if last > 1 {
            nav.pages aria-label="Pages of rules" {
                @if nth > 1 { a rel="prev" href=(link((nth - 1).min(last))) { "\u{2190} Before" } }
                span { "Page " (nth) " of " (last) }
                @if nth < last { a rel="next" href=(link(nth + 1)) { "After \u{2192}" } }
            }
        }
    }
}
