//! A report for people.

use tidegate::Micros;

use super::plan::Load;
use super::report::{Ended, Report, Spread};
use crate::plot::words::{number, percent, span};

impl Report {
    /// All of it as tables and sentences.
    pub fn in_words(&self) -> String {
        let mut text = self.heading();
        text += &table(&[self.count_names(), self.counts()]);
        if self.requests > 0 {
            text.push('\n');
            let mut rows = vec![spread_names(), spread("latency", &self.latency)];
            rows.extend(self.behind.as_ref().map(|behind| spread("sent late", behind)));
            text += &table(&rows);
        }
        if !self.errors.is_empty() {
            text += "\nerrors:\n";
            for errors in &self.errors {
                text +=
                    &format!("  {}  {}: {}\n", number(errors.count), errors.kind, errors.example);
            }
        }
        if let Some(note) = self.note {
            text += &format!("\nnote: {note}\n");
        }
        if let Some(verdict) = self.verdict() {
            text += &format!("\n{verdict}\n");
        }
        text
    }

    fn heading(&self) -> String {
        let plan = &self.plan;
        let zipf = plan.zipf.map(|zipf| format!(" zipf {}", thousandths(zipf))).unwrap_or_default();
        let keys = some(plan.keys, "key") + &zipf;
        let pipeline = match plan.pipeline {
            1 => String::new(),
            pipeline => format!(" with a pipeline of {pipeline}"),
        };
        let cost = match self.question.cost {
            1 => String::new(),
            cost => format!(", cost {cost}"),
        };
        let load = match plan.load {
            Load::Closed => "closed loop".into(),
            Load::Open(rate) => format!("open loop at {rate}"),
        };
        let warmup = match plan.warmup {
            Micros::ZERO => String::new(),
            warmup => format!(" after {} of warm-up", span(warmup)),
        };
        let ended = match self.ended {
            Ended::Done => String::new(),
            Ended::Stopped => format!(", stopped after {}", span(self.window)),
        };
        format!(
            "{}: {}{cost}, {keys}, seed {}\n{load}, {}{pipeline}, {}{warmup}{ended}\n\n",
            self.target,
            self.question.about,
            plan.seed,
            some(plan.connections, "connection"),
            span(plan.duration),
        )
    }

    fn count_names(&self) -> Vec<String> {
        let mut names = vec!["requests", "allowed", "denied", "errors"];
        names.extend(self.behind.map(|_| "unsent"));
        names.push("a second");
        names.into_iter().map(String::from).collect()
    }

    fn counts(&self) -> Vec<String> {
        let mut counts = vec![self.requests, self.allowed, self.denied, self.error_count()];
        counts.extend(self.behind.map(|_| self.unsent));
        counts.push(self.achieved());
        counts.into_iter().map(number).collect()
    }

    /// What became of the rate that was asked for.
    fn verdict(&self) -> Option<String> {
        let Load::Open(rate) = self.plan.load else { return None };
        let behind = self.behind.map_or(Micros::ZERO, |behind| behind.max);
        if self.kept_up()? {
            return Some(format!("kept up with {rate}; at most {} behind schedule", span(behind)));
        }
        if self.decided() == 0 {
            return Some(format!("DID NOT KEEP UP with {rate}: not one question had a decision."));
        }
        let share = percent(self.requests - self.unsent, rate.due_before(self.elapsed));
        Some(format!(
            "DID NOT KEEP UP with {rate}: {}/s ({share}), up to {} behind schedule, {} never sent.\n\
             Ask for less, or raise --connections if the target is idle: each waits for its answer.",
            number(self.achieved()),
            span(behind),
            number(self.unsent),
        ))
    }
}

/// `1 key`, `1,000 keys`.
fn some(count: u32, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", number(count.into()))
}

/// `1100` as `1.1`.
pub(super) fn thousandths(number: u32) -> String {
    let text = format!("{}.{:03}", number / 1_000, number % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').into()
}

fn spread_names() -> Vec<String> {
    let percentiles = Spread::PERCENTILES.map(|(_, name)| name);
    let names = ["", "mean"].into_iter().chain(percentiles).chain(["max"]);
    names.map(String::from).collect()
}

fn spread(name: &str, of: &Spread) -> Vec<String> {
    let times = [of.mean].into_iter().chain(of.percentiles).chain([of.max]);
    [name.to_string()].into_iter().chain(times.map(span)).collect()
}

/// Rows of one length, each column as wide as its widest cell; numbers end on the right.
fn table(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::Plan;
    use crate::bench::question::{About, Question};
    use crate::bench::report::Errors;

    const SECOND: Micros = Micros::from_secs(1);

    fn report(rate: &str, window: Micros) -> Report {
        let (about, times) = (About::Rule("few".into()), [SECOND; Spread::PERCENTILES.len()]);
        let spread = Spread { min: SECOND, mean: SECOND, percentiles: times, max: SECOND };
        Report {
            target: "http://h:1".into(),
            question: Question { about, cost: 1, keys: 1 },
            plan: Plan {
                load: Load::Open(rate.parse().unwrap()),
                connections: 1,
                pipeline: 1,
                duration: window,
                warmup: Micros::ZERO,
                patience: SECOND,
                keys: 1,
                zipf: None,
                seed: 1,
            },
            ended: Ended::Done,
            window,
            elapsed: window,
            requests: 90,
            allowed: 60,
            denied: 30,
            errors: Vec::new(),
            unsent: 0,
            warmup_requests: 1,
            latency: spread,
            behind: Some(spread),
            lag: Micros::ZERO,
            note: None,
        }
    }

    #[test]
    fn a_slow_answer_is_no_lag_and_what_was_sent_late_is() {
        let minute = Micros::from_secs(60);
        let good = Report { elapsed: minute.saturating_add(SECOND), ..report("90/min", minute) };
        assert_eq!(good.kept_up(), Some(true));
        let late = Report { lag: SECOND, ..good.clone() };
        let unsent = Report { unsent: 45, allowed: 15, elapsed: minute, ..good.clone() };
        let errors = vec![Errors { kind: "connect".into(), count: 90, example: String::new() }];
        let failed = Report { allowed: 0, denied: 0, errors, ..good.clone() };
        let nothing = Report { requests: 0, allowed: 0, denied: 0, ..good.clone() };
        for (report, kept_up, words) in [
            (good, Some(true), "kept up with 90/m; at most 1s behind schedule"),
            (late, Some(false), "DID NOT KEEP UP with 90/m: 1/s (97.8 %), up to 1s behind"),
            (unsent, Some(false), "DID NOT KEEP UP with 90/m: 0/s (50.0 %), up to 1s behind"),
            (failed, Some(false), "not one question had a decision"),
            (nothing, None, ""),
        ] {
            assert_eq!(report.kept_up(), kept_up, "{report:?}");
            let told = report.verdict().unwrap_or_default();
            assert!(told.contains(words) && told.is_empty() == words.is_empty(), "{told}");
        }
    }
}
