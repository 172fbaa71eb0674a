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
use crate::observe::traffic::snapshot::{CallRates, CallSeries, RequestCounts, TrafficSnapshot};
use crate::policy::RulePage;
use crate::text::format::number;

/// Seconds per column of the large chart.
const COLUMN_SECONDS: usize = 3;

/// The sections of a page, each with its id.
pub(super) type Sections = Arc<[(&'static str, Arc<str>)]>;

/// All sections, in order.
pub(super) fn all(snapshot: &TrafficSnapshot, query: &LiveQuery, policy: &RulePage) -> Sections {
    let text = |markup: Markup| Arc::<str>::from(markup.into_string());
    [
        ("flow", text(flow(snapshot))),
        ("state", text(state(snapshot))),
        ("rules", text(rules::section(snapshot, query, policy))),
        ("keys", text(hot_keys::section(snapshot, None))),
        ("denials", text(denials::section(snapshot, None))),
    ]
    .into()
}

/// All requests. Only rules have shadow limits.
fn flow(snapshot: &TrafficSnapshot) -> Markup {
    let (requests, rules) = (&snapshot.requests, &snapshot.total);
    let RequestCounts { allowed, denied, errors } = requests.rates;
    let rates = CallRates { allowed, denied, errors, ..rules.rates };
    let RequestCounts { allowed, denied, errors } = requests.series.clone();
    let series = CallSeries { allowed, denied, errors, ..rules.series.clone() };
    html! {
        h2.hidden #flow-title { "All requests" }
        div.headlines {
            (headline(rates))
            dl.headline { (latency(snapshot)) }
        }
        (chart(snapshot, &series))
    }
}

/// The rates as large numbers.
pub(crate) fn headline(rates: CallRates) -> Markup {
    let errors = rates.errors > 0.0;
    let big = |label: &str, value: f64, is_bad: bool| {
        html! {
            div.bad[is_bad] { dt { (label) } dd.big { (rate(value)) span.unit { "/s" } } }
        }
    };
    html! {
        dl.headline {
            (big("allowed", rates.allowed, false))
            (big("denied", rates.denied, rates.denied > 0.0))
            @if rates.would_deny > 0.0 { (big("would deny (shadow)", rates.would_deny, false)) }
            @if errors { (big("errors", rates.errors, true)) }
        }
    }
}

/// The last 15 minutes. Scripts show the values of a column on hover, and with the arrow keys.
pub(crate) fn chart(snapshot: &TrafficSnapshot, series: &CallSeries) -> Markup {
    let columns =
        |series: &[u32]| ChartColumns::at(snapshot, COLUMN_SECONDS).of(series, MAX_SECONDS);
    let (passed, denied) = (columns(&series.allowed), columns(&series.denied));
    let would_deny = columns(&series.would_deny);
    let flow = RateChart { passed: &passed, denied: &denied, would_deny: &would_deny };
    let labels = [(0, "15 min ago"), (333, "10 min"), (667, "5 min"), (1_000, "now")];
    let values = |columns: &[u64]| columns.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    html! {
        div.chart #flow-chart tabindex="0" role="group" aria-label="Requests per second in the last 15 minutes; arrow keys read the values"
            data-seconds=(COLUMN_SECONDS) data-allowed=(values(&passed)) data-denied=(values(&denied)) {
            (PreEscaped(flow.chart(&labels)))
        }
        p.legend {
            span { span.key.passed {} "allowed per second (above)" }
            span { span.key.denied {} "denied (below)" }
            @if would_deny.iter().any(|count| *count > 0) {
                span { span.key.would {} "allowed, but denied by a shadow limit" }
            }
            output.readout for="flow-chart" aria-live="polite" {}
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
                dd {
                    @if store.up { "available" } @else { "unavailable" }
                    span.muted.place-name { " " (snapshot.store_address) }
                }
            }
            // A memory store has none of these.
            @if let Some(circuit) = &store.circuit {
                div.tile.bad[circuit != "closed"] { dt { "Circuit breaker" } dd { (circuit) } }
                div.tile.bad[total.rates.fallback > 0.0] {
                    dt { "Fallback" }
                    dd { @if total.rates.fallback > 0.0 { (rate(total.rates.fallback)) "/s" } @else { "none" } }
                }
                div.tile { dt { "Leased" } dd { (number(leased)) } }
            }
            div.tile {
                dt { "Keys" }
                dd {
                    (store.tracked_keys.map_or("\u{2013}".into(), number))
                    span.muted { " in " (bytes(store.memory_bytes)) }
                }
            }
            div.tile {
                dt { "Connections" }
                dd {
                    @for (protocol, open) in [
                        ("HTTP", connections.http), ("RESP", connections.resp), ("gRPC", connections.grpc),
                    ] {
                        span.count { span.muted { (protocol) } " " (number(open)) } " "
                    }
                }
            }
            div.tile.bad[policy.error.is_some()] {
                dt { "Policy" }
                dd {
                    a #policy-link href="/rules" { (number(policy.rules as u64)) @if policy.rules == 1 { " rule" } @else { " rules" } }
                    @if policy.error.is_some() { ", reload failed" } @else { span.muted { ", " (Micros::from_secs(age)) " old" } }
                }
            }
            div.tile { dt { "Uptime" } dd { (Micros::from_secs(snapshot.uptime_s)) } }
            div.tile {
                dt { "Server" }
                dd { "Tidegate " (snapshot.version) span.muted.place-name { " " (snapshot.instance) } }
            }
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
