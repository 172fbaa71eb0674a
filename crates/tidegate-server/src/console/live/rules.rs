//! The rules, a little chart for each.

use maud::{Markup, PreEscaped, html};

use super::sections::rate;
use super::shared::Seen;
use super::view::{Sort, View};
use crate::live::MAX_SECONDS;
use crate::live::snapshot::{RuleTraffic, Traffic};
use crate::plot::{Flow, number};

/// Seconds in a column of a little chart.
const EACH: usize = 6;

pub(super) fn section(seen: &Seen, view: &View) -> Markup {
    let fits = |rule: &&RuleTraffic| rule.name.contains(&view.filter);
    let mut rules: Vec<&RuleTraffic> = seen.snapshot.rules.iter().filter(fits).collect();
    sort(&mut rules, view.sort);
    let pages = rules.len().div_ceil(View::RULES).max(1);
    let page = view.page.min(pages - 1);
    let shown = rules.iter().skip(page * View::RULES).take(View::RULES);
    html! {
        @if rules.is_empty() {
            p.empty {
                @if view.filter.is_empty() { "Nobody has asked in the last 15 minutes." }
                @else { "No rule with \u{201c}" (view.filter) "\u{201d} in its name was asked in the last 15 minutes." }
            }
        }
        ul.cards { @for rule in shown { (card(seen, rule)) } }
        (others(seen, view, pages, page))
    }
}

/// The title, and what somebody wants to see.
pub(super) fn bar(view: &View) -> Markup {
    html! {
        div.bar {
            h2 #rules-title { "Rules" }
            form.filter method="get" action="/" role="search" {
                label.hidden for="filter" { "Rules whose name contains" }
                input #filter type="search" name="filter" value=(view.filter) placeholder="name contains\u{2026}"
                    spellcheck="false" autocapitalize="none";
                label.hidden for="sort" { "In which order" }
                select #sort name="sort" {
                    @for sort in Sort::ALL {
                        option value=(sort.name()) selected[sort == view.sort] { (in_words(sort)) }
                    }
                }
                button #apply type="submit" { "Show" }
            }
        }
    }
}

fn in_words(sort: Sort) -> &'static str {
    match sort {
        Sort::Busiest => "busiest first",
        Sort::Denied => "most denied first",
        Sort::Name => "by name",
    }
}

fn sort(rules: &mut [&RuleTraffic], by: Sort) {
    let sum = |series: &[u32]| series.iter().map(|count| u64::from(*count)).sum::<u64>();
    // The last quarter of an hour: cards that change places every second cannot be read.
    rules.sort_by_cached_key(|rule| {
        let series = &rule.traffic.series;
        let denied = sum(&series.denied);
        let first = match by {
            Sort::Busiest => denied + sum(&series.allowed) + sum(&series.errors),
            Sort::Denied => denied,
            Sort::Name => 0,
        };
        (std::cmp::Reverse(first), rule.name.clone())
    });
}

fn card(seen: &Seen, rule: &RuleTraffic) -> Markup {
    let Traffic { rates, series, totals } = &rule.traffic;
    let columns = |series: &[u32]| seen.columns(EACH).of(series, MAX_SECONDS);
    let (passed, denied) = (columns(&series.allowed), columns(&series.denied));
    let would_deny = columns(&series.would_deny);
    let flow = Flow { passed: &passed, denied: &denied, would_deny: &would_deny };
    let most = |series: &[u64]| series.iter().copied().max().unwrap_or(0);
    html! {
        li.card.rule {
            div.head {
                h3 { a id={ "to-" (rule.name) } href={ "/rules?filter=" (rule.name) } { (rule.name) } }
                p.rates {
                    span { (rate(rates.allowed)) span.unit { "/s" } span.hidden { " allowed" } }
                    @if rates.denied > 0.0 {
                        span.denied-text { "\u{25be}\u{2009}" (rate(rates.denied)) span.unit { "/s" } span.hidden { " denied" } }
                    }
                }
            }
            (PreEscaped(flow.spark()))
            p.foot {
                span { "up to " (number(most(&passed))) "/s" }
                @if totals.denied > 0 { span { (number(totals.denied)) " denied since the start" } }
                @if totals.would_deny > 0 { span { (number(totals.would_deny)) " would be" } }
                @if totals.errors > 0 { span.denied-text { "no answer " (number(totals.errors)) } }
                @if totals.fallback > 0 { span { "fallback " (number(totals.fallback)) } }
                @if rule.lent > 0 { span { "on lease " (number(rule.lent)) } }
            }
        }
    }
}

fn others(seen: &Seen, view: &View, pages: usize, page: usize) -> Markup {
    let link = |page: usize| format!("/{}", View { page, ..view.clone() }.query());
    let others = seen.snapshot.other.allowed.len() + seen.snapshot.other.denied.len();
    html! {
        @if pages > 1 {
            nav.pages aria-label="Pages of rules" {
                @if page > 0 { a #before rel="prev" href=(link(page - 1)) { "\u{2190} Before" } }
                span { "Page " (page + 1) " of " (pages) }
                @if page + 1 < pages { a #after rel="next" href=(link(page + 1)) { "After \u{2192}" } }
            }
        }
        @if others > 0 {
            p.muted { "Rules beyond the 512 busiest are in the sum above, and not here." }
        }
    }
}
