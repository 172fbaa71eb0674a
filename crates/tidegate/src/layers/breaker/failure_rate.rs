//! Failures of about the last second, how long the store has sent no reply, and the rule by which
//! they open the circuit.

use tidegate_core::Micros;

/// Two counts of half a second each, the present and the previous one, and what has happened since
/// the last success.
#[derive(Default, Debug)]
pub(crate) struct FailureRate {
    /// Number of the present half second.
    half: u64,
    present: HalfSecond,
    before: HalfSecond,
    last_success: Option<Micros>,
    /// Failures since then, and those of them that were late.
    run: u32,
    late_run: u32,
    /// Start of the first call that failed or was late since then.
    waiting_since: Option<Micros>,
    /// Calls in flight that are late.
    unanswered: u32,
}

#[derive(Clone, Copy, Default, Debug)]
struct HalfSecond {
    succeeded: u32,
    failed: u32,
}

/// How long a call has waited for its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallWait {
    pub(crate) began: Micros,
    /// It has missed the soft deadline, and [`FailureRate::record_late`] has counted it.
    pub(crate) is_late: bool,
}

impl FailureRate {
    /// Half of the observed time.
    const HALF: Micros = Micros::from_millis(500);
    /// Fewer failures prove nothing: one slow command in the store delays a few callers together.
    pub(crate) const MIN_FAILURES: u32 = 5;
    /// Late calls in a row that failed: they have reached the deadline of the engine.
    pub(crate) const MIN_TIMEOUTS: u32 = 2;
    /// Without a reply for this long, earlier successes do not matter. Shorter than the usual
    /// deadline: when five calls wait for a silent store, no further one has to.
    pub(crate) const NO_REPLY_FOR: Micros = Micros::from_millis(75);

    pub(crate) fn record(&mut self, now: Micros, wait: CallWait, succeeded: bool) {
        let half = now.get() / Self::HALF.get();
        // Two threads may arrive in another order than they read the clock.
        if half > self.half {
            let follows = half == self.half + 1;
            self.before = if follows { self.present } else { HalfSecond::default() };
            self.present = HalfSecond::default();
            self.half = half;
        }
        if wait.is_late {
            self.forget_late();
        }
        if succeeded {
            self.present.succeeded = self.present.succeeded.saturating_add(1);
            (self.run, self.late_run) = (0, 0);
            (self.last_success, self.waiting_since) = (Some(now), None);
        } else {
            self.present.failed = self.present.failed.saturating_add(1);
            self.run = self.run.saturating_add(1);
            self.late_run = self.late_run.saturating_add(wait.is_late.into());
            self.wait_from(wait.began);
        }
    }

    /// A call that began then has missed the soft deadline, and is still in flight.
    pub(crate) fn record_late(&mut self, began: Micros) {
        self.unanswered = self.unanswered.saturating_add(1);
        self.wait_from(began);
    }

    /// A late call is no longer in flight.
    pub(crate) fn forget_late(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    fn wait_from(&mut self, began: Micros) {
        self.waiting_since = Some(self.waiting_since.map_or(began, |since| since.min(began)));
    }

    /// How long calls have been in flight or failed without any success.
    pub(crate) fn silence(&self, now: Micros) -> Micros {
        let since = self.last_success.max(self.waiting_since);
        since.map_or(Micros::ZERO, |since| now.saturating_sub(since))
    }

    /// Whether these failures open the circuit: too many of them, or calls without a reply while
    /// the store has sent none for `no_reply_for`.
    pub(crate) fn should_open(&self, now: Micros, no_reply_for: Micros) -> bool {
        let failed = self.present.failed.saturating_add(self.before.failed);
        let succeeded = self.present.succeeded.saturating_add(self.before.succeeded);
        let mostly = failed >= Self::MIN_FAILURES && failed >= succeeded;
        mostly || self.is_silent(now, no_reply_for)
    }

    /// Whether calls have no reply, and the store has sent none for `no_reply_for`.
    pub(crate) fn is_silent(&self, now: Micros, no_reply_for: Micros) -> bool {
        let enough = self.run.saturating_add(self.unanswered) >= Self::MIN_FAILURES
            || self.late_run >= Self::MIN_TIMEOUTS;
        enough && self.silence(now) >= no_reply_for
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_REPLY_FOR: Micros = FailureRate::NO_REPLY_FOR;

    fn at(ms: u64) -> Micros {
        Micros::from_secs(10).saturating_add(Micros::from_millis(ms))
    }

    /// Each step: milliseconds, successes, failures, and whether the circuit opens.
    #[test]
    fn half_of_the_calls_failing_or_75_ms_without_a_reply_opens_the_circuit() {
        type Steps<'a> = &'a [(u64, u32, u32, bool)];
        let cases: [(&str, Steps<'_>); 8] = [
            ("nothing but failures", &[(0, 0, 4, false), (1, 0, 1, true)]),
            ("half of them", &[(0, 50, 0, false), (50, 0, 49, false), (51, 0, 1, true)]),
            ("fewer than half", &[(0, 1_000, 0, false), (70, 0, 900, false), (120, 1, 90, false)]),
            ("few, and no success", &[(0, 0, 1, false), (600, 0, 1, false), (1_700, 0, 1, false)]),
            ("no reply", &[(0, 9_999, 1, false), (74, 0, 8, false), (75, 0, 1, true)]),
            ("one reply", &[(0, 9_999, 1, false), (70, 1, 8, false), (140, 0, 9, false)]),
            (
                "one a second",
                &[
                    (0, 0, 1, false),
                    (1_000, 0, 1, false),
                    (2_000, 0, 1, false),
                    (3_000, 0, 1, false),
                    (4_000, 0, 1, true),
                ],
            ),
            ("long ago", &[(0, 0, 4, false), (1_000, 1, 4, false), (1_001, 4, 0, false)]),
        ];
        for (case, steps) in cases {
            let mut rate = FailureRate::default();
            for (ms, succeeded, failed, opens) in steps {
                let now = at(*ms);
                let wait = CallWait { began: now, is_late: false };
                (0..*succeeded).for_each(|_| rate.record(now, wait, true));
                (0..*failed).for_each(|_| rate.record(now, wait, false));
                assert_eq!(rate.should_open(now, NO_REPLY_FOR), *opens, "{case} at {ms} ms");
            }
        }
    }

    /// Each call begins at its time, and is late after 25 ms.
    fn late_calls(begun: &[u64]) -> FailureRate {
        let mut rate = FailureRate::default();
        begun.iter().for_each(|ms| rate.record_late(at(*ms)));
        rate
    }

    #[test]
    fn five_calls_in_flight_and_75_ms_without_a_reply_are_silence() {
        let silent = |rate: &FailureRate, ms| rate.is_silent(at(ms), NO_REPLY_FOR);
        let mut rate = late_calls(&[0, 10, 20, 30]);
        assert!(!silent(&rate, 99), "four calls");
        rate.record_late(at(40));
        assert!(!silent(&rate, 74) && silent(&rate, 75));
        // One reply: the silence begins anew.
        rate.record(at(74), CallWait { began: at(30), is_late: true }, true);
        rate.record_late(at(50));
        assert!(!silent(&rate, 148) && silent(&rate, 149));
        rate.forget_late();
        assert!(!silent(&rate, 149), "a caller has dropped its call");
        // An idle store has sent no reply for long, and is not silent.
        let mut idle = FailureRate::default();
        idle.record(at(0), CallWait { began: at(0), is_late: false }, true);
        (0..5).for_each(|_| idle.record_late(at(9_000)));
        assert!(!silent(&idle, 9_025) && silent(&idle, 9_075));
    }

    #[test]
    fn two_late_failures_in_a_row_are_silence() {
        let late = |began| CallWait { began: at(began), is_late: true };
        let mut rate = late_calls(&[0, 5]);
        rate.record(at(100), late(0), false);
        assert!(!rate.should_open(at(100), NO_REPLY_FOR));
        rate.record(at(105), late(5), false);
        assert!(rate.should_open(at(105), NO_REPLY_FOR));
        assert!(!rate.should_open(at(105), Micros::from_millis(200)), "a store far away");
        // A success between them.
        let mut rate = late_calls(&[0, 5]);
        rate.record(at(100), late(0), false);
        rate.record(at(101), late(5), true);
        rate.record_late(at(110));
        rate.record(at(210), late(110), false);
        assert!(!rate.should_open(at(210), NO_REPLY_FOR));
    }
}
