//! Report as text.

use tidegate::Micros;

use super::load::LoadModel;
use super::report::{BenchReport, EndReason, Quantiles};
use crate::table::{names, table};
use tidegate_server::internal::text::format::{number, percent};

impl BenchReport {
    pub(crate) fn to_text(&self) -> String {
        let mut text = self.heading();
        text += &table(&[self.count_names(), self.counts()], &[]);
        if self.requests > 0 {
            text.push('\n');
            let mut rows = vec![quantile_names(), quantiles("latency", &self.latency)];
            rows.extend(self.behind.as_ref().map(|behind| quantiles("sent late", behind)));
            text += &table(&rows, &[]);
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
        let keys = count_text(plan.keys, "key") + &zipf;
        let pipeline = match plan.pipeline {
            1 => String::new(),
            pipeline => format!(", pipeline {pipeline}"),
        };
        let cost = match self.workload.cost {
            1 => String::new(),
            cost => format!(", cost {cost}"),
        };
        let load = match plan.load {
            LoadModel::Closed => "closed loop".into(),
            LoadModel::Open(rate) => format!("open loop at {rate}"),
        };
        let warmup = match plan.warmup {
            Micros::ZERO => String::new(),
            warmup => format!(" after {warmup} of warm-up"),
        };
        let ended = match self.ended {
            EndReason::Done => String::new(),
            EndReason::Stopped => format!(", stopped after {}", self.window),
        };
        format!(
            "{}: {}{cost}, {keys}, seed {}\n{load}, {}{pipeline}, {}{warmup}{ended}\n\n",
            self.target,
            self.workload.target,
            plan.seed,
            count_text(plan.connections, "connection"),
            plan.duration,
        )
    }

    fn count_names(&self) -> Vec<String> {
        let unsent = self.behind.map(|_| "unsent");
        names(
            ["requests", "allowed", "denied", "errors"]
                .into_iter()
                .chain(unsent)
                .chain(["a second"]),
        )
    }

    fn counts(&self) -> Vec<String> {
        let mut counts = vec![self.requests, self.allowed, self.denied, self.error_count()];
        counts.extend(self.behind.map(|_| self.unsent));
        counts.push(self.achieved());
        counts.into_iter().map(number).collect()
    }

    /// Whether the target kept up with the rate; `None` for a closed loop.
    fn verdict(&self) -> Option<String> {
        let LoadModel::Open(rate) = self.plan.load else { return None };
        let behind = self.behind.map_or(Micros::ZERO, |behind| behind.max);
        if self.kept_up()? {
            return Some(format!("kept up with {rate}; at most {behind} behind schedule"));
        }
        if self.decided() == 0 {
            return Some(format!("DID NOT KEEP UP with {rate}: no request was decided."));
        }
        let share = percent(self.requests - self.unsent, rate.due_before(self.elapsed));
        Some(format!(
            "DID NOT KEEP UP with {rate}: {}/s ({share}), up to {behind} behind schedule, {} never sent.\n\
             Lower --rate, or raise --connections if the target is idle.",
            number(self.achieved()),
            number(self.unsent),
        ))
    }
}

/// `1 key`, `1,000 keys`.
fn count_text(count: u32, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", number(count.into()))
}

/// `1100` as `1.1`.
pub(crate) fn thousandths(number: u32) -> String {
    let text = format!("{}.{:03}", number / 1_000, number % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').into()
}

fn quantile_names() -> Vec<String> {
    let percentiles = Quantiles::PERCENTILES.map(|(_, name)| name);
    names(["", "mean"].into_iter().chain(percentiles).chain(["max"]))
}

fn quantiles(name: &str, of: &Quantiles) -> Vec<String> {
    let times = [of.mean].into_iter().chain(of.percentiles).chain([of.max]);
    [name.to_string()].into_iter().chain(times.map(|time| time.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::load::LoadPlan;
    use crate::bench::report::ErrorCount;
    use crate::bench::workload::{Workload, WorkloadTarget};

    const SECOND: Micros = Micros::from_secs(1);

    fn report(rate: &str, window: Micros) -> BenchReport {
        let (target, times) =
            (WorkloadTarget::Rule("few".into()), [SECOND; Quantiles::PERCENTILES.len()]);
        let quantiles = Quantiles { min: SECOND, mean: SECOND, percentiles: times, max: SECOND };
        BenchReport {
            target: "http://h:1".into(),
            workload: Workload { target, cost: 1, keys: 1 },
            plan: LoadPlan {
                load: LoadModel::Open(rate.parse().unwrap()),
                connections: 1,
                pipeline: 1,
                duration: window,
                warmup: Micros::ZERO,
                timeout: SECOND,
                keys: 1,
                zipf: None,
                seed: 1,
            },
            ended: EndReason::Done,
            window,
            elapsed: window,
            requests: 90,
            allowed: 60,
            denied: 30,
            errors: Vec::new(),
            unsent: 0,
            warmup_requests: 1,
            latency: quantiles,
            behind: Some(quantiles),
            lag: Micros::ZERO,
            note: None,
        }
    }

    #[test]
    fn a_slow_response_is_not_lag_and_a_late_send_is() {
        let minute = Micros::from_secs(60);
        let kept_up =
            BenchReport { elapsed: minute.saturating_add(SECOND), ..report("90/min", minute) };
        assert_eq!(kept_up.kept_up(), Some(true));
        let late = BenchReport { lag: SECOND, ..kept_up.clone() };
        let unsent = BenchReport { unsent: 45, allowed: 15, elapsed: minute, ..kept_up.clone() };
        let errors = vec![ErrorCount { kind: "connect".into(), count: 90, example: String::new() }];
        let failed = BenchReport { allowed: 0, denied: 0, errors, ..kept_up.clone() };
        let nothing = BenchReport { requests: 0, allowed: 0, denied: 0, ..kept_up.clone() };
        for (report, kept_up, expected) in [
            (kept_up, Some(true), "kept up with 90/m; at most 1s behind schedule"),
            (late, Some(false), "DID NOT KEEP UP with 90/m: 1/s (97.8 %), up to 1s behind"),
            (unsent, Some(false), "DID NOT KEEP UP with 90/m: 0/s (50.0 %), up to 1s behind"),
            (failed, Some(false), "no request was decided"),
            (nothing, None, ""),
        ] {
            assert_eq!(report.kept_up(), kept_up, "{report:?}");
            let text = report.verdict().unwrap_or_default();
            assert!(text.contains(expected) && text.is_empty() == expected.is_empty(), "{text}");
        }
    }
}
