//! The result of a simulation: chart, table and export.

use maud::{Markup, PreEscaped, html};
use tidegate::simulate::{CallProfile, CandidateReport, LimitReport, MethodReport, Report};
use tidegate::{Micros, Span};

use super::export;
use crate::chart;
use crate::text::format::{fraction, number, percent};

/// Id of the element with the result, which is replaced while the user types.
pub(super) const OUTCOME: &str = "outcome";

/// The result. It depends on the report only.
pub(super) fn results_section(report: &Report, hold: Option<Span>) -> Markup {
    html! {
        section.card.picture aria-label="Offered and admitted requests" { (PreEscaped(chart::svg_for_page(report))) }
        section aria-label="Results" { (table(report)) }
        @if let Some(calls) = report.calls {
            section aria-label="Calls that reserve" { (calls_table(report, &calls)) }
        }
        (export::copies(report, hold))
    }
}

/// Optional columns of the table.
struct ResultColumns {
    delay: bool,
    fairness: bool,
}

fn table(report: &Report) -> Markup {
    let columns = ResultColumns {
        delay: report.runs.iter().any(|run| run.longest_delay > Micros::ZERO),
        fairness: report.runs.iter().any(|run| run.fairness.is_some()),
    };
    let keys = if report.keys == 1 { " key in " } else { " keys in " };
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby="numbers" {
            table {
                caption #numbers {
                    (number(report.offered)) " requests of " (number(report.keys)) (keys) (report.axis.span)
                    ", seed " (report.seed)
                }
                thead {
                    tr {
                        th scope="col" { "Limit" }
                        th.number scope="col" { "Admitted" }
                        th.number scope="col" { "Share" }
                        th.number scope="col" { "Denied" }
                        th.number scope="col" { "Longest wait" }
                        @if columns.delay { th.number scope="col" { "Longest delay" } }
                        th.number scope="col" { "Worst window / guaranteed" }
                        @if columns.fairness {
                            th.number scope="col" { abbr title="Jain's fairness index: 1 if all keys have the same share" { "Fairness" } }
                            th.number scope="col" { "Least" }
                            th.number scope="col" { "Most" }
                        }
                    }
                }
                tbody {
                    @for run in &report.runs {
                        (row(report, run, &columns))
                        @if run.limits.len() > 1 { @for limit in &run.limits { (part(limit, &columns)) } }
                    }
                }
            }
        }
    }
}

/// The calls of each candidate, by every method.
fn calls_table(report: &Report, calls: &CallProfile) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby="calls-caption" {
            table {
                caption #calls-caption { "The same requests as calls: " (calls) }
                thead {
                    tr {
                        th scope="col" { "Limit" }
                        th scope="col" { "Method" }
                        th.number scope="col" { "Admitted" }
                        th.number scope="col" { "Denied" }
                        th.number scope="col" { "Cost" }
                        th.number scope="col" { "Worst window / guaranteed" }
                    }
                }
                tbody {
                    @for run in &report.runs {
                        @for method in run.calls.iter().flatten() { (calls_row(run, method)) }
                    }
                }
            }
        }
    }
}

fn calls_row(run: &CandidateReport, method: &MethodReport) -> Markup {
    html! {
        tr {
            th scope="row" { code { (run.candidate) } }
            td { (method.method.name()) }
            td.number { (number(method.admitted)) }
            td.number { (number(method.denied)) }
            td.number { (number(method.consumed)) }
            td.number {
                @for (limit, worst) in run.limits.iter().zip(&method.worst) {
                    @if limit.limit.lease().is_none() {
                        @let is_over = *worst > limit.promise.at_most;
                        span.denied-text[is_over] { (number(*worst)) }
                        " of " (number(limit.promise.at_most)) " in " (limit.promise.window) " "
                    }
                }
            }
        }
    }
}

fn row(report: &Report, run: &CandidateReport, columns: &ResultColumns) -> Markup {
    html! {
        tr {
            th scope="row" { code { (run.candidate) } }
            td.number { (number(run.admitted)) }
            td.number { (percent(run.admitted, report.offered)) }
            td.number { (number(run.denied)) }
            td.number { @if let Some(longest) = run.longest_wait { (longest) } @else { "\u{2013}" } }
            @if columns.delay { td.number { (delay(run.longest_delay)) } }
            td.number { @if let [limit] = &*run.limits { (window(limit)) } }
            @if columns.fairness {
                @if let Some(fair) = run.fairness {
                    td.number { (fraction(fair.index)) }
                    td.number { (percent(fair.least, 1_000_000)) }
                    td.number { (percent(fair.most, 1_000_000)) }
                } @else { td {} td {} td {} }
            }
        }
    }
}

/// One limit of several that are decided together.
fn part(limit: &LimitReport, columns: &ResultColumns) -> Markup {
    html! {
        tr.part {
            th scope="row" { code { (limit.limit) } }
            td {} td {}
            td.number { (number(limit.denied)) }
            td {}
            @if columns.delay { td {} }
            td.number { (window(limit)) }
            @if columns.fairness { td {} td {} td {} }
        }
    }
}

fn window(limit: &LimitReport) -> Markup {
    let (worst, guaranteed) = (number(limit.worst.admitted), number(limit.promise.at_most));
    html! {
        @if !limit.within_guarantee() { strong.denied-text { "violated: " } }
        (worst) " of " (guaranteed) " in " (limit.promise.window)
    }
}

fn delay(delay: Micros) -> String {
    if delay == Micros::ZERO { "\u{2013}".into() } else { delay.to_string() }
}
