//! The state of a key under one limit.

use maud::{Markup, PreEscaped, html};
use tidegate::{Inspection, Key, Micros, RuleLimit, Source};

use super::chart::{KeyChart, gauge, recovery};
use crate::text::escape::display_key;
use crate::text::format::number;

/// Upper bound of the listed entries of a log.
const MAX_ENTRIES: usize = 50;

pub(super) fn card(limit: &RuleLimit, found: &Inspection, now: Micros) -> Markup {
    let chart = KeyChart::new(limit, found, now);
    html! {
        section.card.limit {
            div.bar {
                h3 { code { (limit.limit()) } " " span.muted { (limit.policy()) } }
                div {
                    @if limit.is_shadow() { span.tag title="shadow mode: not enforced" { "shadow" } " " }
                    @if found.source != Source::Memory { span.tag { (found.source.name()) } " " }
                    @if found.shared {
                        span.tag.warn title="memory cap reached: the key shares a bucket with others" { "shared" }
                    }
                }
            }
            div.charts {
                (PreEscaped(gauge(&chart)))
                @match recovery(&chart) {
                    Some(svg) => (PreEscaped(svg)),
                    None => p.muted { (no_recovery_reason(found)) },
                }
            }
            (numbers(found))
            (entries(found))
        }
    }
}

/// The text in place of the recovery chart.
fn no_recovery_reason(found: &Inspection) -> &'static str {
    let standing = &found.standing;
    match (found.limit, standing.used, standing.held) {
        (0, ..) => "Every request is denied; waiting does not help.",
        (_, 0, 0) => "Unused.",
        _ if found.recovery.is_empty() => "Recovery unknown.",
        _ => "Recovers when holders release their slots.",
    }
}

fn numbers(found: &Inspection) -> Markup {
    let standing = found.standing;
    let resets = match standing.reset_after {
        Micros::ZERO => "now".into(),
        Micros::MAX => "on release".into(),
        after => after.to_string(),
    };
    html! {
        dl.figures {
            div { dt { "Limit" } dd { (number(found.limit)) } }
            div { dt { "Used" } dd { (number(standing.used)) } }
            div { dt { "Held" } dd { (number(standing.held)) } }
            div { dt { "Remaining" } dd { (number(standing.remaining)) } }
            div { dt { "Reset after" } dd { (resets) } }
        }
    }
}

/// The entries of a log, and when each expires.
fn entries(found: &Inspection) -> Markup {
    let mut staying = found.standing.used.saturating_add(found.standing.held);
    let rows: Vec<_> = found
        .entries
        .iter()
        .map(|(id, cost)| {
            staying = staying.saturating_sub(*cost);
            let fits = found.limit.saturating_sub(staying);
            let expires = found.recovery.iter().find(|known| known.fits == fits);
            (id.as_deref(), *cost, expires.map(|known| known.after))
        })
        .collect();
    let has_names = rows.iter().any(|(id, ..)| id.is_some());
    html! {
        @if !rows.is_empty() {
            details {
                summary { (number(rows.len() as u64)) @if rows.len() == 1 { " entry" } @else { " entries" } }
                div.scroll {
                    table {
                        thead {
                            tr {
                                @if has_names { th scope="col" { "Id" } }
                                th.number scope="col" { "Cost" }
                                th.number scope="col" { "Expires in" }
                            }
                        }
                        tbody {
                            @for (id, cost, expires) in rows.iter().take(MAX_ENTRIES) {
                                tr {
                                    @if has_names {
                                        td { @if let Some(id) = id { code { (display_key(Key::from(*id))) } } }
                                    }
                                    td.number { (number(*cost)) }
                                    td.number {
                                        @if let Some(expires) = expires { (expires) } @else { "\u{2013}" }
                                    }
                                }
                            }
                        }
                    }
                }
                @if rows.len() > MAX_ENTRIES {
                    p.muted { "and " (number((rows.len() - MAX_ENTRIES) as u64)) " more; see " code { "GET /v1/keys" } }
                }
            }
        }
    }
}
