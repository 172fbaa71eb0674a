//! What has come of questions so far.

use std::borrow::Cow;
use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use tidegate::Micros;

use super::ask::{Answer, Trouble};

/// What has come of some questions. Its size does not grow with their number.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) unsent: u64,
    /// Those that do not count.
    pub(crate) warmup: u64,
    pub(crate) troubles: BTreeMap<Cow<'static, str>, Troubles>,
    /// From when it was due to when it was answered, or known not to be, in microseconds.
    pub(crate) latency: Histogram<u64>,
    /// From when it was due to when it was sent.
    pub(crate) behind: Histogram<u64>,
    /// When the last of them was answered.
    pub(crate) last: Micros,
    /// When the last of those that were sent was due, and when the last was sent.
    pub(crate) last_due: Micros,
    pub(crate) last_sent: Micros,
}

/// Troubles of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Troubles {
    pub(crate) count: u64,
    /// What the first of them said.
    pub(crate) example: String,
}

/// When a question was due, sent and answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) due: Micros,
    pub(crate) sent: Micros,
    pub(crate) done: Micros,
}

impl Tally {
    /// The longest wait that is told apart from longer ones: a day and what comes around it.
    const MOST: u64 = 26 * 3_600 * 1_000_000;
    /// How many kinds of trouble are told apart.
    const MOST_KINDS: usize = 16;
    /// How many waits stand for all of those that were never sent.
    const STAND_INS: u64 = 1_000;

    /// Nothing yet. Waits are exact to three digits.
    pub(crate) fn new() -> Self {
        #[expect(clippy::expect_used, reason = "these bounds are good, and a test says so")]
        let histogram = Histogram::new_with_bounds(1, Self::MOST, 3).expect("bounds that are good");
        Self {
            allowed: 0,
            denied: 0,
            unsent: 0,
            warmup: 0,
            troubles: BTreeMap::new(),
            latency: histogram.clone(),
            behind: histogram,
            last: Micros::ZERO,
            last_due: Micros::ZERO,
            last_sent: Micros::ZERO,
        }
    }

    /// Adds a question.
    pub(crate) fn add(&mut self, times: Times, answer: Answer) {
        self.latency.saturating_record(times.done.saturating_sub(times.due).get());
        self.behind.saturating_record(times.sent.saturating_sub(times.due).get());
        self.last = self.last.max(times.done);
        self.last_due = self.last_due.max(times.due);
        self.last_sent = self.last_sent.max(times.sent);
        match answer {
            Answer::Allow => self.allowed += 1,
            Answer::Deny => self.denied += 1,
            Answer::Trouble(trouble) => self.add_trouble(trouble),
        }
    }

    fn add_trouble(&mut self, Trouble { kind, told }: Trouble) {
        let is_new = !self.troubles.contains_key(&kind);
        let kind = match is_new && self.troubles.len() >= Self::MOST_KINDS {
            true => Cow::Borrowed("other"),
            false => kind,
        };
        let troubles = self.troubles.entry(kind);
        troubles.or_insert_with(|| Troubles { count: 0, example: told }).count += 1;
    }

    /// Adds `count` questions that were never sent; the `nth` has waited so long.
    pub(crate) fn add_unsent(&mut self, count: u64, waited: impl Fn(u64) -> Micros) {
        self.unsent += count;
        // There may be very many, and they are evenly spread.
        let stand_ins = count.min(Self::STAND_INS);
        let mut told = 0;
        for nth in 0..stand_ins {
            let until = place(nth + 1, stand_ins, count);
            let wait = waited(told + (until - told) / 2).get();
            self.latency.saturating_record_n(wait, until - told);
            self.behind.saturating_record_n(wait, until - told);
            told = until;
        }
    }

    /// All that count.
    pub(crate) fn requests(&self) -> u64 {
        self.allowed + self.denied + self.unsent + self.errors()
    }

    /// Those that were asked and have no decision.
    pub(crate) fn errors(&self) -> u64 {
        self.troubles.values().map(|troubles| troubles.count).sum()
    }

    /// Adds all that another has.
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
        for (kind, troubles) in other.troubles {
            let known = self.troubles.entry(kind);
            known.and_modify(|known| known.count += troubles.count).or_insert(troubles);
        }
    }
}

/// Where the `nth` of `of` parts of `count` begins.
fn place(nth: u64, of: u64, count: u64) -> u64 {
    u64::try_from(u128::from(nth) * u128::from(count) / u128::from(of.max(1))).unwrap_or(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(due: u64, sent: u64, done: u64) -> Times {
        let [due, sent, done] = [due, sent, done].map(Micros::new);
        Times { due, sent, done }
    }

    #[test]
    fn every_question_is_counted_once_and_measured_from_when_it_was_due() {
        let mut tally = Tally::new();
        tally.add(times(100, 150, 300), Answer::Allow);
        tally.add(times(100, 100, 101), Answer::Deny);
        for kind in ["timeout", "closed", "timeout"] {
            tally.add(times(0, 0, 1_000), Answer::Trouble(Trouble::new(kind, "told")));
        }
        tally.add_unsent(4, |nth| Micros::new(5_000 - nth * 1_000));
        let counts = (tally.allowed, tally.denied, tally.errors(), tally.unsent, tally.requests());
        assert_eq!(counts, (1, 1, 3, 4, 9));
        assert_eq!((tally.latency.len(), tally.behind.len()), (9, 9));
        assert_eq!((tally.latency.min(), tally.behind.min()), (1, 0));
        assert!((5_000..5_010).contains(&tally.latency.max()), "{}", tally.latency.max());
        assert_eq!(tally.latency.count_between(200, 200), 1);
        assert_eq!(tally.last, Micros::new(1_000));
        assert_eq!((tally.last_due, tally.last_sent), (Micros::new(100), Micros::new(150)));

        let mut both = Tally::new();
        both.merge(tally.clone());
        both.merge(tally);
        assert_eq!((both.requests(), both.latency.len(), both.troubles.len()), (18, 18, 2));
        assert_eq!(both.troubles["timeout"], Troubles { count: 4, example: "told".into() });
    }

    #[test]
    fn many_that_were_never_sent_are_spread_as_they_were_due() {
        let mut tally = Tally::new();
        let count = 1_000_000_007;
        tally.add_unsent(count, |nth| Micros::new(count - nth));
        assert_eq!((tally.requests(), tally.latency.len()), (count, count));
        let half = tally.latency.value_at_quantile(0.5);
        assert!(half.abs_diff(count / 2) < count / 500, "{half}");
        tally.add_unsent(0, |_| Micros::ZERO);
        assert_eq!(tally.unsent, count);
    }

    #[test]
    fn a_target_with_ever_new_troubles_fills_no_memory() {
        let mut tally = Tally::new();
        for nth in 0..100 {
            let trouble = Trouble::new(format!("kind {nth}"), "x".repeat(10_000));
            tally.add(times(0, 0, 1), Answer::Trouble(trouble));
        }
        assert_eq!((tally.errors(), tally.troubles.len()), (100, Tally::MOST_KINDS + 1));
        assert!(tally.troubles.values().all(|troubles| troubles.example.len() <= 200));
    }
}
