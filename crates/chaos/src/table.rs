//! Figures, each beside the bound that it has to keep.

use std::fmt::{self, Display};
use std::io::{Write as _, stdout};
use std::time::Duration;

/// What one failure came to.
pub(crate) struct Table {
    title: String,
    rows: Vec<Row>,
}

struct Row {
    what: String,
    figure: String,
    bound: String,
    verdict: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Holds,
    Broken,
    /// There is no bound: it is only told.
    Told,
    Skipped,
}

impl Table {
    pub(crate) fn new(title: &str) -> Self {
        Self { title: title.to_owned(), rows: Vec::new() }
    }

    /// A figure that may be this large.
    pub(crate) fn at_most<T: PartialOrd + Figure>(&mut self, what: &str, figure: T, bound: T) {
        let holds = figure <= bound;
        self.push(what, figure.shown(), format!("<= {}", bound.shown()), holds);
    }

    /// A figure that has to be this large.
    pub(crate) fn at_least<T: PartialOrd + Figure>(&mut self, what: &str, figure: T, bound: T) {
        let holds = figure >= bound;
        self.push(what, figure.shown(), format!(">= {}", bound.shown()), holds);
    }

    /// A figure that has to be just this.
    pub(crate) fn exactly<T: PartialEq + Figure>(&mut self, what: &str, figure: T, bound: T) {
        let holds = figure == bound;
        self.push(what, figure.shown(), format!("= {}", bound.shown()), holds);
    }

    /// Something that is so or not.
    pub(crate) fn so(&mut self, what: &str, figure: impl Display, so: bool) {
        self.push(what, figure.to_string(), "so".to_owned(), so);
    }

    /// A figure without a bound.
    pub(crate) fn tell(&mut self, what: &str, figure: impl Display) {
        self.row(what, figure.to_string(), String::new(), Verdict::Told);
    }

    /// What could not be tried here.
    pub(crate) fn skip(&mut self, what: &str, why: &str) {
        self.row(what, why.to_owned(), String::new(), Verdict::Skipped);
    }

    pub(crate) fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.verdict != Verdict::Broken)
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
        self.row(what, figure, bound, if holds { Verdict::Holds } else { Verdict::Broken });
    }

    fn row(&mut self, what: &str, figure: String, bound: String, verdict: Verdict) {
        self.rows.push(Row { what: what.to_owned(), figure, bound, verdict });
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "ok",
            Self::Broken => "FAILED",
            Self::Told => "",
            Self::Skipped => "skipped",
        })
    }
}

/// A number that knows its unit.
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
        let mut table = Table::new("t");
        table.at_most("a", 3, 3);
        table.at_least("b", 3, 3);
        table.exactly("c", Duration::from_millis(1), Duration::from_millis(1));
        table.tell("d", "as it is");
        table.skip("e", "no root");
        assert!(table.holds());
        for broken in [
            |table: &mut Table| table.at_most("f", 4, 3),
            |table: &mut Table| table.at_least("f", 2, 3),
            |table: &mut Table| table.exactly("f", 2, 3),
            |table: &mut Table| table.so("f", "no", false),
        ] {
            let mut table = Table::new("t");
            table.at_most("a", 3, 3);
            broken(&mut table);
            assert!(!table.holds());
        }
    }
}
