//! The answer of an engine.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Micros, Outcome, Share, Verdict, Wait};

use crate::{HoldId, RuleLimit};

/// Where a decision was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Source {
    /// In this process.
    Memory,
    /// In Redis.
    Redis,
    /// From permits that Redis had lent to this process.
    Lease,
    /// From a denial that is still good.
    DenyCache,
    /// By the local limiter, because the store did not answer.
    Fallback,
    /// By the policy alone: somebody on a list, or nothing to charge.
    Policy,
}

impl Source {
    /// The word for it in answers and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Lease => "lease",
            Self::DenyCache => "deny-cache",
            Self::Fallback => "fallback",
            Self::Policy => "policy",
        }
    }
}

/// What was decided about a call: one verdict per charge, in order.
//
// Small, because every check moves it from hand to hand: what few calls have to say lies elsewhere.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Where it was decided.
    pub source: Source,
    /// One for each charge to a limit that decides; for a settled or renewed hold, one for each
    /// limit held.
    pub verdicts: SmallVec<[Verdict; 2]>,
    details: Option<Box<Details>>,
}

/// What most decisions have nothing to say about; [`Decision`] has a method for each.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Details {
    /// One for each charge to a limit that only looks on.
    pub shadow: Vec<Verdict>,
    /// The limits held, for a settled or renewed hold.
    pub held: Vec<Arc<RuleLimit>>,
    /// What a refund gave back: the most over the limits.
    pub refunded: Cost,
    /// The hold had ended before it was settled or renewed.
    pub expired: bool,
    /// The hold that was made.
    pub hold: Option<HoldId>,
    /// It was decided before, under the same id; nothing was charged now.
    pub repeated: bool,
}

impl Details {
    const NONE: Self = Self {
        shadow: Vec::new(),
        held: Vec::new(),
        refunded: Cost::ZERO,
        expired: false,
        hold: None,
        repeated: false,
    };
}

impl Decision {
    /// A decision without details.
    #[inline]
    pub fn new(source: Source, verdicts: SmallVec<[Verdict; 2]>) -> Self {
        Self { source, verdicts, details: None }
    }

    /// The decision of one limit.
    #[inline]
    pub fn of_one(source: Source, verdict: Verdict) -> Self {
        let mut decision = Self::new(source, SmallVec::new());
        decision.verdicts.push(verdict);
        decision
    }

    /// Adds the verdict of `limit`, where those of its kind are.
    pub fn push(&mut self, limit: &RuleLimit, verdict: Verdict) {
        if limit.is_shadow() {
            self.details_mut().shadow.push(verdict);
        } else {
            self.verdicts.push(verdict);
        }
    }

    /// What is kept of it for whoever asks again: that which decided.
    pub(crate) fn kept(&self) -> Self {
        let mut kept = self.clone();
        if let Some(details) = &mut kept.details {
            details.shadow = Vec::new();
            details.held = Vec::new();
        }
        kept
    }

    /// Bytes on the heap, beyond the size of the value itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        Self::heap_bytes_for(self.verdicts.capacity())
    }

    /// Bytes on the heap of a decision of so many verdicts, with details.
    pub(crate) fn heap_bytes_for(verdicts: usize) -> usize {
        let inline = SmallVec::<[Verdict; 2]>::new().inline_size();
        let spilled = if verdicts > inline { verdicts.next_power_of_two() } else { 0 };
        spilled * size_of::<Verdict>() + size_of::<Details>()
    }

    /// One for each charge to a limit that only looks on.
    pub fn shadow(&self) -> &[Verdict] {
        &self.details().shadow
    }

    /// The limits held, for a settled or renewed hold.
    pub fn held(&self) -> &[Arc<RuleLimit>] {
        &self.details().held
    }

    /// What a refund gave back: the most over the limits.
    pub fn refunded(&self) -> Cost {
        self.details().refunded
    }

    /// The hold had ended before it was settled or renewed.
    pub fn expired(&self) -> bool {
        self.details().expired
    }

    /// The hold that was made.
    pub fn hold(&self) -> Option<HoldId> {
        self.details().hold
    }

    /// It was decided before, under the same id; nothing was charged now.
    pub fn repeated(&self) -> bool {
        self.details().repeated
    }

    /// The same, for whoever asks again.
    pub(crate) fn again(mut self) -> Self {
        self.details_mut().repeated = true;
        self
    }

    #[inline]
    fn details(&self) -> &Details {
        static NONE: Details = Details::NONE;
        self.details.as_deref().unwrap_or(&NONE)
    }

    /// What else there is to say, for an engine to say it.
    pub fn details_mut(&mut self) -> &mut Details {
        self.details.get_or_insert_with(|| Box::new(Details::NONE))
    }

    /// Every limit allows it.
    pub fn allowed(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.allowed)
    }

    /// The index of the verdict that speaks for all. Denied: the longest wait. Allowed: the least
    /// remaining, then the longest reset. Ties go to the first.
    pub fn speaker(&self) -> usize {
        let denied = |v: &Verdict| (!v.allowed).then_some(v.retry_after);
        let best = |better: &dyn Fn(&Verdict, &Verdict) -> bool| {
            self.verdicts
                .iter()
                .enumerate()
                .reduce(|best, next| if better(next.1, best.1) { next } else { best })
        };
        let speaker = if self.allowed() {
            best(&|a, b| {
                (a.remaining, std::cmp::Reverse(a.reset_after))
                    < (b.remaining, std::cmp::Reverse(b.reset_after))
            })
        } else {
            best(&|a, b| denied(a) > denied(b))
        };
        speaker.map_or(0, |(index, _)| index)
    }

    /// The verdict that speaks for all. Where no limit decides, because none applies or all that do
    /// only look on, it allows without end.
    pub fn verdict(&self) -> Verdict {
        self.verdicts.get(self.speaker()).copied().unwrap_or(Verdict {
            allowed: true,
            retry_after: Wait::NONE,
            delay: Micros::ZERO,
            limit: u64::MAX,
            remaining: u64::MAX,
            reset_after: Micros::ZERO,
        })
    }

    /// What became of the request.
    pub fn outcome(&self) -> Outcome {
        self.verdict().outcome()
    }

    /// When to come back: the longest wait over the limits.
    pub fn retry_after(&self) -> Wait {
        self.verdicts.iter().map(|verdict| verdict.retry_after).max().unwrap_or(Wait::NONE)
    }

    /// Tells those who are denied to come back a little later, each at random: by up to `most` of their
    /// wait. Many who were denied together do not come back together then, and nobody too early.
    pub fn spread_retries(&mut self, most: Share) {
        if !self.allowed() {
            // Each has keys of its own, and that is all the randomness that this needs.
            self.delay_retries(most, RandomState::new().hash_one(()));
        }
    }

    /// By as much of it as `random` is of all numbers.
    fn delay_retries(&mut self, most: Share, random: u64) {
        const WHOLE: u128 = 1_000_000 << 32;
        let share = u128::from(most.millionths()) * u128::from(random >> 32);
        for verdict in self.verdicts.iter_mut().filter(|verdict| !verdict.allowed) {
            if let Wait::For(span) = verdict.retry_after {
                let more = u128::from(span.get()) * share / WHOLE;
                let more = Micros::new(u64::try_from(more).unwrap_or(u64::MAX));
                verdict.retry_after = Wait::For(span.saturating_add(more));
            }
        }
    }

    /// What the limit that speaks has left.
    pub fn remaining(&self) -> u64 {
        self.verdict().remaining
    }

    /// How long to wait for the turn that was given, the longest over the limits.
    pub fn delay(&self) -> Micros {
        self.verdicts.iter().map(|verdict| verdict.delay).max().unwrap_or(Micros::ZERO)
    }
}

impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let same = self.source == other.source && self.verdicts == other.verdicts;
        same && self.details() == other.details()
    }
}

impl Eq for Decision {}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(allowed: bool, retry_after: Wait, remaining: u64, reset: u64) -> Verdict {
        let reset_after = Micros::new(reset);
        Verdict { allowed, retry_after, delay: Micros::ZERO, limit: 10, remaining, reset_after }
    }

    #[test]
    fn a_decision_is_small_enough_to_be_moved_inline() {
        assert!(size_of::<Verdict>() <= 48, "{}", size_of::<Verdict>());
        let whole = size_of::<crate::Answer<'_, Decision>>();
        assert!(whole <= 128, "{whole}");
    }

    #[test]
    fn whoever_is_denied_is_told_to_come_later_never_earlier() {
        let no = |wait| verdict(false, Wait::For(Micros::new(wait)), 0, 9);
        let all =
            [no(1_000_000), verdict(true, Wait::NONE, 1, 9), verdict(false, Wait::Never, 0, 9)];
        let tenth = Share::from_millionths(100_000).unwrap();
        for (random, expected) in [(0, 1_000_000), (1 << 63, 1_050_000), (u64::MAX, 1_099_999)] {
            let mut decision = Decision::new(Source::Memory, all.into_iter().collect());
            decision.delay_retries(tenth, random);
            let waits = [Wait::For(Micros::new(expected)), Wait::NONE, Wait::Never];
            assert_eq!(decision.verdicts.iter().map(|v| v.retry_after).collect::<Vec<_>>(), waits);
        }
        let mut waits = std::collections::HashSet::new();
        for _ in 0..1_000 {
            let mut decision = Decision::new(Source::Memory, [no(1_000_000)].into_iter().collect());
            decision.spread_retries(tenth);
            let wait = decision.retry_after().span().unwrap().get();
            assert!((1_000_000..=1_100_000).contains(&wait), "{wait}");
            waits.insert(wait);
        }
        assert!(waits.len() > 900, "{} different ones of 1000", waits.len());
        let mut longest = Decision::new(Source::Memory, [no(u64::MAX)].into_iter().collect());
        longest.spread_retries(Share::from_millionths(1_000_000).unwrap());
        assert_eq!(longest.retry_after(), Wait::For(Micros::MAX));
    }

    #[test]
    fn the_longest_wait_speaks_when_denied_and_the_least_remaining_when_allowed() {
        let yes = |remaining, reset| verdict(true, Wait::NONE, remaining, reset);
        let no = |wait| verdict(false, Wait::For(Micros::new(wait)), 0, 9);
        let never = verdict(false, Wait::Never, 5, 9);
        for (verdicts, speaker) in [
            (vec![yes(3, 1), yes(2, 1)], 1),
            (vec![yes(2, 1), yes(2, 5), yes(2, 5)], 1),
            (vec![yes(0, 1), no(5), no(7)], 2),
            (vec![no(7), yes(0, 1), no(7)], 0),
            (vec![no(7), never, no(9)], 1),
            (vec![yes(0, 1)], 0),
        ] {
            let decision = Decision::new(Source::Memory, verdicts.clone().into());
            assert_eq!(decision.speaker(), speaker, "{verdicts:?}");
            assert_eq!(decision.allowed(), verdicts.iter().all(|v| v.allowed));
        }
    }
}
