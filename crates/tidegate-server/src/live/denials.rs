//! Who was denied lately.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use tidegate::{Key, Micros, Outcome, RuleLimit};

use crate::hottest::Hottest;

/// The last calls that were denied.
///
/// A flood of them costs next to nothing: a few are noted in every second, and the others only counted.
#[derive(Default, Debug)]
pub struct Denials {
    last: Mutex<VecDeque<Noted>>,
    pace: Pace,
}

/// One call that was denied.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    pub(super) at: Micros,
    pub(super) rule: Box<str>,
    pub(super) key: Option<String>,
    /// The limit and what it said; none if it was turned away without asking one.
    pub(super) limit: Option<(Arc<RuleLimit>, Outcome)>,
}

/// What is to be noted about a call that was denied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Denied<'a> {
    /// By a limit.
    Limit(&'a Arc<RuleLimit>, Key<'a>, Outcome),
    /// By a rule that asked no limit: its list, or for want of a key.
    Rule(&'a str, Option<Key<'a>>),
}

impl Denials {
    /// The most that are kept.
    pub const CAPACITY: usize = 100;
    /// The most that are noted in one second.
    pub const MAX_A_SECOND: u64 = 50;

    /// Notes one. It never waits.
    pub(crate) fn note(&self, now: Micros, denied: Denied<'_>) {
        if !self.pace.admits(now) {
            return;
        }
        let noted = Noted::new(now, denied);
        let mut last = match self.last.try_lock() {
            Ok(last) => last,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.pace.leave_out(),
        };
        if last.len() == Self::CAPACITY {
            last.pop_front();
        }
        last.push_back(noted);
    }

    /// Those that were noted, oldest first.
    pub(super) fn last(&self) -> Vec<Noted> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// How many were not noted since the start, because there were too many at once.
    pub fn left_out(&self) -> u64 {
        self.pace.left_out.0.load(Ordering::Relaxed)
    }
}

impl Noted {
    fn new(at: Micros, denied: Denied<'_>) -> Self {
        let (rule, key, limit) = match denied {
            Denied::Limit(limit, key, outcome) => {
                (limit.rule(), Some(key), Some((limit.clone(), outcome)))
            }
            Denied::Rule(rule, key) => (rule, key, None),
        };
        Self { at, rule: rule.into(), key: key.map(Hottest::shown), limit }
    }
}

/// Lets a few through in every second.
#[derive(Default, Debug)]
#[repr(align(64))]
struct Pace {
    /// The second, and in its last bits how many there were in it.
    second: AtomicU64,
    left_out: LeftOut,
}

/// How many were not noted. It changes with every call of a flood, apart from what those only look at.
#[derive(Default, Debug)]
#[repr(align(64))]
struct LeftOut(AtomicU64);

impl Pace {
    const BITS: u32 = 8;

    fn admits(&self, now: Micros) -> bool {
        let second = now.get() / 1_000_000;
        let seen = self.second.load(Ordering::Relaxed);
        let (of, count) = (seen >> Self::BITS, seen & ((1 << Self::BITS) - 1));
        // Threads do not agree on when a second begins. A clock that was set back is another matter.
        let is_same = of == second || of == second + 1;
        if is_same && count >= Denials::MAX_A_SECOND {
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

    fn listed(denials: &Denials, now: Micros, key: &str) {
        denials.note(now, Denied::Rule("r", Some(key.into())));
    }

    fn keys(denials: &Denials) -> Vec<String> {
        denials.last().into_iter().filter_map(|noted| noted.key).collect()
    }

    #[test]
    fn a_flood_leaves_a_few_of_each_second_and_the_last_of_all() {
        let denials = Denials::default();
        for i in 0..5_000_000_u64 {
            denials.note(after(i), Denied::Rule("r", None));
        }
        assert_eq!(denials.last().len(), Denials::CAPACITY);
        assert_eq!(denials.left_out(), 5_000_000 - 5 * Denials::MAX_A_SECOND);
        let seconds: Vec<u64> = denials.last().iter().map(|n| n.at.get() / 1_000_000).collect();
        let second = NOW.get() / 1_000_000;
        assert_eq!(seconds, [vec![second + 3; 50], vec![second + 4; 50]].concat());
    }

    #[test]
    fn few_are_all_noted_in_order() {
        let denials = Denials::default();
        for i in 0..120 {
            listed(&denials, after(i * 100_000), &i.to_string());
        }
        let expected: Vec<String> = (20..120).map(|i| i.to_string()).collect();
        assert_eq!((keys(&denials), denials.left_out()), (expected, 0));
    }

    #[test]
    fn threads_that_disagree_on_the_second_do_not_open_it_again() {
        let denials = Denials::default();
        for i in 0..1_000 {
            listed(&denials, after(2_000_000 - i % 2), "k");
        }
        assert!(keys(&denials).len() as u64 <= 2 * Denials::MAX_A_SECOND, "{:?}", denials.pace);
        // After a clock was set back by an hour, denials are noted at once.
        listed(&denials, NOW.saturating_sub(Micros::from_secs(3_600)), "before");
        assert_eq!(keys(&denials).last().unwrap(), "before");
    }

    #[test]
    fn what_denied_is_kept_with_it_and_a_key_can_be_read() {
        let denials = Denials::default();
        let rule = Rule::new("login", ["5/min".parse().unwrap(), "9/h".parse().unwrap()]);
        let rule = rule.unwrap();
        let outcome = Outcome::RetryAfter(Micros::from_secs(3));
        let key = Key::of(&["a", "b\u{1b}[2J"]);
        denials.note(NOW, Denied::Limit(&rule.limits()[1], key, outcome));
        let noted = denials.last().remove(0);
        assert_eq!((&*noted.rule, noted.key.as_deref()), ("login", Some(r"a|b\u{1b}[2J")));
        let (limit, said) = noted.limit.unwrap();
        assert_eq!((limit.policy(), said), ("login.2", outcome));
    }

    #[test]
    fn threads_can_note_and_look_at_once() {
        let (denials, calls) = (Denials::default(), AtomicU64::new(0));
        // Ten seconds, a call every 250 microseconds.
        let call = || {
            let nth = calls.fetch_add(1, Ordering::Relaxed);
            listed(&denials, after(nth * 250), "k");
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| call()));
            }
            (0..100).for_each(|_| assert!(denials.last().len() <= Denials::CAPACITY));
        });
        // A thread that was held up has an instant long past, which begins a second anew.
        let (noted, kept) = (40_000 - denials.left_out(), denials.last().len() as u64);
        assert!((1..40_000).contains(&noted), "{noted}");
        assert!((1..=Denials::CAPACITY as u64).contains(&kept) && kept <= noted, "{kept} {noted}");
    }
}
