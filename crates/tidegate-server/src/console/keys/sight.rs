//! A key under one limit.

use maud::{Markup, PreEscaped, html};
use tidegate::{Key, Micros, Source};

use crate::hottest::Hottest;
use crate::plot::{Sight, number, span, wait};
use crate::service::Outlook;

/// The most entries of a log that are listed.
const MOST_ENTRIES: usize = 50;

pub(super) fn card(outlook: &Outlook, now: Micros) -> Markup {
    let (limit, found) = (&outlook.limit, &outlook.found);
    let sight = Sight::new(outlook, now);
    html! {
        section.card.limit {
            div.bar {
                h3 { code { (limit.limit()) } " " span.muted { (limit.policy()) } }
                div {
                    @if limit.is_shadow() { span.tag title="it only looks on" { "shadow" } " " }
                    @if found.source != Source::Memory { span.tag { (found.source.name()) } " " }
                    @if found.shared {
                        span.tag.warn title="memory ran out, and the key shares a count with others" { "shared" }
                    }
                }
            }
            div.sight {
                (PreEscaped(sight.vessel()))
                @match sight.recovery() {
                    Some(drawn) => (PreEscaped(drawn)),
                    None => p.muted { (unchanging(outlook)) },
                }
            }
            (numbers(outlook))
            (entries(outlook))
        }
    }
}

/// Why there is nothing to recover.
fn unchanging(outlook: &Outlook) -> &'static str {
    let standing = &outlook.found.standing;
    match (outlook.found.limit, standing.used, standing.held) {
        (0, ..) => "Nothing passes, and waiting does not help.",
        (_, 0, 0) => "Nothing is used: all of it is there.",
        _ if outlook.recovery.is_empty() => "How it recovers is not known now.",
        _ => "It comes back when those who hold it give it back.",
    }
}

fn numbers(outlook: &Outlook) -> Markup {
    let standing = outlook.found.standing;
    let resets = match standing.reset_after {
        Micros::ZERO => "now".into(),
        Micros::MAX => "when it is given back".into(),
        after => span(after),
    };
    html! {
        dl.figures {
            div { dt { "Limit" } dd { (number(outlook.found.limit)) } }
            div { dt { "Used" } dd { (number(standing.used)) } }
            div { dt { "Held" } dd { (number(standing.held)) } }
            div { dt { "Left" } dd { (number(standing.remaining)) } }
            div { dt { "As good as unused in" } dd { (resets) } }
        }
    }
}

/// What a log has kept, and when each of it leaves.
fn entries(outlook: &Outlook) -> Markup {
    let found = &outlook.found;
    let mut stays = found.standing.used.saturating_add(found.standing.held);
    let rows: Vec<_> = found
        .entries
        .iter()
        .map(|(who, cost)| {
            stays = stays.saturating_sub(*cost);
            let fits = found.limit.saturating_sub(stays);
            let leaves = outlook.recovery.iter().find(|known| known.fits == fits);
            (who.as_deref(), *cost, leaves.map(|known| known.after))
        })
        .collect();
    let has_names = rows.iter().any(|(who, ..)| who.is_some());
    html! {
        @if !rows.is_empty() {
            details {
                summary { (number(rows.len() as u64)) @if rows.len() == 1 { " entry" } @else { " entries" } }
                div.scroll {
                    table {
                        thead {
                            tr {
                                @if has_names { th scope="col" { "Who" } }
                                th.number scope="col" { "Cost" }
                                th.number scope="col" { "Leaves in" }
                            }
                        }
                        tbody {
                            @for (who, cost, leaves) in rows.iter().take(MOST_ENTRIES) {
                                tr {
                                    @if has_names {
                                        td { @if let Some(who) = who { code { (Hottest::shown(Key::from(*who))) } } }
                                    }
                                    td.number { (number(*cost)) }
                                    td.number {
                                        @if let Some(leaves) = leaves { (wait(*leaves)) } @else { "\u{2013}" }
                                    }
                                }
                            }
                        }
                    }
                }
                @if rows.len() > MOST_ENTRIES {
                    p.muted { "and " (number((rows.len() - MOST_ENTRIES) as u64)) " more; see " code { "GET /v1/keys" } }
                }
            }
        }
    }
}
