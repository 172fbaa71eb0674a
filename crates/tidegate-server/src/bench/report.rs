//! What came of a measurement.

use hdrhistogram::Histogram;
use tidegate::Micros;

use super::plan::{Load, Plan};
use super::question::Question;
use super::run::Run;
use super::target::Target;

/// What came of a measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Who was asked, without a password.
    pub target: String,
    /// What was asked.
    pub question: Question,
    /// What was planned.
    pub plan: Plan,
    /// Was it stopped early?
    pub ended: Ended,
    /// How long questions were due that count.
    pub window: Micros,
    /// The same until the last answer.
    pub elapsed: Micros,
    /// All that counts: allowed, denied, errors and unsent.
    pub requests: u64,
    /// The target let them pass.
    pub allowed: u64,
    /// It did not.
    pub denied: u64,
    /// Those that had no decision, by kind.
    pub errors: Vec<Errors>,
    /// Those that were due, and had not been sent a second after the end.
    pub unsent: u64,
    /// Those that came before anything counted, with the first that found out whether the target answers.
    pub warmup_requests: u64,
    /// How long it took from when a question was due until it was answered, or known not to be.
    pub latency: Spread,
    /// How long it took until it was sent; nothing where each is sent when the one before is answered.
    pub behind: Option<Spread>,
    /// How long after the last question was due the last was sent.
    pub lag: Micros,
    /// What else should be known.
    pub note: Option<&'static str>,
}

/// How a measurement ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// As planned.
    Done,
    /// Somebody stopped it.
    Stopped,
}

/// Errors of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Errors {
    /// What they are counted under.
    pub kind: String,
    /// How many there were.
    pub count: u64,
    /// What one of them said.
    pub example: String,
}

/// How times are spread, exact to three digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// The shortest.
    pub min: Micros,
    /// The mean, rounded up.
    pub mean: Micros,
    /// No more than this, as [`Spread::PERCENTILES`] has it.
    pub percentiles: [Micros; Spread::PERCENTILES.len()],
    /// The longest.
    pub max: Micros,
}

impl Spread {
    /// How many of ten thousand took no longer, and what that is called.
    pub const PERCENTILES: [(u32, &'static str); 5] =
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

impl Report {
    pub(crate) fn new(target: &Target, question: Question, run: &Run, ended: Ended) -> Self {
        let tally = run.tally();
        let (requests, until) = (tally.requests(), run.end().max(tally.last));
        let lag = tally.last_sent.saturating_sub(tally.last_due);
        let errors = tally.troubles.into_iter().map(|(kind, troubles)| Errors {
            kind: kind.into(),
            count: troubles.count,
            example: troubles.example,
        });
        Self {
            target: target.to_string(),
            question,
            plan: run.plan.clone(),
            ended,
            window: run.end().saturating_sub(run.counts_from),
            elapsed: until.saturating_sub(run.counts_from),
            requests,
            allowed: tally.allowed,
            denied: tally.denied,
            errors: errors.collect(),
            unsent: tally.unsent,
            warmup_requests: tally.warmup + 1,
            latency: Spread::of(&tally.latency),
            behind: match run.plan.load {
                Load::Closed => None,
                Load::Open(_) => Some(Spread::of(&tally.behind)),
            },
            lag,
            note: None,
        }
    }

    /// How many had no decision.
    pub fn error_count(&self) -> u64 {
        self.errors.iter().map(|errors| errors.count).sum()
    }

    /// How many were asked in a second, rounded down.
    pub fn achieved(&self) -> u64 {
        let asked = u128::from(self.requests - self.unsent) * 1_000_000;
        asked.checked_div(u128::from(self.elapsed.get())).map_or(0, |a| a.try_into().unwrap_or(0))
    }

    /// Did the target keep up with the rate that was asked for? It has decided, and all was sent, soon after the last
    /// was due; how long answers take is another matter. Nothing where there was no rate, or nothing was due.
    pub fn kept_up(&self) -> Option<bool> {
        const SOON: Micros = Micros::from_millis(50);
        let Load::Open(_) = self.plan.load else { return None };
        if self.requests == 0 {
            return None;
        }
        let soon = SOON.max(Micros::new(self.window.get() / 100));
        Some(self.decided() > 0 && self.unsent == 0 && self.lag <= soon)
    }

    /// How many had a decision.
    pub fn decided(&self) -> u64 {
        self.allowed + self.denied
    }
}
