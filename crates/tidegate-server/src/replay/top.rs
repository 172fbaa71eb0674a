//! Who is denied most, in bounded memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use tidegate::Key;

use crate::hottest::Hottest;

/// Counts by rule and key. Exact as long as there are no more than [`Top::CAPACITY`] of them; then the half that was
/// counted least is forgotten, and what is left is counted at least as often as it says.
#[derive(Default, Debug)]
pub(super) struct Top {
    hasher: RandomState,
    counts: HashMap<u64, Counted>,
    /// The most that somebody may have been counted more often than it says.
    missed: u64,
}

/// A key and how often it was counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Counted {
    /// The place of the rule in its policy.
    pub(super) rule: usize,
    /// The key for people to read.
    pub(super) key: String,
    pub(super) count: u64,
}

impl Top {
    pub(super) const CAPACITY: usize = 1 << 16;

    pub(super) fn note(&mut self, rule: usize, key: Key<'_>) {
        let hash = self.hasher.hash_one((rule, key));
        if let Some(counted) = self.counts.get_mut(&hash) {
            counted.count += 1;
            return;
        }
        if self.counts.len() == Self::CAPACITY {
            self.forget_half();
        }
        self.counts.insert(hash, Counted { rule, key: Hottest::shown(key), count: 1 });
    }

    /// Are the counts exact, and not just the least that it was?
    pub(super) fn is_exact(&self) -> bool {
        self.missed == 0
    }

    /// The `n` of a rule, or of all, that were counted most, most first.
    pub(super) fn most(&self, n: usize, rule: Option<usize>) -> Vec<&Counted> {
        let is_asked_for = |counted: &&Counted| rule.is_none_or(|rule| counted.rule == rule);
        let mut all: Vec<&Counted> = self.counts.values().filter(is_asked_for).collect();
        let order =
            |a: &&Counted, b: &&Counted| (b.count, a.rule, &a.key).cmp(&(a.count, b.rule, &b.key));
        if all.len() > n {
            all.select_nth_unstable_by(n, order);
            all.truncate(n);
        }
        all.sort_by(order);
        all
    }

    fn forget_half(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().map(|counted| counted.count).collect();
        let (_, &mut median, _) = counts.select_nth_unstable(Self::CAPACITY / 2);
        self.counts.retain(|_, counted| counted.count > median);
        self.missed += median;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_keys_are_counted_exactly_and_by_rule() {
        let mut top = Top::default();
        for (rule, key, count) in [(0, "alice", 3), (0, "bob", 5), (1, "alice", 4)] {
            (0..count).for_each(|_| top.note(rule, key.into()));
        }
        let most = |n, rule| -> Vec<(String, u64)> {
            top.most(n, rule).into_iter().map(|c| (c.key.clone(), c.count)).collect()
        };
        assert_eq!(most(2, None), [("bob".into(), 5), ("alice".into(), 4)]);
        assert_eq!(most(9, Some(0)), [("bob".into(), 5), ("alice".into(), 3)]);
        assert!(top.is_exact());
    }

    #[test]
    fn a_flood_of_keys_neither_takes_the_memory_nor_the_place_of_those_denied_most() {
        let mut top = Top::default();
        for i in 0..1_000_000_u32 {
            top.note(0, (&format!("once-{i}")).into());
            if i % 10 == 0 {
                top.note(0, "often".into());
            }
            assert!(top.counts.len() <= Top::CAPACITY);
        }
        let most = top.most(1, None);
        assert_eq!((&*most[0].key, most[0].count), ("often", 100_000));
        assert!(!top.is_exact());
    }
}
