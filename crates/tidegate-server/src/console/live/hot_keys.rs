//! Hot keys.

use maud::{Markup, html};
use tidegate::Micros;

use crate::observe::traffic::snapshot::{HotKey, HotKeyState, TrafficSnapshot};
use crate::text::format::number;

/// Upper bound of the rows.
const MAX_KEYS: usize = 10;

pub(super) fn section(snapshot: &TrafficSnapshot) -> Markup {
    html! {
        h2 #keys-title { "Hot keys" }
        @if snapshot.hottest.is_empty() {
            p.empty { "No recent keys." }
        } @else {
            div.scroll #keys-table tabindex="0" role="region" aria-labelledby="keys-caption" {
                table {
                    caption #keys-caption {
                        "By recent calls, with a half-life of 30 s"
                    }
                    thead {
                        tr {
                            th scope="col" { "Key" }
                            th scope="col" { "Rule" }
                            th.number scope="col" { "Allowed" }
                            th.number scope="col" { "Denied" }
                            th scope="col" { "Remaining" }
                        }
                    }
                    tbody { @for key in snapshot.hottest.iter().take(MAX_KEYS) { (row(key)) } }
                }
            }
        }
    }
}

fn row(hot: &HotKey) -> Markup {
    html! {
        tr {
            th.key-name scope="row" {
                @if hot.key.is_empty() { span.muted { "all requests" } } @else { code { (hot.key) } }
            }
            td.name { code { (hot.rule) } }
            td.number { (number(hot.allowed)) }
            td.number.denied-text[hot.denied > 0] { (number(hot.denied)) }
            td { (remaining(hot.state)) }
        }
    }
}

fn remaining(known: Option<HotKeyState>) -> Markup {
    let Some(HotKeyState { remaining, limit, reset_after_ms }) = known else {
        let title = "not available: several key parts, a truncated key, or a deleted rule";
        return html! { span.muted title=(title) { "\u{2013}" } };
    };
    html! {
        span.left {
            meter min="0" max=(limit.max(1)) value=(remaining.min(limit)) low=(limit / 10) { (remaining) }
            span { (number(remaining)) span.muted { " of " (number(limit)) } }
            @if reset_after_ms > 0 { span.muted { "reset after " (Micros::from_millis(reset_after_ms)) } }
        }
    }
}
