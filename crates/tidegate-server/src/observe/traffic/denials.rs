//! Recent denials.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use tidegate::{Key, Micros, Outcome, RuleLimit};

use crate::text::escape::display_key;

/// The last denied calls.
///
/// In a flood only [`DenialLog::MAX_A_SECOND`] of them are recorded; the others are counted.
#[derive(Default, Debug)]
pub struct DenialLog {
    last: Mutex<VecDeque<DenialRecord>>,
    cap: PerSecondCap,
}

#[derive(Clone, Debug)]
pub(crate) struct DenialRecord {
    /// The wall clock.
    pub(crate) at: Micros,
    pub(crate) rule: Box<str>,
    pub(crate) key: Option<String>,
    /// The limit and its outcome; `None` if the rule denied without evaluating a limit.
    pub(crate) limit: Option<(Arc<RuleLimit>, Outcome)>,
}

/// What denied a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DenialCause<'a> {
    /// A limit, for this key.
    Limit(&'a Arc<RuleLimit>, Key<'a>, Outcome),
    /// A rule without evaluating a limit: its deny list, or a missing key.
    Rule(&'a str, Option<Key<'a>>),
}

impl DenialLog {
    /// The number of denials that are kept.
    pub const CAPACITY: usize = 100;
    /// The maximum number of denials that are recorded in one second.
    pub const MAX_A_SECOND: u64 = 50;

    /// Records a denial. It never blocks.
    pub(crate) fn record(&self, now: Micros, denied: DenialCause<'_>) {
        if !self.cap.admits(now) {
            return;
        }
        let record = DenialRecord::new(now, denied);
        let mut last = match self.last.try_lock() {
            Ok(last) => last,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.cap.leave_out(),
        };
        if last.len() == Self::CAPACITY {
            last.pop_front();
        }
        last.push_back(record);
    }

    /// The recorded denials, oldest first.
    pub(crate) fn last(&self) -> Vec<DenialRecord> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The number of denials that were not recorded since the start.
    pub fn left_out(&self) -> u64 {
        self.cap.left_out.0.load(Ordering::Relaxed)
    }
}

impl DenialRecord {
    fn new(at: Micros, denied: DenialCause<'_>) -> Self {
        let (rule, key, limit) = match denied {
            DenialCause::Limit(limit, key, outcome) => {
                (limit.rule(), Some(key), Some((limit.clone(), outcome)))
            }
            DenialCause::Rule(rule, key) => (rule, key, None),
        };
        Self { at, rule: rule.into(), key: key.map(display_key), limit }
    }
}

/// Admits up to [`DenialLog::MAX_A_SECOND`] in every second.
#[derive(Default, Debug)]
#[repr(align(64))]
struct PerSecondCap {
    /// The second, and in its last bits how many were admitted in it.
    second: AtomicU64,
    left_out: OmittedCount,
}

/// The number of denials that were not recorded. It changes with every call of a flood, so it has
/// its own cache line.
#[derive(Default, Debug)]
#[repr(align(64))]
struct OmittedCount(AtomicU64);

impl PerSecondCap {
    const BITS: u32 = 8;

    fn admits(&self, now: Micros) -> bool {
        let second = now.get() / 1_000_000;
        let seen = self.second.load(Ordering::Relaxed);
        let (of, count) = (seen >> Self::BITS, seen & ((1 << Self::BITS) - 1));
        // Another thread may already be in the next second. A clock that was set back further
        // starts a new second.
        let is_same = of == second || of == second + 1;
        if is_same && count >= DenialLog::MAX_A_SECOND {
            self.leave_out();
            return false;
        }
        let next = if is_same { seen + 1 } else { (second << Self::BITS) | 1 };
        let order = Ordering::Relaxed;
        let admitted = self.second.compare_exchange(seen, next, order, order).is_ok();
        if !admitted {
            self.leave_out();
        }
        admitted
    }

    fn leave_out(&self) {
        self.left_out.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Rule;

    use super::*;

    const NOW: Micros = Micros::from_secs(1_700_000_000);

    fn after(micros: u64) -> Micros {
        NOW.saturating_add(Micros::new(micros))
    }

    fn listed(denials: &DenialLog, now: Micros, key: &str) {
        denials.record(now, DenialCause::Rule("r", Some(key.into())));
    }

    fn keys(denials: &DenialLog) -> Vec<String> {
        denials.last().into_iter().filter_map(|record| record.key).collect()
    }

    #[test]
    fn a_flood_is_recorded_up_to_the_cap_of_each_second() {
        let denials = DenialLog::default();
        for i in 0..5_000_000_u64 {
            denials.record(after(i), DenialCause::Rule("r", None));
        }
        assert_eq!(denials.last().len(), DenialLog::CAPACITY);
        assert_eq!(denials.left_out(), 5_000_000 - 5 * DenialLog::MAX_A_SECOND);
        let seconds: Vec<u64> = denials.last().iter().map(|n| n.at.get() / 1_000_000).collect();
        let second = NOW.get() / 1_000_000;
        assert_eq!(seconds, [vec![second + 3; 50], vec![second + 4; 50]].concat());
    }

    #[test]
    fn a_few_denials_are_all_recorded_in_order() {
        let denials = DenialLog::default();
        for i in 0..120 {
            listed(&denials, after(i * 100_000), &i.to_string());
        }
        let expected: Vec<String> = (20..120).map(|i| i.to_string()).collect();
        assert_eq!((keys(&denials), denials.left_out()), (expected, 0));
    }

    #[test]
    fn threads_that_disagree_on_the_second_do_not_reset_the_cap() {
        let denials = DenialLog::default();
        for i in 0..1_000 {
            listed(&denials, after(2_000_000 - i % 2), "k");
        }
        assert!(keys(&denials).len() as u64 <= 2 * DenialLog::MAX_A_SECOND, "{:?}", denials.cap);
        // After the clock was set back by an hour, denials are recorded at once.
        listed(&denials, NOW.saturating_sub(Micros::from_secs(3_600)), "before");
        assert_eq!(keys(&denials).last().unwrap(), "before");
    }

    #[test]
    fn the_denying_limit_is_recorded_and_the_key_is_escaped() {
        let denials = DenialLog::default();
        let rule = Rule::new("login", ["5/min".parse().unwrap(), "9/h".parse().unwrap()]);
        let rule = rule.unwrap();
        let outcome = Outcome::RetryAfter(Micros::from_secs(3));
        let key = Key::of(&["a", "b\u{1b}[2J"]);
        denials.record(NOW, DenialCause::Limit(&rule.limits()[1], key, outcome));
        let record = denials.last().remove(0);
        assert_eq!((&*record.rule, record.key.as_deref()), ("login", Some(r"a|b\u{1b}[2J")));
        let (limit, recorded) = record.limit.unwrap();
        assert_eq!((limit.policy(), recorded), ("login.2", outcome));
    }

    #[test]
    fn threads_can_record_and_read_at_once() {
        let (denials, calls) = (DenialLog::default(), AtomicU64::new(0));
        // Ten seconds, a call every 250 microseconds.
        let call = || {
            let nth = calls.fetch_add(1, Ordering::Relaxed);
            listed(&denials, after(nth * 250), "k");
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| call()));
            }
            (0..100).for_each(|_| assert!(denials.last().len() <= DenialLog::CAPACITY));
        });
        // A thread that was delayed has an old instant, which starts a second again.
        let (recorded, kept) = (40_000 - denials.left_out(), denials.last().len() as u64);
        assert!((1..40_000).contains(&recorded), "{recorded}");
        assert!(
            (1..=DenialLog::CAPACITY as u64).contains(&kept) && kept <= recorded,
            "{kept} {recorded}"
        );
    }
}
