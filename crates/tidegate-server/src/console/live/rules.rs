//! The rules, with a small chart each.

use maud::{Markup, PreEscaped, html};
use tidegate_config::RuleFile;

use super::super::links::{rule_link, rule_path};
use super::super::page::page_links;
use super::super::try_command::try_command;
use super::chart_columns::ChartColumns;
use super::format::rate;
use super::query::{LiveQuery, RuleOrder};
use crate::chart::RateChart;
use crate::observe::traffic::MAX_SECONDS;
use crate::observe::traffic::snapshot::{CallStats, RuleTraffic, TrafficSnapshot};
use crate::policy::RulePage;
use crate::text::format::number;

/// Seconds per column of a small chart.
const COLUMN_SECONDS: usize = 6;

/// Upper bound of the rules that are listed while there are no calls.
pub(super) const MAX_EXAMPLES: usize = 8;

/// The rules with recent calls. `policy` has some rules if there are none.
pub(super) fn section(snapshot: &TrafficSnapshot, query: &LiveQuery, policy: &RulePage) -> Markup {
    let matches = |rule: &&RuleTraffic| rule.name.contains(&query.filter);
    let mut rules: Vec<&RuleTraffic> = snapshot.rules.iter().filter(matches).collect();
    sort(&mut rules, query.sort);
    let pages = rules.len().div_ceil(LiveQuery::PAGE_LEN).max(1);
    let page = query.page.min(pages - 1);
    let shown = rules.iter().skip(page * LiveQuery::PAGE_LEN).take(LiveQuery::PAGE_LEN);
    html! {
        @if rules.is_empty() {
            p.empty {
                @if query.filter.is_empty() && policy.rules.is_empty() { "No calls in the last 15 minutes." }
                @else if query.filter.is_empty() { "No calls in the last 15 minutes. Try one of the rules:" }
                @else { "No rule with \u{201c}" (query.filter) "\u{201d} in its name was called in the last 15 minutes." }
            }
        }
        @if rules.is_empty() && query.filter.is_empty() { (examples(policy)) }
        ul.cards { @for rule in shown { (card(snapshot, rule)) } }
        (footer(snapshot, query, pages, page))
    }
}

/// Rules that can be called, each with a command.
fn examples(policy: &RulePage) -> Markup {
    html! {
        ul.examples {
            @for (i, listed) in policy.rules.iter().enumerate() {
                li.card {
                    (rule_link(&listed.file.name)) " " span.muted { (limits(&listed.file)) }
                    (try_command(&listed.file, &format!("try-{i}")))
                }
            }
        }
        @if policy.all > policy.rules.len() { p.muted { a #all-rules href="/rules" { "All " (number(policy.all as u64)) " rules" } } }
    }
}

fn limits(rule: &RuleFile) -> String {
    let plan = |(name, limits): (&String, &Vec<String>)| format!("{name}: {}", limits.join(" + "));
    match rule.plans.is_empty() {
        true => rule.limits.join(" + "),
        false => rule.plans.iter().map(plan).collect::<Vec<_>>().join(", "),
    }
}

/// The title and the filter.
pub(super) fn bar(query: &LiveQuery) -> Markup {
    html! {
        div.bar {
            h2 #rules-title { "Rules" }
            form.filter method="get" action="/" role="search" {
                label.hidden for="filter" { "Rules whose name contains" }
                input #filter type="search" name="filter" value=(query.filter) placeholder="name contains\u{2026}"
                    spellcheck="false" autocapitalize="none";
                label.hidden for="sort" { "Order" }
                select #sort name="sort" {
                    @for sort in RuleOrder::ALL {
                        option value=(sort.name()) selected[sort == query.sort] { (label(sort)) }
                    }
                }
                button #apply type="submit" { "Apply" }
            }
        }
    }
}

fn label(sort: RuleOrder) -> &'static str {
    match sort {
        RuleOrder::Busiest => "busiest first",
        RuleOrder::Denied => "most denied first",
        RuleOrder::Name => "by name",
    }
}

fn sort(rules: &mut [&RuleTraffic], by: RuleOrder) {
    let sum = |series: &[u32]| series.iter().map(|count| u64::from(*count)).sum::<u64>();
    // By the last 15 minutes: cards that change their position every second cannot be read.
    rules.sort_by_cached_key(|rule| {
        let series = &rule.traffic.series;
        let denied = sum(&series.denied);
        let first = match by {
            RuleOrder::Busiest => denied + sum(&series.allowed) + sum(&series.errors),
            RuleOrder::Denied => denied,
            RuleOrder::Name => 0,
        };
        (std::cmp::Reverse(first), rule.name.clone())
    });
}

fn card(snapshot: &TrafficSnapshot, rule: &RuleTraffic) -> Markup {
    let CallStats { rates, series, totals } = &rule.traffic;
    let columns =
        |series: &[u32]| ChartColumns::at(snapshot, COLUMN_SECONDS).of(series, MAX_SECONDS);
    let (passed, denied) = (columns(&series.allowed), columns(&series.denied));
    let would_deny = columns(&series.would_deny);
    let flow = RateChart { passed: &passed, denied: &denied, would_deny: &would_deny };
    let max = |series: &[u64]| series.iter().copied().max().unwrap_or(0);
    html! {
        li.card.rule {
            div.head {
                h3 { a id={ "to-" (rule.name) } href=(rule_path(&rule.name)) { (rule.name) } }
                p.rates {
                    span { (rate(rates.allowed)) span.unit { "/s" } span.hidden { " allowed" } }
                    @if rates.denied > 0.0 {
                        span.denied-text { "\u{25be}\u{2009}" (rate(rates.denied)) span.unit { "/s" } span.hidden { " denied" } }
                    }
                }
            }
            (PreEscaped(flow.spark()))
            p.foot {
                span { "up to " (number(max(&passed))) "/s" }
                @if totals.denied > 0 { span { (number(totals.denied)) " denied since the start" } }
                @if totals.would_deny > 0 { span { (number(totals.would_deny)) " would deny" } }
                @if totals.errors > 0 { span.denied-text { "errors " (number(totals.errors)) } }
                @if totals.fallback > 0 { span { "fallback " (number(totals.fallback)) } }
                @if rule.lent > 0 { span { "leased " (number(rule.lent)) } }
            }
        }
    }
}

fn footer(snapshot: &TrafficSnapshot, query: &LiveQuery, pages: usize, page: usize) -> Markup {
    let link = |nth: usize| format!("/{}", LiveQuery { page: nth - 1, ..query.clone() }.encoded());
    let others = snapshot.other.allowed.len() + snapshot.other.denied.len();
    html! {
        (page_links(page + 1, pages, link))
        @if others > 0 {
            p.muted { "Only the 512 busiest rules are listed; the total includes all." }
        }
    }
}
