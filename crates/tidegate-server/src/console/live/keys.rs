//! The keys that are asked about most.

use maud::{Markup, html};
use tidegate::Micros;

use super::left::{Left, MOST_KEYS};
use super::shared::Seen;
use crate::live::snapshot::HotKey;
use crate::plot::{number, span};

pub(super) fn section(seen: &Seen) -> Markup {
    let keys = seen.snapshot.hottest.iter().zip(&seen.left).take(MOST_KEYS);
    html! {
        h2 #keys-title { "Hottest keys" }
        @if seen.snapshot.hottest.is_empty() {
            p.empty { "No key was asked about lately." }
        } @else {
            div.scroll #keys-table tabindex="0" role="region" aria-labelledby="keys-caption" {
                table {
                    caption #keys-caption {
                        "Asked about most lately; a call counts half after 30 s"
                    }
                    thead {
                        tr {
                            th scope="col" { "Key" }
                            th scope="col" { "Rule" }
                            th.number scope="col" { "Allowed" }
                            th.number scope="col" { "Denied" }
                            th scope="col" { "Left now" }
                        }
                    }
                    tbody { @for (key, left) in keys { (row(key, *left)) } }
                }
            }
        }
    }
}

fn row(hot: &HotKey, left: Option<Left>) -> Markup {
    html! {
        tr {
            th.key-name scope="row" {
                @if hot.key.is_empty() { span.muted { "everybody together" } } @else { code { (hot.key) } }
            }
            td.name { code { (hot.rule) } }
            td.number { (number(hot.allowed)) }
            td.number.denied-text[hot.denied > 0] { (number(hot.denied)) }
            td { (what_is_left(left)) }
        }
    }
}

fn what_is_left(left: Option<Left>) -> Markup {
    let Some(Left { remaining, limit, reset_after }) = left else {
        return html! { span.muted title="it has several parts, was cut, or the rule is no more" { "\u{2013}" } };
    };
    html! {
        span.left {
            meter min="0" max=(limit.max(1)) value=(remaining.min(limit)) low=(limit / 10) { (remaining) }
            span { (number(remaining)) span.muted { " of " (number(limit)) } }
            @if reset_after > Micros::ZERO { span.muted { "full in " (span(reset_after)) } }
        }
    }
}
