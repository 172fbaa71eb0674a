//! The parts of the page.

use std::sync::Arc;

use maud::{Markup, PreEscaped, html};
use tidegate::Micros;

use super::super::page::rough;
use super::shared::{Sections, Seen};
use super::view::View;
use super::{denials, keys, rules};
use crate::live::MAX_SECONDS;
use crate::live::snapshot::{Snapshot, StoreState, Traffic};
use crate::plot::{Flow, number, span};

/// Seconds in a column of the large chart.
const EACH: usize = 3;

/// All parts, in order.
pub(super) fn all(seen: &Seen, view: &View) -> Sections {
    let made = |markup: Markup| Arc::<str>::from(markup.into_string());
    [
        ("flow", made(flow(seen))),
        ("state", made(state(seen))),
        ("rules", made(rules::section(seen, view))),
        ("keys", made(keys::section(seen))),
        ("denials", made(denials::section(seen))),
    ]
    .into()
}

/// Everything together.
fn flow(seen: &Seen) -> Markup {
    let Traffic { rates, series, .. } = &seen.snapshot.total;
    let columns = |series: &[u32]| seen.columns(EACH).of(series, MAX_SECONDS);
    let (passed, denied) = (columns(&series.allowed), columns(&series.denied));
    let would_deny = columns(&series.would_deny);
    let flow = Flow { passed: &passed, denied: &denied, would_deny: &would_deny };
    let words = [(0, "15 min ago"), (333, "10 min"), (667, "5 min"), (1_000, "now")];
    html! {
        h2.hidden #flow-title { "All rules together" }
        dl.headline {
            div { dt { "allowed" } dd.big { (rate(rates.allowed)) span.unit { "/s" } } }
            div.bad[rates.denied > 0.0] { dt { "denied" } dd.big { (rate(rates.denied)) span.unit { "/s" } } }
            @if rates.would_deny > 0.0 {
                div { dt { "shadow limits would deny" } dd.big { (rate(rates.would_deny)) span.unit { "/s" } } }
            }
            @if rates.errors > 0.0 {
                div.bad { dt { "without an answer" } dd.big { (rate(rates.errors)) span.unit { "/s" } } }
            }
            (latency(&seen.snapshot))
        }
        div.chart { (PreEscaped(flow.chart(&words))) }
        p.legend {
            span { span.key.passed {} "allowed a second, above the line" }
            span { span.key.denied {} "denied, below it" }
            @if would_deny.iter().any(|count| *count > 0) {
                span { span.key.would {} "allowed, though a shadow limit would have denied it" }
            }
        }
    }
}

fn latency(snapshot: &Snapshot) -> Markup {
    let micros = |micros: Option<u64>| {
        micros.map_or("\u{2013}".into(), |us| {
            span(Micros::new(us)).replace("us", " \u{b5}s").replace("ms", " ms")
        })
    };
    let latency = &snapshot.latency;
    html! {
        div { dt { "half answered within" } dd.big { (micros(latency.p50_us)) } }
        div { dt { "99 % within" } dd.big { (micros(latency.p99_us)) } }
    }
}

/// The store and the server.
fn state(seen: &Seen) -> Markup {
    let Snapshot { store, policy, connections, total, rules, .. } = &seen.snapshot;
    let lent: u64 = rules.iter().map(|rule| rule.lent).sum();
    let age = seen.now.saturating_sub(Micros::from_secs(policy.loaded_at));
    html! {
        h2.hidden #state-title { "Store and server" }
        dl.tiles {
            div.tile.bad[!store.up] {
                dt { "Store" }
                dd { @if store.up { "answers" } @else { "does not answer" } }
            }
            div.tile.bad[store.circuit.as_deref().is_some_and(|circuit| circuit != "closed")] {
                dt { "Breaker" }
                dd { (breaker(store)) }
            }
            div.tile.bad[total.rates.fallback > 0.0] {
                dt { "Fallback" }
                dd { @if total.rates.fallback > 0.0 { (rate(total.rates.fallback)) "/s" } @else { "none" } }
            }
            div.tile { dt { "On lease" } dd { (number(lent)) } }
            div.tile {
                dt { "Keys" }
                dd {
                    (store.tracked_keys.map_or("\u{2013}".into(), number))
                    span.muted { " in " (bytes(store.memory_bytes)) }
                }
            }
            div.tile {
                dt { "Connections" }
                dd { abbr title="HTTP, Redis protocol, gRPC" {
                    (connections.http) " \u{b7} " (connections.resp) " \u{b7} " (connections.grpc)
                } }
            }
            div.tile.bad[policy.error.is_some()] {
                dt { "Policy" }
                dd {
                    a #policy-link href="/rules" { (number(policy.rules as u64)) @if policy.rules == 1 { " rule" } @else { " rules" } }
                    @if policy.error.is_some() { ", the file has mistakes" } @else { span.muted { ", " (rough(age)) " old" } }
                }
            }
            div.tile { dt { "Up" } dd { (rough(Micros::from_secs(seen.snapshot.uptime_s))) } }
        }
        @if let Some(warning) = &store.warning { p.wrong { (warning) } }
        @if let Some(reset) = &store.last_reset {
            p.wrong { "The store may have lost what it had counted, " (number(store.resets)) "\u{d7}; lately: " (reset) }
        }
    }
}

fn breaker(store: &StoreState) -> Markup {
    html! {
        @match store.circuit.as_deref() {
            None => "not needed",
            Some("closed") => "closed",
            Some("open") => "open: the store is not asked",
            Some("half-open") => "half open: the store is tried",
            Some(other) => (other),
        }
    }
}

/// Calls a second, with a decimal while there are few.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        rate if rate <= 0.0 => "0".into(),
        rate if rate < 0.1 => "<0.1".into(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate => number(rate.round() as u64),
    }
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{} B", number(bytes)),
        10_240..10_485_760 => format!("{} KiB", number(bytes >> 10)),
        _ => format!("{} MiB", number(bytes >> 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_long_as_they_need_to_be() {
        let rates = [0.0, 0.01, 0.1, 3.33, 9.96, 1_234.4].map(rate);
        assert_eq!(rates, ["0", "<0.1", "0.1", "3.3", "10", "1,234"]);
        assert_eq!([bytes(5), bytes(20_480), bytes(20 << 20)], ["5 B", "20 KiB", "20 MiB"]);
    }
}
