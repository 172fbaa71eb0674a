//! Results of a benchmark.

use hdrhistogram::Histogram;
use tidegate::Micros;

use super::load::{LoadModel, LoadPlan};
use super::run::BenchRun;
use super::target::BenchTarget;
use super::workload::Workload;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BenchReport {
    /// Target URL without its password.
    pub(crate) target: String,
    pub(crate) workload: Workload,
    pub(crate) plan: LoadPlan,
    pub(crate) ended: EndReason,
    /// Measured time: from the end of the warm-up to the end of the schedule.
    pub(crate) window: Micros,
    /// From the end of the warm-up to the last response.
    pub(crate) elapsed: Micros,
    /// Sum of allowed, denied, errors and unsent.
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Requests without a decision, by kind.
    pub(crate) errors: Vec<ErrorCount>,
    /// Requests that were due and not sent within a second after the end.
    pub(crate) unsent: u64,
    /// Includes the first request, which tests whether the target responds.
    pub(crate) warmup_requests: u64,
    /// From the time a request was due until its response or error.
    pub(crate) latency: Quantiles,
    /// From the time a request was due until it was sent; `None` for a closed loop.
    pub(crate) behind: Option<Quantiles>,
    /// Time between the due time of the last request and the last send.
    pub(crate) lag: Micros,
    pub(crate) note: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndReason {
    Done,
    /// By a signal, before the end of the plan.
    Stopped,
}

/// Errors of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ErrorCount {
    pub(crate) kind: String,
    pub(crate) count: u64,
    /// Message of one of them.
    pub(crate) example: String,
}

/// Distribution of times, exact to three digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quantiles {
    pub(crate) min: Micros,
    /// Rounded up.
    pub(crate) mean: Micros,
    /// In the order of [`Quantiles::PERCENTILES`].
    pub(crate) percentiles: [Micros; Quantiles::PERCENTILES.len()],
    pub(crate) max: Micros,
}

impl Quantiles {
    /// Quantile in ten-thousandths, and its name.
    pub(crate) const PERCENTILES: [(u32, &'static str); 5] =
        [(5_000, "p50"), (9_000, "p90"), (9_900, "p99"), (9_990, "p99.9"), (9_999, "p99.99")];

    fn of(times: &Histogram<u64>) -> Self {
        let at = |(share, _)| Micros::new(times.value_at_quantile(f64::from(share) / 10_000.0));
        Self {
            min: Micros::new(times.min()),
            mean: Micros::new(times.mean().ceil() as u64),
            percentiles: Self::PERCENTILES.map(at),
            max: Micros::new(times.max()),
        }
    }
}

impl BenchReport {
    pub(crate) fn new(
        target: &BenchTarget,
        workload: Workload,
        run: &BenchRun,
        ended: EndReason,
    ) -> Self {
        let measured = run.measurements();
        let (requests, until) = (measured.requests(), run.end().max(measured.last));
        let lag = measured.last_sent.saturating_sub(measured.last_due);
        let errors = measured.errors_by_kind.into_iter().map(|(kind, errors)| ErrorCount {
            kind: kind.into(),
            count: errors.count,
            example: errors.example,
        });
        Self {
            target: target.to_string(),
            workload,
            plan: run.plan.clone(),
            ended,
            window: run.end().saturating_sub(run.measured_from),
            elapsed: until.saturating_sub(run.measured_from),
            requests,
            allowed: measured.allowed,
            denied: measured.denied,
            errors: errors.collect(),
            unsent: measured.unsent,
            warmup_requests: measured.warmup + 1,
            latency: Quantiles::of(&measured.latency),
            behind: match run.plan.load {
                LoadModel::Closed => None,
                LoadModel::Open(_) => Some(Quantiles::of(&measured.behind)),
            },
            lag,
            note: None,
        }
    }

    /// Requests that were sent and had no decision.
    pub(crate) fn error_count(&self) -> u64 {
        self.errors.iter().map(|errors| errors.count).sum()
    }

    /// Requests sent per second, rounded down.
    pub(crate) fn achieved(&self) -> u64 {
        let sent = u128::from(self.requests - self.unsent) * 1_000_000;
        sent.checked_div(u128::from(self.elapsed.get())).map_or(0, |a| a.try_into().unwrap_or(0))
    }

    /// Whether the target kept up with the rate of an open loop: it decided requests, and all were
    /// sent soon after the last was due. Latency does not matter here. `None` for a closed loop,
    /// or when no request was due.
    pub(crate) fn kept_up(&self) -> Option<bool> {
        const SOON: Micros = Micros::from_millis(50);
        let LoadModel::Open(_) = self.plan.load else { return None };
        if self.requests == 0 {
            return None;
        }
        let soon = SOON.max(Micros::new(self.window.get() / 100));
        Some(self.decided() > 0 && self.unsent == 0 && self.lag <= soon)
    }

    pub(crate) fn decided(&self) -> u64 {
        self.allowed + self.denied
    }
}
