//! Decisions: what an engine returns for a call.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Fraction, Micros, Outcome, Verdict, Wait};

use super::costs::SettledCost;
use super::ids::HoldId;
use super::rule_limit::RuleLimit;

/// Where a decision was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Source {
    /// In this process.
    Memory,
    /// In Redis.
    Redis,
    /// From permits that this process has borrowed from Redis.
    Lease,
    /// From a cached denial.
    DenyCache,
    /// By the local fallback, because the store did not reply.
    Fallback,
    /// By the policy: a list matched, or no rule applies.
    Policy,
}

impl Source {
    /// All sources, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::Memory, Self::Redis, Self::Lease, Self::DenyCache, Self::Fallback, Self::Policy];

    /// The name in replies and metrics.
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

/// The result of a call: one verdict per charge, in order.
///
/// ```
/// use tidegate::{Limiter, Memory, Rule};
///
/// let login = Rule::new("login", ["sliding-log 5/m".parse()?, "fixed-window 100/d".parse()?])?;
/// let limiter = Limiter::with_rules(Memory::default(), [login])?;
/// let decision = limiter.check("1.2.3.4").cost(5).now()?;
/// assert!(decision.allowed());
/// // The most restrictive limit is the one of 5 a minute.
/// assert_eq!(decision.remaining(), 0);
/// assert_eq!(decision.verdicts[1].remaining, 95);
///
/// let denied = limiter.check_now("1.2.3.4")?;
/// assert!(!denied.allowed());
/// println!("retry in {}", denied.retry_after());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
// Small, because every check moves it. Rarely used fields are boxed in `details`.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Where the call was decided.
    pub source: Source,
    /// Verdicts of the enforced limits, in charge order; for a settled, renewed or extended hold,
    /// one per limit held.
    pub verdicts: SmallVec<[Verdict; 2]>,
    details: Option<Box<DecisionDetails>>,
}

/// Fields that most decisions do not have; [`Decision`] has a method for each.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DecisionDetails {
    /// Verdicts of shadow limits, in charge order.
    pub shadow: Vec<Verdict>,
    /// The limits held, for a settled, renewed or extended hold.
    pub held: Vec<Arc<RuleLimit>>,
    /// What each limit held was charged, for a settled hold.
    pub settled: Vec<SettledCost>,
    /// What is reserved of each limit held, for an extended hold.
    pub reserved: Vec<Cost>,
    /// The quantity that a hold was granted, if it names one.
    pub granted: Option<Cost>,
    /// Permits given back by a refund: the largest number over the limits.
    pub refunded: Cost,
    /// The hold had expired before it was settled or renewed.
    pub expired: bool,
    /// The id of the hold that was made.
    pub hold: Option<HoldId>,
    /// The call was decided before under the same id; nothing was charged now.
    pub repeated: bool,
    /// Fingerprints of the limits and keys of a hold that was made or settled, if they are known.
    pub(crate) lines: Vec<u64>,
}

impl DecisionDetails {
    const NONE: Self = Self {
        shadow: Vec::new(),
        held: Vec::new(),
        settled: Vec::new(),
        reserved: Vec::new(),
        granted: None,
        refunded: Cost::ZERO,
        expired: false,
        hold: None,
        repeated: false,
        lines: Vec::new(),
    };
}

/// The fields of the limiter are not compared.
impl PartialEq for DecisionDetails {
    fn eq(&self, other: &Self) -> bool {
        let fields = |of: &Self| (of.granted, of.refunded, of.expired, of.hold, of.repeated);
        let costs = |of: &Self| (of.settled.clone(), of.reserved.clone());
        let lists = |of: &Self| (of.shadow.clone(), of.held.clone(), costs(of));
        lists(self) == lists(other) && fields(self) == fields(other)
    }
}

impl Eq for DecisionDetails {}

impl Decision {
    const UNLIMITED: Verdict = Verdict {
        allowed: true,
        retry_after: Wait::NONE,
        delay: Micros::ZERO,
        limit: u64::MAX,
        remaining: u64::MAX,
        reset_after: Micros::ZERO,
    };

    /// A decision without details.
    #[inline]
    pub fn new(source: Source, verdicts: SmallVec<[Verdict; 2]>) -> Self {
        Self { source, verdicts, details: None }
    }

    /// The decision of one limit.
    // Built from a whole buffer: a push would write the verdict, and copy it when the list is
    // moved.
    #[inline]
    pub fn of_one(source: Source, verdict: Verdict) -> Self {
        Self::new(source, SmallVec::from_buf_and_len([verdict, Self::UNLIMITED], 1))
    }

    /// Adds the verdict of `limit` to the enforced or the shadow verdicts.
    pub fn push(&mut self, limit: &RuleLimit, verdict: Verdict) {
        if limit.is_shadow() {
            self.details_mut().shadow.push(verdict);
        } else {
            self.verdicts.push(verdict);
        }
    }

    /// Each enforced limit with its verdict. `limits` are those of the call, shadow limits
    /// included, in the order of its charges.
    pub fn pair<T: AsRef<RuleLimit>>(
        &self,
        limits: impl IntoIterator<Item = T>,
    ) -> impl Iterator<Item = (T, &Verdict)> {
        // A denial by a list is enforced, even if the rule has only shadow limits.
        let by_policy = self.source == Source::Policy;
        let decides = move |limit: &T| by_policy || !limit.as_ref().is_shadow();
        limits.into_iter().filter(decides).zip(&self.verdicts)
    }

    /// Each limit, shadow limits included, with its verdict. `None` if it was not evaluated: a
    /// local fallback leaves shadow limits out.
    pub fn pair_all<T: AsRef<RuleLimit>>(
        &self,
        limits: impl IntoIterator<Item = T>,
    ) -> impl Iterator<Item = (T, Option<&Verdict>)> {
        let (mut enforced, mut shadow) = (self.verdicts.iter(), self.shadow().iter());
        limits.into_iter().map(move |limit| {
            let verdicts = if limit.as_ref().is_shadow() { &mut shadow } else { &mut enforced };
            (limit, verdicts.next())
        })
    }

    /// The part stored for idempotent retries.
    pub(crate) fn stored(&self) -> Self {
        let mut stored = self.clone();
        if let Some(details) = &mut stored.details {
            details.shadow = Vec::new();
            details.held = Vec::new();
            details.settled = Vec::new();
            details.reserved = Vec::new();
            details.lines = Vec::new();
        }
        stored
    }

    /// Bytes on the heap, in addition to the size of the value.
    pub(crate) fn heap_bytes(&self) -> usize {
        Self::heap_bytes_for(self.verdicts.capacity())
    }

    /// Bytes on the heap of a decision of this many verdicts, with details.
    pub(crate) fn heap_bytes_for(verdicts: usize) -> usize {
        let inline = SmallVec::<[Verdict; 2]>::new().inline_size();
        let spilled = if verdicts > inline { verdicts.next_power_of_two() } else { 0 };
        spilled * size_of::<Verdict>() + size_of::<DecisionDetails>()
    }

    /// Verdicts of shadow limits, in charge order.
    pub fn shadow(&self) -> &[Verdict] {
        &self.details().shadow
    }

    /// The limits held, for a settled, renewed or extended hold.
    pub fn held(&self) -> &[Arc<RuleLimit>] {
        &self.details().held
    }

    /// What each limit held was charged, for a settled hold.
    pub fn settled(&self) -> &[SettledCost] {
        &self.details().settled
    }

    /// What is reserved of each limit held, for an extended hold: with a minimum, it may be less
    /// than the total of the call.
    pub fn reserved(&self) -> &[Cost] {
        &self.details().reserved
    }

    /// The quantity that a hold was granted, if it names one: see [`Quantity`](crate::Quantity).
    pub fn granted(&self) -> Option<Cost> {
        self.details().granted
    }

    /// Permits given back by a refund: the largest number over the limits.
    pub fn refunded(&self) -> Cost {
        self.details().refunded
    }

    /// The hold had expired before it was settled or renewed.
    pub fn expired(&self) -> bool {
        self.details().expired
    }

    /// The id of the hold that was made.
    pub fn hold(&self) -> Option<HoldId> {
        self.details().hold
    }

    /// The call was decided before under the same id; nothing was charged now.
    pub fn repeated(&self) -> bool {
        self.details().repeated
    }

    /// Fingerprints of the limits and keys of a hold that was made or settled, if they are known.
    pub(crate) fn lines(&self) -> &[u64] {
        &self.details().lines
    }

    /// The same decision, marked as repeated.
    pub(crate) fn into_repeated(mut self) -> Self {
        self.details_mut().repeated = true;
        self
    }

    #[inline]
    fn details(&self) -> &DecisionDetails {
        static NONE: DecisionDetails = DecisionDetails::NONE;
        self.details.as_deref().unwrap_or(&NONE)
    }

    /// The details, for an engine to fill in.
    pub fn details_mut(&mut self) -> &mut DecisionDetails {
        self.details.get_or_insert_with(|| Box::new(DecisionDetails::NONE))
    }

    /// Whether every enforced limit allows the call.
    #[inline]
    pub fn allowed(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.allowed)
    }

    /// The index of the verdict of the most restrictive limit. Denied: the longest wait. Allowed:
    /// the fewest remaining permits, then the longest reset. Ties go to the first.
    pub fn most_restrictive(&self) -> usize {
        let denied = |v: &Verdict| (!v.allowed).then_some(v.retry_after);
        let best = |better: &dyn Fn(&Verdict, &Verdict) -> bool| {
            self.verdicts
                .iter()
                .enumerate()
                .reduce(|best, next| if better(next.1, best.1) { next } else { best })
        };
        let index = if self.allowed() {
            best(&|a, b| {
                (a.remaining, std::cmp::Reverse(a.reset_after))
                    < (b.remaining, std::cmp::Reverse(b.reset_after))
            })
        } else {
            best(&|a, b| denied(a) > denied(b))
        };
        index.map_or(0, |(index, _)| index)
    }

    /// The verdict of the most restrictive limit. Without an enforced limit it allows everything.
    pub fn verdict(&self) -> Verdict {
        self.verdicts.get(self.most_restrictive()).copied().unwrap_or(Self::UNLIMITED)
    }

    /// Allowed, denied until a later time, or never possible.
    pub fn outcome(&self) -> Outcome {
        self.verdict().outcome()
    }

    /// When to retry: the longest wait over the limits.
    pub fn retry_after(&self) -> Wait {
        self.verdicts.iter().map(|verdict| verdict.retry_after).max().unwrap_or(Wait::NONE)
    }

    /// Adds random jitter to `retry_after`, up to the fraction `max` of it. Callers that were
    /// denied at the same time then retry at different times, and none too early.
    pub fn jitter_retry_after(&mut self, max: Fraction) {
        if !self.allowed() {
            // Every `RandomState` has different keys; that is enough randomness here.
            self.delay_retries(max, RandomState::new().hash_one(()));
        }
    }

    /// Adds `max * random / 2^64` of each wait to it.
    fn delay_retries(&mut self, max: Fraction, random: u64) {
        const WHOLE: u128 = 1_000_000 << 32;
        let share = u128::from(max.millionths()) * u128::from(random >> 32);
        for verdict in self.verdicts.iter_mut().filter(|verdict| !verdict.allowed) {
            if let Wait::For(span) = verdict.retry_after {
                let more = u128::from(span.get()) * share / WHOLE;
                let more = Micros::new(u64::try_from(more).unwrap_or(u64::MAX));
                verdict.retry_after = Wait::For(span.saturating_add(more));
            }
        }
    }

    /// Remaining permits of the most restrictive limit.
    pub fn remaining(&self) -> u64 {
        self.verdict().remaining
    }

    /// How long to wait before proceeding: the longest delay over the limits. Only a queue delays.
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
        let whole = size_of::<crate::EngineFuture<'_, Decision>>();
        assert!(whole <= 128, "{whole}");
    }

    #[test]
    fn jitter_delays_retries_and_never_makes_them_earlier() {
        let no = |wait| verdict(false, Wait::For(Micros::new(wait)), 0, 9);
        let all =
            [no(1_000_000), verdict(true, Wait::NONE, 1, 9), verdict(false, Wait::Never, 0, 9)];
        let tenth = Fraction::from_millionths(100_000).unwrap();
        for (random, expected) in [(0, 1_000_000), (1 << 63, 1_050_000), (u64::MAX, 1_099_999)] {
            let mut decision = Decision::new(Source::Memory, all.into_iter().collect());
            decision.delay_retries(tenth, random);
            let waits = [Wait::For(Micros::new(expected)), Wait::NONE, Wait::Never];
            assert_eq!(decision.verdicts.iter().map(|v| v.retry_after).collect::<Vec<_>>(), waits);
        }
        let mut waits = std::collections::HashSet::new();
        for _ in 0..1_000 {
            let mut decision = Decision::new(Source::Memory, [no(1_000_000)].into_iter().collect());
            decision.jitter_retry_after(tenth);
            let wait = decision.retry_after().span().unwrap().get();
            assert!((1_000_000..=1_100_000).contains(&wait), "{wait}");
            waits.insert(wait);
        }
        assert!(waits.len() > 900, "{} different ones of 1000", waits.len());
        let mut longest = Decision::new(Source::Memory, [no(u64::MAX)].into_iter().collect());
        longest.jitter_retry_after(Fraction::from_millionths(1_000_000).unwrap());
        assert_eq!(longest.retry_after(), Wait::For(Micros::MAX));
    }

    #[test]
    fn the_most_restrictive_limit_has_the_longest_wait_or_the_fewest_remaining_permits() {
        let yes = |remaining, reset| verdict(true, Wait::NONE, remaining, reset);
        let no = |wait| verdict(false, Wait::For(Micros::new(wait)), 0, 9);
        let never = verdict(false, Wait::Never, 5, 9);
        for (verdicts, index) in [
            (vec![yes(3, 1), yes(2, 1)], 1),
            (vec![yes(2, 1), yes(2, 5), yes(2, 5)], 1),
            (vec![yes(0, 1), no(5), no(7)], 2),
            (vec![no(7), yes(0, 1), no(7)], 0),
            (vec![no(7), never, no(9)], 1),
            (vec![yes(0, 1)], 0),
        ] {
            let decision = Decision::new(Source::Memory, verdicts.clone().into());
            assert_eq!(decision.most_restrictive(), index, "{verdicts:?}");
            assert_eq!(decision.allowed(), verdicts.iter().all(|v| v.allowed));
        }
    }
}
