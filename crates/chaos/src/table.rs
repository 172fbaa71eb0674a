//! A table of figures and their bounds.

use std::fmt::{self, Display};
use std::io::{Write as _, stdout};
use std::time::Duration;

use testkit::timing::goals_are_bounds;

/// Figures of one experiment.
pub(crate) struct FigureTable {
    title: String,
    rows: Vec<Row>,
}

struct Row {
    what: String,
    figure: String,
    bound: String,
    verdict: CheckResult,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckResult {
    Holds,
    Broken,
    /// Above a goal that only an idle machine has to meet.
    Late,
    /// No bound.
    Reported,
    Skipped,
}

impl FigureTable {
    pub(crate) fn new(title: &str) -> Self {
        Self { title: title.to_owned(), rows: Vec::new() }
    }

    /// A figure with an upper bound.
    pub(crate) fn at_most<T: PartialOrd + Figure>(&mut self, what: &str, figure: T, bound: T) {
        let holds = figure <= bound;
        self.push(what, figure.shown(), format!("<= {}", bound.shown()), holds);
    }

    /// A figure that depends on the speed of the machine. The goal is a bound with
    /// `TIDEGATE_TIMING=1`.
    pub(crate) fn goal<T: PartialOrd + Figure>(&mut self, what: &str, figure: T, goal: T) {
        let verdict = match figure <= goal {
            true => CheckResult::Holds,
            false if goals_are_bounds() => CheckResult::Broken,
            false => CheckResult::Late,
        };
        self.row(what, figure.shown(), format!("<= {}", goal.shown()), verdict);
    }

    /// A figure with a lower bound.
    pub(crate) fn at_least<T: PartialOrd + Figure>(&mut self, what: &str, figure: T, bound: T) {
        let holds = figure >= bound;
        self.push(what, figure.shown(), format!(">= {}", bound.shown()), holds);
    }

    /// A figure with an exact value.
    pub(crate) fn exactly<T: PartialEq + Figure>(&mut self, what: &str, figure: T, bound: T) {
        let holds = figure == bound;
        self.push(what, figure.shown(), format!("= {}", bound.shown()), holds);
    }

    /// A claim that holds or not.
    pub(crate) fn claim(&mut self, what: &str, figure: impl Display, holds: bool) {
        self.push(what, figure.to_string(), "holds".to_owned(), holds);
    }

    /// A figure without a bound.
    pub(crate) fn report(&mut self, what: &str, figure: impl Display) {
        self.row(what, figure.to_string(), String::new(), CheckResult::Reported);
    }

    /// An experiment that cannot run here.
    pub(crate) fn skip(&mut self, what: &str, why: &str) {
        self.row(what, why.to_owned(), String::new(), CheckResult::Skipped);
    }

    pub(crate) fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.verdict != CheckResult::Broken)
    }

    pub(crate) fn print(&self) {
        let out = &mut stdout().lock();
        let width = |of: fn(&Row) -> &str| {
            self.rows.iter().map(|row| of(row).chars().count()).max().unwrap_or(0)
        };
        let (what, figure, bound) = (width(|r| &r.what), width(|r| &r.figure), width(|r| &r.bound));
        writeln!(out, "{}", self.title).unwrap();
        for row in &self.rows {
            let line = format!(
                "  {:what$}  {:>figure$}  {:bound$}  {}",
                row.what, row.figure, row.bound, row.verdict
            );
            writeln!(out, "{}", line.trim_end()).unwrap();
        }
    }

    fn push(&mut self, what: &str, figure: String, bound: String, holds: bool) {
        self.row(what, figure, bound, if holds { CheckResult::Holds } else { CheckResult::Broken });
    }

    fn row(&mut self, what: &str, figure: String, bound: String, verdict: CheckResult) {
        self.rows.push(Row { what: what.to_owned(), figure, bound, verdict });
    }
}

impl Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "ok",
            Self::Broken => "FAILED",
            Self::Late => "late",
            Self::Reported => "",
            Self::Skipped => "skipped",
        })
    }
}

/// A number printed with its unit.
pub(crate) trait Figure {
    fn shown(&self) -> String;
}

impl Figure for u64 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Figure for f64 {
    fn shown(&self) -> String {
        format!("{self:.2}")
    }
}

impl Figure for Duration {
    fn shown(&self) -> String {
        format!("{:.2} ms", self.as_secs_f64() * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_holds_until_one_bound_is_broken() {
        let mut table = FigureTable::new("t");
        table.at_most("a", 3, 3);
        table.at_least("b", 3, 3);
        table.exactly("c", Duration::from_millis(1), Duration::from_millis(1));
        table.report("d", "no bound");
        table.skip("e", "no root");
        if !goals_are_bounds() {
            table.goal("f", 4, 3);
        }
        assert!(table.holds());
        for broken in [
            |table: &mut FigureTable| table.at_most("f", 4, 3),
            |table: &mut FigureTable| table.at_least("f", 2, 3),
            |table: &mut FigureTable| table.exactly("f", 2, 3),
            |table: &mut FigureTable| table.claim("f", "no", false),
        ] {
            let mut table = FigureTable::new("t");
            table.at_most("a", 3, 3);
            broken(&mut table);
            assert!(!table.holds());
        }
    }
}
