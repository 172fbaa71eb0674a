//! Hot keys.

use maud::{Markup, html};
use tidegate::Micros;

use super::super::links::{key_link, rule_link};
use crate::observe::traffic::snapshot::{HotKey, HotKeyState, TrafficSnapshot};
use crate::text::format::number;

/// Upper bound of the rows.
const MAX_KEYS: usize = 10;

/// The hot keys of all rules or of one.
pub(crate) fn section(snapshot: &TrafficSnapshot, rule: Option<&str>) -> Markup {
    let is_shown = |key: &&HotKey| rule.is_none_or(|rule| key.rule == rule);
    let mut keys = snapshot.hottest.iter().filter(is_shown).peekable();
    html! {
        h2 #keys-title { "Hot keys" }
        @if keys.peek().is_none() {
            p.empty { "No recent keys." }
        } @else {
            div.scroll #keys-table tabindex="0" role="region" aria-labelledby="keys-caption" {
                table.stack {
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
                    tbody { @for key in keys.take(MAX_KEYS) { (row(key)) } }
                }
            }
        }
    }
}

fn row(hot: &HotKey) -> Markup {
    html! {
        tr {
            th.key-name scope="row" data-label="Key" { (key_link(&hot.rule, &hot.key, hot.state.is_some())) }
            td.name data-label="Rule" { (rule_link(&hot.rule)) }
            td.number data-label="Allowed" { (number(hot.allowed)) }
            td.number.denied-text[hot.denied > 0] data-label="Denied" { (number(hot.denied)) }
            td data-label="Remaining" { (remaining(hot.state)) }
        }
    }
}

fn remaining(known: Option<HotKeyState>) -> Markup {
    let Some(HotKeyState { remaining, limit, reset_after_ms }) = known else {
        let title = "not available: several key parts, a truncated key, a rule with plans, or a deleted rule";
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
