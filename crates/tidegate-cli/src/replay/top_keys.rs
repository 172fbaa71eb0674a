//! Most denied keys, in bounded memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use tidegate::Key;

use tidegate_server::internal::text::escape::display_key;

/// Counts by rule and key. Exact up to [`TopKeys::CAPACITY`] entries. Beyond that the half with the
/// lowest counts is dropped, and counts are lower bounds.
#[derive(Default, Debug)]
pub(crate) struct TopKeys {
    hasher: RandomState,
    counts: HashMap<u64, KeyCount>,
    /// Upper bound of what a count may lack.
    missed: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyCount {
    /// Index of the rule in its policy.
    pub(crate) rule: usize,
    /// As displayed.
    pub(crate) key: String,
    pub(crate) count: u64,
}

impl TopKeys {
    pub(crate) const CAPACITY: usize = 1 << 16;

    pub(crate) fn note(&mut self, rule: usize, key: Key<'_>) {
        let hash = self.hasher.hash_one((rule, key));
        if let Some(counted) = self.counts.get_mut(&hash) {
            counted.count += 1;
            return;
        }
        if self.counts.len() == Self::CAPACITY {
            self.drop_half();
        }
        self.counts.insert(hash, KeyCount { rule, key: display_key(key), count: 1 });
    }

    /// Whether counts are exact, not lower bounds.
    pub(crate) fn is_exact(&self) -> bool {
        self.missed == 0
    }

    /// The `n` highest counts of one rule, or of all rules, highest first.
    pub(crate) fn most(&self, n: usize, rule: Option<usize>) -> Vec<&KeyCount> {
        let is_of_rule = |counted: &&KeyCount| rule.is_none_or(|rule| counted.rule == rule);
        let mut all: Vec<&KeyCount> = self.counts.values().filter(is_of_rule).collect();
        let order = |a: &&KeyCount, b: &&KeyCount| {
            (b.count, a.rule, &a.key).cmp(&(a.count, b.rule, &b.key))
        };
        if all.len() > n {
            all.select_nth_unstable_by(n, order);
            all.truncate(n);
        }
        all.sort_by(order);
        all
    }

    fn drop_half(&mut self) {
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
        let mut top = TopKeys::default();
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
    fn a_flood_of_keys_neither_fills_the_memory_nor_displaces_the_most_denied() {
        let mut top = TopKeys::default();
        for i in 0..1_000_000_u32 {
            top.note(0, (&format!("once-{i}")).into());
            if i % 10 == 0 {
                top.note(0, "often".into());
            }
            assert!(top.counts.len() <= TopKeys::CAPACITY);
        }
        let most = top.most(1, None);
        assert_eq!((&*most[0].key, most[0].count), ("often", 100_000));
        assert!(!top.is_exact());
    }
}
