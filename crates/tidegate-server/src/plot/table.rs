//! The numbers of a report as a table.

use tidegate::Micros;
use tidegate::simulate::{LimitRun, Report, Run};

use super::words::{fraction, number, percent, shortened, span, wait};

/// How long a limit may be written.
const MOST_LETTERS: usize = 60;

/// What was offered, and a row for each candidate; for each of its limits as well, if it has several.
pub(super) fn table(report: &Report) -> String {
    let keys = if report.keys == 1 { "key" } else { "keys" };
    let offered = format!("{} requests of {} {keys}", number(report.offered), number(report.keys));
    let mut text = format!(
        "{}\n{offered} in {}, seed {}\n\n",
        report.traffic,
        span(report.axis.span),
        report.seed
    );
    let columns = Columns {
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
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let room = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            let space = if column == 0 { "" } else { "  " };
            // Names begin on the left, numbers end on the right.
            line +=
                &if column == 0 { format!("{cell}{room}") } else { format!("{space}{room}{cell}") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Which columns there are beside those that are always there.
struct Columns {
    delay: bool,
    fairness: bool,
}

impl Columns {
    fn head(&self) -> Vec<String> {
        let mut row = vec!["limit", "admitted", "", "denied", "wait"];
        row.extend(self.delay.then_some("delay"));
        row.push("worst, of promised");
        row.extend(if self.fairness { &["fair", "least", "most"][..] } else { &[] });
        row.into_iter().map(String::from).collect()
    }

    fn run(&self, report: &Report, run: &Run) -> Vec<String> {
        let mut row = vec![
            shortened(&run.candidate.to_string(), MOST_LETTERS),
            number(run.admitted),
            percent(run.admitted, report.offered),
            number(run.denied),
            run.longest_wait.map_or_else(|| "-".into(), wait),
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

    fn limit(&self, run: &LimitRun) -> Vec<String> {
        let name = format!("  {}", shortened(&run.limit.to_string(), MOST_LETTERS - 2));
        let mut row = vec![name, String::new(), String::new(), number(run.denied), String::new()];
        row.extend(self.delay.then(String::new));
        row.push(window(run));
        row
    }
}

fn delay(delay: Micros) -> String {
    if delay == Micros::ZERO { "-".into() } else { span(delay) }
}

/// The worst window, of what is promised for it.
fn window(run: &LimitRun) -> String {
    let broken = if run.keeps_promise() { "" } else { "BROKEN: " };
    let (worst, promised) = (number(run.worst.admitted), number(run.promise.at_most));
    format!("{broken}{worst} of {promised} in {}", span(run.promise.window))
}
