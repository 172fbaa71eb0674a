//! How many records of a kind each rule has.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::sync::atomic::{AtomicUsize, Ordering};

/// A rule, by a hash of its name. Two rules have the same number with a probability of 1 in 256,
/// and then count as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RuleNumber(u8);

impl RuleNumber {
    const COUNT: usize = 1 << u8::BITS;

    /// The number of the rule of this name, the same in every process: clients do not choose names.
    #[expect(clippy::cast_possible_truncation, reason = "some of the bits")]
    pub(crate) fn of(rule: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        rule.hash(&mut hasher);
        Self(hasher.finish() as u8)
    }

    /// `bits` with the number in the lowest ones.
    pub(crate) fn in_low_bits_of(self, bits: u64) -> u64 {
        bits << u8::BITS | u64::from(self.0)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
    pub(crate) fn from_low_bits(bits: u64) -> Self {
        Self(bits as u8)
    }
}

#[derive(Debug)]
pub(crate) struct RuleRecords {
    by_rule: Box<[AtomicUsize]>,
    all: AtomicUsize,
}

impl RuleRecords {
    pub(crate) fn new() -> Self {
        let by_rule = (0..RuleNumber::COUNT).map(|_| AtomicUsize::new(0)).collect();
        Self { by_rule, all: AtomicUsize::new(0) }
    }

    pub(crate) fn add(&self, rule: RuleNumber) {
        self.of(rule).fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, rule: RuleNumber) {
        self.of(rule).fetch_sub(1, Ordering::Relaxed);
        self.all.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, rule: RuleNumber) -> usize {
        self.of(rule).load(Ordering::Relaxed)
    }

    /// The part of `bytes` that a rule has: as large as that of its records.
    pub(crate) fn part_of(&self, bytes: usize, rule: RuleNumber) -> usize {
        let (own, all) = (self.count(rule), self.all.load(Ordering::Relaxed));
        bytes / all.max(1) * own.min(all)
    }

    fn of(&self, rule: RuleNumber) -> &AtomicUsize {
        &self.by_rule[usize::from(rule.0)]
    }
}
