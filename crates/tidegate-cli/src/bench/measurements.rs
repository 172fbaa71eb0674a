//! Latency histograms, counts and errors of a run.

use std::borrow::Cow;
use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use tidegate::Micros;

use super::client::response::{BenchResponse, RequestError};

/// Results so far. The size does not grow with the number of requests.
#[derive(Clone, Debug)]
pub(crate) struct Measurements {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) unsent: u64,
    /// Requests of the warm-up; they are in none of the other counts.
    pub(crate) warmup: u64,
    pub(crate) errors_by_kind: BTreeMap<Cow<'static, str>, ErrorSamples>,
    /// From the time a request was due until its response or error, in microseconds.
    pub(crate) latency: Histogram<u64>,
    /// From the time a request was due until it was sent, in microseconds.
    pub(crate) behind: Histogram<u64>,
    /// Time of the last response or error.
    pub(crate) last: Micros,
    /// Latest due time among the requests that were sent.
    pub(crate) last_due: Micros,
    pub(crate) last_sent: Micros,
}

/// Errors of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ErrorSamples {
    pub(crate) count: u64,
    /// Message of the first.
    pub(crate) example: String,
}

/// When a request was due, was sent, and got its response or error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    pub(crate) due: Micros,
    pub(crate) sent: Micros,
    pub(crate) done: Micros,
}

impl Measurements {
    /// Longer latencies are recorded as this one: the longest run (24 h) plus warm-up and slack.
    const MAX_LATENCY_US: u64 = 26 * 3_600 * 1_000_000;
    /// Further kinds are counted as `other`.
    const MAX_ERROR_KINDS: usize = 16;
    /// Samples recorded for requests that were never sent; each stands for an equal share.
    const MAX_UNSENT_SAMPLES: u64 = 1_000;

    /// Latencies are exact to three digits.
    pub(crate) fn new() -> Self {
        #[expect(clippy::expect_used, reason = "constant bounds, covered by tests")]
        let histogram =
            Histogram::new_with_bounds(1, Self::MAX_LATENCY_US, 3).expect("valid bounds");
        Self {
            allowed: 0,
            denied: 0,
            unsent: 0,
            warmup: 0,
            errors_by_kind: BTreeMap::new(),
            latency: histogram.clone(),
            behind: histogram,
            last: Micros::ZERO,
            last_due: Micros::ZERO,
            last_sent: Micros::ZERO,
        }
    }

    /// Adds a request that was sent.
    pub(crate) fn add(&mut self, times: RequestTimes, response: BenchResponse) {
        self.latency.saturating_record(times.done.saturating_sub(times.due).get());
        self.behind.saturating_record(times.sent.saturating_sub(times.due).get());
        self.last = self.last.max(times.done);
        self.last_due = self.last_due.max(times.due);
        self.last_sent = self.last_sent.max(times.sent);
        match response {
            BenchResponse::Allow => self.allowed += 1,
            BenchResponse::Deny => self.denied += 1,
            BenchResponse::Error(error) => self.add_error(error),
        }
    }

    fn add_error(&mut self, RequestError { kind, message }: RequestError) {
        let is_new = !self.errors_by_kind.contains_key(&kind);
        let kind = match is_new && self.errors_by_kind.len() >= Self::MAX_ERROR_KINDS {
            true => Cow::Borrowed("other"),
            false => kind,
        };
        let errors = self.errors_by_kind.entry(kind);
        errors.or_insert_with(|| ErrorSamples { count: 0, example: message }).count += 1;
    }

    /// Adds `count` requests that were never sent; `waited` returns how long the `nth` was due.
    pub(crate) fn add_unsent(&mut self, count: u64, waited: impl Fn(u64) -> Micros) {
        self.unsent += count;
        // There may be billions. They are evenly spaced, so that samples are enough.
        let samples = count.min(Self::MAX_UNSENT_SAMPLES);
        let mut recorded = 0;
        for nth in 0..samples {
            let until = share_start(nth + 1, samples, count);
            let wait = waited(recorded + (until - recorded) / 2).get();
            self.latency.saturating_record_n(wait, until - recorded);
            self.behind.saturating_record_n(wait, until - recorded);
            recorded = until;
        }
    }

    /// All requests except those of the warm-up.
    pub(crate) fn requests(&self) -> u64 {
        self.allowed + self.denied + self.unsent + self.errors()
    }

    /// Requests that were sent and have no decision.
    pub(crate) fn errors(&self) -> u64 {
        self.errors_by_kind.values().map(|errors| errors.count).sum()
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.unsent += other.unsent;
        self.warmup += other.warmup;
        self.last = self.last.max(other.last);
        self.last_due = self.last_due.max(other.last_due);
        self.last_sent = self.last_sent.max(other.last_sent);
        // Both have the same bounds.
        let _ = self.latency.add(&other.latency);
        let _ = self.behind.add(&other.behind);
        for (kind, errors) in other.errors_by_kind {
            let known = self.errors_by_kind.entry(kind);
            known.and_modify(|known| known.count += errors.count).or_insert(errors);
        }
    }
}

/// Start of the `nth` of `of` equal shares of `count`.
fn share_start(nth: u64, of: u64, count: u64) -> u64 {
    u64::try_from(u128::from(nth) * u128::from(count) / u128::from(of.max(1))).unwrap_or(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(due: u64, sent: u64, done: u64) -> RequestTimes {
        let [due, sent, done] = [due, sent, done].map(Micros::new);
        RequestTimes { due, sent, done }
    }

    #[test]
    fn every_request_is_counted_once_and_measured_from_when_it_was_due() {
        let mut measured = Measurements::new();
        measured.add(times(100, 150, 300), BenchResponse::Allow);
        measured.add(times(100, 100, 101), BenchResponse::Deny);
        for kind in ["timeout", "closed", "timeout"] {
            measured.add(times(0, 0, 1_000), BenchResponse::Error(RequestError::new(kind, "text")));
        }
        measured.add_unsent(4, |nth| Micros::new(5_000 - nth * 1_000));
        let counts = (
            measured.allowed,
            measured.denied,
            measured.errors(),
            measured.unsent,
            measured.requests(),
        );
        assert_eq!(counts, (1, 1, 3, 4, 9));
        assert_eq!((measured.latency.len(), measured.behind.len()), (9, 9));
        assert_eq!((measured.latency.min(), measured.behind.min()), (1, 0));
        assert!((5_000..5_010).contains(&measured.latency.max()), "{}", measured.latency.max());
        assert_eq!(measured.latency.count_between(200, 200), 1);
        assert_eq!(measured.last, Micros::new(1_000));
        assert_eq!((measured.last_due, measured.last_sent), (Micros::new(100), Micros::new(150)));

        let mut both = Measurements::new();
        both.merge(measured.clone());
        both.merge(measured);
        assert_eq!((both.requests(), both.latency.len(), both.errors_by_kind.len()), (18, 18, 2));
        let timeouts = ErrorSamples { count: 4, example: "text".into() };
        assert_eq!(both.errors_by_kind["timeout"], timeouts);
    }

    #[test]
    fn latencies_of_many_unsent_requests_follow_the_schedule() {
        let mut measured = Measurements::new();
        let count = 1_000_000_007;
        measured.add_unsent(count, |nth| Micros::new(count - nth));
        assert_eq!((measured.requests(), measured.latency.len()), (count, count));
        let half = measured.latency.value_at_quantile(0.5);
        assert!(half.abs_diff(count / 2) < count / 500, "{half}");
        measured.add_unsent(0, |_| Micros::ZERO);
        assert_eq!(measured.unsent, count);
    }

    #[test]
    fn a_target_with_ever_new_errors_does_not_fill_the_memory() {
        let mut measured = Measurements::new();
        for nth in 0..100 {
            let error = RequestError::new(format!("kind {nth}"), "x".repeat(10_000));
            measured.add(times(0, 0, 1), BenchResponse::Error(error));
        }
        assert_eq!(
            (measured.errors(), measured.errors_by_kind.len()),
            (100, Measurements::MAX_ERROR_KINDS + 1)
        );
        assert!(measured.errors_by_kind.values().all(|errors| errors.example.len() <= 200));
    }
}
