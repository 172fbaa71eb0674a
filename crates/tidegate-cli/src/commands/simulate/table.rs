//! Report as a table.

use tidegate::Micros;
use tidegate::simulate::{CandidateReport, LimitReport, Report};

use crate::table::{names, table};
use tidegate_server::internal::text::format::{fraction, number, percent, shortened};

/// Longer limits are shortened.
const MAX_CHARS: usize = 60;

/// Offered traffic, then one row per candidate, and one per limit if a candidate has several.
pub(crate) fn to_text(report: &Report) -> String {
    let keys = if report.keys == 1 { "key" } else { "keys" };
    let offered = format!("{} requests of {} {keys}", number(report.offered), number(report.keys));
    let text =
        format!("{}\n{offered} in {}, seed {}\n\n", report.traffic, report.axis.span, report.seed);
    let columns = TableColumns {
        delay: report.runs.iter().any(|run| run.longest_delay > Micros::ZERO),
        fairness: report.runs.iter().any(|run| run.fairness.is_some()),
    };
    let mut rows = vec![columns.head()];
    for run in &report.runs {
        rows.push(columns.run(report, run));
        if run.limits.len() > 1 {
            rows.extend(run.limits.iter().map(|limit| columns.limit(limit)));
        }
    }
    let calls = report.calls.map(|calls| format!("\n{calls}\n\n{}", calls_table(report)));
    text + &table(&rows, &[0]) + &calls.unwrap_or_default()
}

/// The calls of each candidate, by every method.
fn calls_table(report: &Report) -> String {
    let head = ["limit", "method", "admitted", "denied", "cost", "worst window/bound"];
    let mut rows = vec![names(head.to_vec())];
    for run in &report.runs {
        for (nth, method) in run.calls.iter().flatten().enumerate() {
            let name = if nth == 0 { run.candidate.to_string() } else { String::new() };
            let worst = run.limits.iter().zip(&method.worst);
            let worst = worst.filter(|(limit, _)| limit.limit.lease().is_none());
            let worst = worst.map(|(limit, worst)| {
                let (bound, window) = (number(limit.promise.at_most), limit.promise.window);
                format!("{} of {bound} in {window}", number(*worst))
            });
            rows.push(vec![
                shortened(&name, MAX_CHARS),
                method.method.name().into(),
                number(method.admitted),
                number(method.denied),
                number(method.consumed),
                worst.collect::<Vec<_>>().join(", "),
            ]);
        }
    }
    table(&rows, &[0, 1])
}

struct TableColumns {
    delay: bool,
    fairness: bool,
}

impl TableColumns {
    fn head(&self) -> Vec<String> {
        let mut row = vec!["limit", "admitted", "", "denied", "wait"];
        row.extend(self.delay.then_some("delay"));
        row.push("worst window/bound");
        row.extend(if self.fairness { &["fair", "least", "most"][..] } else { &[] });
        names(row)
    }

    fn run(&self, report: &Report, run: &CandidateReport) -> Vec<String> {
        let mut row = vec![
            shortened(&run.candidate.to_string(), MAX_CHARS),
            number(run.admitted),
            percent(run.admitted, report.offered),
            number(run.denied),
            run.longest_wait.map_or_else(|| "-".into(), |wait| wait.to_string()),
        ];
        row.extend(self.delay.then(|| delay(run.longest_delay)));
        row.push(match &*run.limits {
            [limit] => window(limit),
            _ => String::new(),
        });
        if let Some(fair) = run.fairness {
            row.extend([
                fraction(fair.index),
                percent(fair.least, 1_000_000),
                percent(fair.most, 1_000_000),
            ]);
        }
        row
    }

    fn limit(&self, run: &LimitReport) -> Vec<String> {
        let name = format!("  {}", shortened(&run.limit.to_string(), MAX_CHARS - 2));
        let mut row = vec![name, String::new(), String::new(), number(run.denied), String::new()];
        row.extend(self.delay.then(String::new));
        row.push(window(run));
        row
    }
}

fn delay(delay: Micros) -> String {
    if delay == Micros::ZERO { "-".into() } else { delay.to_string() }
}

/// Most permits admitted in any window, compared with the guarantee.
fn window(run: &LimitReport) -> String {
    let broken = if run.within_guarantee() { "" } else { "BROKEN: " };
    let (worst, promised) = (number(run.worst.admitted), number(run.promise.at_most));
    format!("{broken}{worst} of {promised} in {}", run.promise.window)
}
