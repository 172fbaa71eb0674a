//! The sections of the live page.

use std::sync::Arc;

use maud::{Markup, PreEscaped, html};
use tidegate::Micros;

use super::chart_columns::ChartColumns;
use super::format::{bytes, rate};
use super::query::LiveQuery;
use super::{denials, hot_keys, rules};
use crate::chart::RateChart;
use crate::observe::traffic::MAX_SECONDS;
use crate::observe::traffic::snapshot::{CallStats, TrafficSnapshot};
use crate::text::format::number;

/// Seconds per column of the large chart.
const COLUMN_SECONDS: usize = 3;

/// The sections of a page, each with its id.
pub(super) type Sections = Arc<[(&'static str, Arc<str>)]>;

/// All sections, in order.
pub(super) fn all(snapshot: &TrafficSnapshot, query: &LiveQuery) -> Sections {
    let text = |markup: Markup| Arc::<str>::from(markup.into_string());
    [
        ("flow", text(flow(snapshot))),
        ("state", text(state(snapshot))),
        ("rules", text(rules::section(snapshot, query))),
        ("keys", text(hot_keys::section(snapshot))),
        ("denials", text(denials::section(snapshot))),
    ]
    .into()
}

/// The traffic of all rules.
fn flow(snapshot: &TrafficSnapshot) -> Markup {
    let CallStats { rates, series, .. } = &snapshot.total;
    let columns =
        |series: &[u32]| ChartColumns::at(snapshot, COLUMN_SECONDS).of(series, MAX_SECONDS);
    let (passed, denied) = (columns(&series.allowed), columns(&series.denied));
    let would_deny = columns(&series.would_deny);
    let flow = RateChart { passed: &passed, denied: &denied, would_deny: &would_deny };
    let labels = [(0, "15 min ago"), (333, "10 min"), (667, "5 min"), (1_000, "now")];
    html! {
        h2.hidden #flow-title { "All rules" }
        dl.headline {
            div { dt { "allowed" } dd.big { (rate(rates.allowed)) span.unit { "/s" } } }
            div.bad[rates.denied > 0.0] { dt { "denied" } dd.big { (rate(rates.denied)) span.unit { "/s" } } }
            @if rates.would_deny > 0.0 {
                div { dt { "would deny (shadow)" } dd.big { (rate(rates.would_deny)) span.unit { "/s" } } }
            }
            @if rates.errors > 0.0 {
                div.bad { dt { "errors" } dd.big { (rate(rates.errors)) span.unit { "/s" } } }
            }
            (latency(snapshot))
        }
        div.chart { (PreEscaped(flow.chart(&labels))) }
        p.legend {
            span { span.key.passed {} "allowed per second (above)" }
            span { span.key.denied {} "denied (below)" }
            @if would_deny.iter().any(|count| *count > 0) {
                span { span.key.would {} "allowed, but denied by a shadow limit" }
            }
        }
    }
}

fn latency(snapshot: &TrafficSnapshot) -> Markup {
    let micros =
        |micros: Option<u64>| micros.map_or("\u{2013}".into(), |us| Micros::new(us).to_string());
    let latency = &snapshot.latency;
    html! {
        div { dt { "p50" } dd.big { (micros(latency.p50_us)) } }
        div { dt { "p99" } dd.big { (micros(latency.p99_us)) } }
    }
}

/// The store and the server.
fn state(snapshot: &TrafficSnapshot) -> Markup {
    let TrafficSnapshot { store, policy, connections, total, rules, .. } = snapshot;
    let leased: u64 = rules.iter().map(|rule| rule.lent).sum();
    let age = (snapshot.at_ms / 1_000).saturating_sub(policy.loaded_at);
    html! {
        h2.hidden #state-title { "Store and server" }
        dl.tiles {
            div.tile.bad[!store.up] {
                dt { "Store" }
                dd { @if store.up { "available" } @else { "unavailable" } }
            }
            div.tile.bad[store.circuit.as_deref().is_some_and(|circuit| circuit != "closed")] {
                dt { "Circuit breaker" }
                dd { (store.circuit.as_deref().unwrap_or("none")) }
            }
            div.tile.bad[total.rates.fallback > 0.0] {
                dt { "Fallback" }
                dd { @if total.rates.fallback > 0.0 { (rate(total.rates.fallback)) "/s" } @else { "none" } }
            }
            div.tile { dt { "Leased" } dd { (number(leased)) } }
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
                    @if policy.error.is_some() { ", reload failed" } @else { span.muted { ", " (Micros::from_secs(age)) " old" } }
                }
            }
            div.tile { dt { "Uptime" } dd { (Micros::from_secs(snapshot.uptime_s)) } }
        }
        @if let Some(error) = &store.error {
            p.wrong {
                @if store.up { "Some decisions" } @else { "Decisions" }
                " do not come from the store"
                @if let Some(since) = store.since {
                    " for " (Micros::from_secs((snapshot.at_ms / 1_000).saturating_sub(since)))
                }
                ": " (error)
            }
        }
        @if let Some(warning) = &store.warning { p.wrong { (warning) } }
        @if let Some(reset) = &store.last_reset {
            p.wrong { "Store state may have been lost " (number(store.resets)) "\u{d7}; last: " (reset) }
        }
    }
}

/// A section inside the element by whose id the script replaces it.
pub(super) fn wrapped(id: &str, section: &str) -> PreEscaped<String> {
    html! { section id=(id) aria-labelledby={ (id) "-title" } { (PreEscaped(section)) } }
}
