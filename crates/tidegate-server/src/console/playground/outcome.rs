//! What came of a trial: the picture, the numbers, and how to take it along.

use maud::{Markup, PreEscaped, html};
use tidegate::simulate::{LimitRun, Report, Run};
use tidegate::{Micros, Span};

use super::copies;
use crate::plot::{self, fraction, number, percent, span, wait};

/// All of it. The same report gives the same text.
pub(super) fn told(report: &Report, hold: Option<Span>) -> Markup {
    html! {
        section.card.picture aria-label="Offered against admitted" { (PreEscaped(plot::svg_for_page(report))) }
        section aria-label="In numbers" { (table(report)) }
        (copies::copies(report, hold))
    }
}

/// Which columns there are beside those that are always there.
struct Columns {
    delay: bool,
    fairness: bool,
}

fn table(report: &Report) -> Markup {
    let columns = Columns {
        delay: report.runs.iter().any(|run| run.longest_delay > Micros::ZERO),
        fairness: report.runs.iter().any(|run| run.fairness.is_some()),
    };
    let keys = if report.keys == 1 { " key in " } else { " keys in " };
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby="numbers" {
            table {
                caption #numbers {
                    (number(report.offered)) " requests of " (number(report.keys)) (keys) (span(report.axis.span))
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
                        th.number scope="col" { "Worst window, of promised" }
                        @if columns.fairness {
                            th.number scope="col" { abbr title="Jain's index of the shares: 1 if all keys are served alike" { "Fair" } }
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

fn row(report: &Report, run: &Run, columns: &Columns) -> Markup {
    html! {
        tr {
            th scope="row" { code { (run.candidate) } }
            td.number { (number(run.admitted)) }
            td.number { (percent(run.admitted, report.offered)) }
            td.number { (number(run.denied)) }
            td.number { @if let Some(longest) = run.longest_wait { (wait(longest)) } @else { "\u{2013}" } }
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

/// One limit of several that are decided in one step.
fn part(limit: &LimitRun, columns: &Columns) -> Markup {
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

fn window(limit: &LimitRun) -> Markup {
    let (worst, promised) = (number(limit.worst.admitted), number(limit.promise.at_most));
    html! {
        @if !limit.keeps_promise() { strong.denied-text { "broken: " } }
        (worst) " of " (promised) " in " (span(limit.promise.window))
    }
}

fn delay(delay: Micros) -> String {
    if delay == Micros::ZERO { "\u{2013}".into() } else { span(delay) }
}
