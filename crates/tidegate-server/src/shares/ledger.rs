//! What is lent and what is left: the part that keeps the bound, whatever the allocator asks for.
//!
//! Tokens enter at the central bucket and at the shares, together at most at the rate of the limit.
//! They move from the central bucket to a share only when they are paid for. So the central tokens
//! and those of all shares are at most the burst of the limit at every instant.

use std::collections::{BTreeMap, BTreeSet};

use tidegate::Micros;

use tidegate_config::envoy::{FillInterval, ShareLimit};

/// A holder: one bucket on one stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct HolderId(pub(crate) u64);

/// How long shares are lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShareTiming {
    /// Time to live of an assignment, from its receipt. Envoy takes whole seconds.
    pub(crate) ttl: Micros,
    /// Upper bound of the time from a decision until the holder applies it, and of the time until
    /// it stops at the end.
    pub(crate) guard: Micros,
}

impl Default for ShareTiming {
    fn default() -> Self {
        Self { ttl: Micros::from_secs(8), guard: Micros::from_secs(2) }
    }
}

impl ShareTiming {
    /// The longest that a share can be in use after it was sent.
    pub(crate) fn lifetime(self) -> Micros {
        self.ttl.saturating_add(self.guard)
    }
}

/// A part of a limit: a burst, and tokens per interval.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Share {
    pub(crate) burst: u64,
    pub(crate) tokens: u64,
}

/// A share as it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Assignment {
    pub(crate) share: Share,
    pub(crate) interval: FillInterval,
    pub(crate) sent: Micros,
    /// From this instant on it is surely out of use.
    deadline: Micros,
}

impl Assignment {
    /// Tokens in each interval of this length, rounded up.
    fn tokens_in(&self, interval: FillInterval) -> u64 {
        match (self.interval, interval) {
            (FillInterval::Hour, FillInterval::Day) => self.share.tokens.saturating_mul(24),
            (FillInterval::Day, FillInterval::Hour) => self.share.tokens.div_ceil(24),
            _ => self.share.tokens,
        }
    }
}

/// The assignments of one holder that may be in use.
#[derive(Clone, Default, Debug)]
struct HolderShares {
    assignments: Vec<Assignment>,
    /// The last that was made.
    last: Option<Assignment>,
    /// Whether `last` was not written, or the holder was told to deny since.
    starts_full: bool,
    is_gone: bool,
}

impl HolderShares {
    /// The most that the holder may use at any instant.
    fn lent(&self, interval: FillInterval) -> Share {
        let burst = self.assignments.iter().map(|it| it.share.burst).max().unwrap_or(0);
        let tokens = self.assignments.iter().map(|it| it.tokens_in(interval)).max().unwrap_or(0);
        Share { burst, tokens }
    }

    fn first_deadline(&self) -> Option<Micros> {
        self.assignments.iter().map(|it| it.deadline).min()
    }

    /// Whether the holder would take this for what it has, and keep the old interval.
    fn ignores(&self, share: Share, interval: FillInterval) -> bool {
        let mut known = self.assignments.iter().chain(&self.last);
        known.any(|it| it.share == share && it.interval != interval)
    }

    fn push(&mut self, new: Assignment) {
        let is_covered = |old: &Assignment| {
            old.deadline <= new.deadline
                && old.share.burst <= new.share.burst
                && old.tokens_in(FillInterval::Day) <= new.tokens_in(FillInterval::Day)
        };
        self.assignments.retain(|old| !is_covered(old));
        self.assignments.push(new);
        (self.last, self.starts_full) = (Some(new), false);
    }
}

/// The central bucket of a limit and all shares of it.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    limit: ShareLimit,
    timing: ShareTiming,
    /// Central tokens in units of the limit; negative after records beyond it.
    central: i128,
    /// The instant of `central`.
    at: Micros,
    holders: BTreeMap<HolderId, HolderShares>,
    /// The first deadline of each holder.
    deadlines: BTreeSet<(Micros, HolderId)>,
    lent: Share,
    #[cfg(test)]
    pub(crate) broken: Option<BrokenRule>,
}

impl Ledger {
    /// Most assignments of a holder that may be in use at once; further ones are not made.
    const MAX_ASSIGNMENTS: usize = 32;

    /// An empty central bucket at `from`, before which nothing can be taken.
    ///
    /// What was admitted and lent before is unknown: so a server that starts must not begin before
    /// everything that was lent has ended, and not with more than nothing.
    pub(crate) fn starting(limit: ShareLimit, timing: ShareTiming, from: Micros) -> Self {
        Self {
            limit,
            timing,
            central: 0,
            at: from,
            holders: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            lent: Share::default(),
            #[cfg(test)]
            broken: None,
        }
    }

    pub(crate) fn limit(&self) -> ShareLimit {
        self.limit
    }

    pub(crate) fn timing(&self) -> ShareTiming {
        self.timing
    }

    /// The last instant that it was advanced to.
    pub(crate) fn at(&self) -> Micros {
        self.at
    }

    /// What is lent to all holders.
    pub(crate) fn lent(&self) -> Share {
        self.lent
    }

    /// Whole tokens in the central bucket.
    pub(crate) fn central_tokens(&self) -> u64 {
        u64::try_from(self.central.max(0) / self.limit.unit()).unwrap_or(u64::MAX)
    }

    /// Ends what has expired by `now`, and returns holders that have no share any more but are
    /// still connected. An earlier instant than before changes nothing.
    pub(crate) fn advance(&mut self, now: Micros) -> Vec<HolderId> {
        let mut lapsed = Vec::new();
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.fill(deadline);
            self.change(id, |holder| holder.assignments.retain(|it| it.deadline > deadline));
            match self.holders.get(&id) {
                Some(holder) if !holder.assignments.is_empty() => {}
                Some(holder) if holder.is_gone => drop(self.holders.remove(&id)),
                Some(_) => lapsed.push(id),
                None => {}
            }
        }
        self.fill(now);
        lapsed
    }

    /// Fills the central bucket with what is not lent.
    fn fill(&mut self, now: Micros) {
        let span = now.saturating_sub(self.at);
        let mut rate = i128::from(self.limit.tokens) - i128::from(self.lent.tokens);
        if self.breaks(BrokenRule::CentralRateNotReduced) {
            rate = i128::from(self.limit.tokens);
        }
        self.central += rate * i128::from(span.get());
        self.cap();
        self.at = self.at.max(now);
    }

    fn cap(&mut self) {
        let room = i128::from(self.limit.burst) - i128::from(self.lent.burst);
        self.central = self.central.min(room.max(0) * self.limit.unit());
    }

    /// Changes a holder, and the sums with it.
    fn change<T>(
        &mut self,
        id: HolderId,
        change: impl FnOnce(&mut HolderShares) -> T,
    ) -> Option<T> {
        let interval = self.limit.interval;
        let holder = self.holders.get_mut(&id)?;
        let (before, deadline) = (holder.lent(interval), holder.first_deadline());
        let changed = change(holder);
        let (after, next) = (holder.lent(interval), holder.first_deadline());
        self.lent.burst = self.lent.burst - before.burst + after.burst;
        self.lent.tokens = self.lent.tokens - before.tokens + after.tokens;
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, id));
        }
        self.deadlines.extend(next.map(|next| (next, id)));
        Some(changed)
    }

    /// A holder without a share.
    pub(crate) fn join(&mut self, id: HolderId) {
        self.holders.entry(id).or_default();
    }

    /// The stream of a holder has ended. Its shares count until their deadlines.
    pub(crate) fn leave(&mut self, id: HolderId) {
        if let Some(holder) = self.holders.get_mut(&id) {
            holder.is_gone = true;
            if holder.assignments.is_empty() {
                self.holders.remove(&id);
            }
        }
    }

    /// Whether nothing is lent and the central bucket is full.
    pub(crate) fn is_unused(&self) -> bool {
        let full = i128::from(self.limit.burst) * self.limit.unit();
        self.holders.is_empty() && self.central == full
    }

    /// The last assignment of a holder, if it is surely in use when a message sent now arrives.
    pub(crate) fn in_use(&self, id: HolderId) -> Option<&Assignment> {
        let holder = self.holders.get(&id).filter(|holder| !holder.starts_full)?;
        let last = holder.last.as_ref()?;
        let (mut arrival, mut end) =
            (self.at.saturating_add(self.timing.guard), last.sent.saturating_add(self.timing.ttl));
        if self.breaks(BrokenRule::NoGuard) {
            arrival = self.at;
        } else if self.breaks(BrokenRule::ArrivalAtTheEnd) {
            end = end.saturating_add(Micros::new(1));
        } else if self.breaks(BrokenRule::RenewalTakenForKept) {
            end = Micros::new(u64::MAX);
        }
        (arrival < end).then_some(last)
    }

    /// Whether a holder may be using a share.
    pub(crate) fn has_share(&self, id: HolderId) -> bool {
        self.holders.get(&id).is_some_and(|holder| !holder.assignments.is_empty())
    }

    /// The most that a holder may use; nothing if it has no share.
    pub(crate) fn lent_to(&self, id: HolderId) -> Share {
        let holder = self.holders.get(&id);
        holder.map_or(Share::default(), |holder| holder.lent(self.limit.interval))
    }

    /// Lends a holder as much of `wanted` as fits and can be paid; `None` if that is nothing.
    ///
    /// A holder keeps its tokens if its last assignment is in use when the new one arrives; a
    /// larger burst then multiplies them, by at most its growth. Else its bucket starts full.
    pub(crate) fn grant(&mut self, id: HolderId, wanted: Share) -> Option<Assignment> {
        let holder = self.holders.get(&id)?;
        if holder.assignments.len() >= Self::MAX_ASSIGNMENTS {
            return None;
        }
        let own = holder.lent(self.limit.interval);
        let free = |limit: u64, lent: u64, own: u64| limit.saturating_sub(lent - own);
        let mut tokens = wanted.tokens.min(free(self.limit.tokens, self.lent.tokens, own.tokens));
        let burst = wanted.burst.min(free(self.limit.burst, self.lent.burst, own.burst));
        let kept = self.in_use(id).copied();
        let paid = kept.map_or(0, |last| last.share.burst);
        let burst = burst.min(paid.saturating_add(self.central_tokens()));
        if !self.breaks(BrokenRule::IntervalAloneChanged) {
            while tokens > 0 && holder.ignores(Share { burst, tokens }, self.limit.interval) {
                tokens -= 1;
            }
        }
        if burst == 0 || tokens == 0 {
            return None;
        }
        let minted = match kept {
            _ if self.breaks(BrokenRule::BurstNotPaid) => 0,
            Some(_) if self.breaks(BrokenRule::GrowthNotPaid) => 0,
            _ => burst.saturating_sub(paid),
        };
        self.central -= i128::from(minted) * self.limit.unit();
        let mut lifetime = self.timing.lifetime();
        if self.breaks(BrokenRule::NoGuard) {
            lifetime = self.timing.ttl;
        }
        let share = Share { burst, tokens };
        let deadline = self.at.saturating_add(lifetime);
        let interval = self.limit.interval;
        let assignment = Assignment { share, interval, sent: self.at, deadline };
        let replaces = self.breaks(BrokenRule::ShrunkAtOnce);
        self.change(id, |holder| {
            if replaces {
                holder.assignments.clear();
            }
            holder.push(assignment);
        });
        self.cap();
        Some(assignment)
    }

    /// The bucket of a holder starts full at its next assignment: it was told to deny, or the last
    /// assignment was not written.
    pub(crate) fn forget_last(&mut self, id: HolderId) {
        if self.breaks(BrokenRule::DroppedTakenForWritten) {
            return;
        }
        if let Some(holder) = self.holders.get_mut(&id) {
            holder.starts_full = true;
        }
    }

    /// Takes `tokens` from the central bucket, if it has them.
    pub(crate) fn take(&mut self, tokens: u64) -> bool {
        let fits = tokens <= self.central_tokens();
        if fits {
            self.central -= i128::from(tokens) * self.limit.unit();
        }
        fits
    }

    /// Takes `tokens` whether or not they are there; the debt is at most the burst.
    pub(crate) fn record(&mut self, tokens: u64) {
        let floor = -i128::from(self.limit.burst) * self.limit.unit();
        let after = self.central - i128::from(tokens) * self.limit.unit();
        self.central = after.max(floor.min(self.central));
    }

    /// Gives tokens back that were taken and not used.
    pub(crate) fn give_back(&mut self, tokens: u64) {
        self.central += i128::from(tokens) * self.limit.unit();
        self.cap();
    }

    /// Time until the central bucket has `tokens` at its present rate; `None` if never.
    pub(crate) fn wait_for(&self, tokens: u64) -> Option<Micros> {
        let missing = i128::from(tokens) * self.limit.unit() - self.central;
        if missing <= 0 {
            return Some(Micros::ZERO);
        }
        let rate = i128::from(self.limit.tokens) - i128::from(self.lent.tokens);
        let wait = (rate > 0).then(|| (missing + rate - 1) / rate)?;
        Some(Micros::new(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    /// The first instant at which a share ends.
    pub(crate) fn next_deadline(&self) -> Option<Micros> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Puts another limit in force. What is lent under the old one counts until its deadline.
    pub(crate) fn set_limit(&mut self, limit: ShareLimit) {
        let (old, new) = (self.limit.unit(), limit.unit());
        self.central = (self.central * new).div_euclid(old);
        self.limit = limit;
        let lent = self.holders.values().map(|holder| holder.lent(limit.interval));
        self.lent = lent.fold(Share::default(), |sum, one| Share {
            burst: sum.burst + one.burst,
            tokens: sum.tokens + one.tokens,
        });
        self.cap();
    }

    #[cfg(test)]
    fn breaks(&self, rule: BrokenRule) -> bool {
        self.broken == Some(rule)
    }

    #[cfg(not(test))]
    const fn breaks(&self, _: BrokenRule) -> bool {
        false
    }
}

/// One rule of the ledger, broken on purpose: the tests find a violation of the bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BrokenRule {
    GrowthNotPaid,
    BurstNotPaid,
    NoGuard,
    /// A message that arrives at the very end of the last assignment is taken for in time.
    ArrivalAtTheEnd,
    RenewalTakenForKept,
    IntervalAloneChanged,
    CentralRateNotReduced,
    /// A share that shrinks is free before the old one has ended.
    ShrunkAtOnce,
    DroppedTakenForWritten,
}
