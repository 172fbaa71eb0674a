//! The bucket: `token-bucket`, and `leaky-bucket` as a meter and as a queue.
//!
//! The level rises with charges and drains at the rate of the limit. A token bucket that holds
//! `burst - n` tokens is this bucket filled with `n`.
//!
//! The level is kept in units chosen so that both a permit and the drain of a tick are whole: only
//! time is ever rounded. Time is rounded against the caller. Decisions use the tick that contains
//! `now`, without the drain since its beginning. A charge that finds less in the bucket than one
//! tick drains starts the drain at the next tick, because the bucket may have been empty for part
//! of this one.

use crate::arithmetic::Arithmetic;
use crate::invalid_limit::{InvalidLimit, LimitField};
use crate::packed::Packed;
use crate::state::state_is;
use crate::time::Tick;
use crate::{Micros, Moment, Verdict, Wait};

/// The numbers of a bucket, derived from `count` per `period` and a capacity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Bucket {
    pub(crate) tick: Tick,
    /// Units per permit.
    pub(crate) permit: u64,
    /// Units drained per tick.
    pub(crate) drain: u64,
    /// Permits that fit.
    pub(crate) size: u64,
    pub(crate) queue: bool,
}

/// The level of a bucket at an instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BucketLevel {
    /// Units in the bucket, up to and including tick `at`.
    pub(crate) units: u64,
    /// The tick from which it drains.
    pub(crate) at: u64,
    /// Units of the latest charge: the only one that a queue can refund.
    pub(crate) last: u64,
}

impl Bucket {
    /// Capacities in units stay below this, so that a debt of twice the capacity is exact in Lua.
    const MAX_UNITS: u64 = 1 << 52;

    pub(crate) fn new(
        count: u64,
        period: Micros,
        size: u64,
        queue: bool,
        part: LimitField,
    ) -> Result<Self, InvalidLimit> {
        Self::on_finest_tick(count, period, size, queue).ok_or_else(|| {
            // Counts that share a factor with the period need fewer units.
            let neighbours = (1..=50).flat_map(|d| [count.saturating_sub(d), count + d]);
            let fits = |&c: &u64| c > 0 && Self::on_finest_tick(c, period, c, queue).is_some();
            let nearest_count = (size == count).then(|| neighbours.into_iter().find(fits));
            if let Some(nearest) = nearest_count.flatten() {
                return InvalidLimit::Inexact { part: LimitField::Count, nearest };
            }
            let (permit, _) = ratio(count, period, Tick::Second);
            InvalidLimit::Inexact { part, nearest: (Self::MAX_UNITS - 1) / permit }
        })
    }

    fn on_finest_tick(count: u64, period: Micros, size: u64, queue: bool) -> Option<Self> {
        Tick::ALL.into_iter().find_map(|tick| {
            let (permit, drain) = ratio(count, period, tick);
            let capacity = size.checked_mul(permit).filter(|&units| units < Self::MAX_UNITS)?;
            // A tick that drains more than the bucket and its debt can hold just empties it.
            let drain = u64::try_from(drain.min(u128::from(2 * capacity + 1))).ok()?;
            Some(Self { tick, permit, drain, size, queue })
        })
    }

    #[inline]
    fn capacity(&self) -> u64 {
        self.size * self.permit
    }

    fn units_of(&self, permits: u64) -> u64 {
        permits.min(2 * self.size) * self.permit
    }

    /// What is left at `tick` of `units` that drain from tick `at`.
    #[inline]
    fn level(&self, units: u64, at: u64, tick: u64) -> u64 {
        let ticks = tick.saturating_sub(at);
        // Most buckets drain one unit per tick and need no multiplication.
        let drained = if self.drain == 1 { ticks } else { ticks.saturating_mul(self.drain) };
        units.saturating_sub(drained)
    }

    fn level_at(&self, state: &BucketLevel, at: &Moment) -> u64 {
        self.level(state.units, state.at, self.tick.floor(at.now()))
    }

    /// How many ticks it takes to drain `units`.
    #[inline]
    fn ticks_for(&self, units: u64) -> u64 {
        // Most buckets need no division either.
        if self.drain <= 1 { units } else { units.div_ceil(self.drain) }
    }

    /// The span until the level is down to `units`; it must be higher now.
    fn until(&self, state: &BucketLevel, units: u64, now: Micros) -> Micros {
        self.tick.until(state.at + self.ticks_for(state.units.saturating_sub(units)), now)
    }

    /// Fast path: checks a level and adds the cost if it fits. Only for a bucket that counts
    /// microseconds and is not a queue, a state that is not ahead of the clock, and a cost of 1 to
    /// the capacity; `None` otherwise. The resulting state is never that of an unused key.
    #[inline(always)]
    pub(crate) fn decide_plainly(
        &self,
        [units, at]: [u64; 2],
        now: Micros,
        cost: u64,
    ) -> Option<(Verdict, [u64; 2])> {
        let tick = now.get();
        let is_simple = self.tick == Tick::Micro && !self.queue;
        if !is_simple || at > tick + 1 || cost.wrapping_sub(1) >= self.size {
            return None;
        }
        let level = self.level(units, at, tick);
        let filled = level + cost * self.permit;
        let allowed = filled <= self.capacity();
        let (level, left, retry_after) = if allowed {
            (filled, [filled, at.max(tick)], Wait::NONE)
        } else {
            // The units above the capacity if the cost were added.
            let over = units + cost * self.permit - self.capacity();
            let wait = Micros::new((at + self.ticks_for(over)).saturating_sub(tick));
            (level, [units, at], Wait::For(wait))
        };
        let used = level.div_ceil(self.permit);
        let empty_at = left[1] + self.ticks_for(left[0]);
        let verdict = Verdict {
            allowed,
            retry_after,
            delay: Micros::ZERO,
            limit: self.size,
            remaining: self.size.saturating_sub(used),
            reset_after: Micros::new(empty_at.saturating_sub(tick)),
        };
        Some((verdict, left))
    }

    /// The same consumption in the units of this bucket, rounded up and at most its capacity.
    pub(crate) fn carry(
        &self,
        old: &Self,
        state: &BucketLevel,
        at: &Moment,
    ) -> Option<BucketLevel> {
        let tick = old.tick.floor(at.now());
        let units = u128::from(old.level(state.units, state.at, tick)) * u128::from(self.permit);
        let units = u64::try_from(units.div_ceil(u128::from(old.permit))).unwrap_or(u64::MAX);
        let units = units.min(self.capacity());
        // Nothing is added, so the drain continues.
        let drains_from = (tick.max(state.at) * old.tick.span().get()).min(at.now().get());
        let at = drains_from.div_ceil(self.tick.span().get());
        (units > 0).then_some(BucketLevel { units, at, last: 0 })
    }
}

/// Units per permit and units drained per tick: the period and the permits per period, reduced.
fn ratio(count: u64, period: Micros, tick: Tick) -> (u64, u128) {
    let permits = u128::from(count) * u128::from(tick.span().get());
    let divisor = gcd(permits, u128::from(period.get()));
    let permit = u128::from(period.get()) / divisor;
    (u64::try_from(permit).unwrap_or(u64::MAX), permits / divisor)
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Arithmetic for Bucket {
    state_is!(BucketLevel as Level);

    fn used(&self, state: &BucketLevel, at: &Moment) -> u64 {
        self.level_at(state, at).div_ceil(self.permit)
    }

    /// Like the default, without a division.
    fn fits(&self, state: &BucketLevel, at: &Moment, permits: u64, _capacity: u64) -> bool {
        let level = self.level_at(state, at);
        permits <= self.size && level <= self.capacity() - self.units_of(permits)
    }

    fn wait(&self, state: &BucketLevel, at: &Moment, target: u64) -> Micros {
        let target = self.units_of(target);
        if self.level_at(state, at) <= target {
            return Micros::ZERO;
        }
        self.until(state, target, at.now())
    }

    fn reset_after(&self, state: &BucketLevel, at: &Moment) -> Micros {
        self.until(state, 0, at.now())
    }

    fn delay(&self, state: &BucketLevel, at: &Moment) -> Micros {
        if self.queue { self.until(state, 0, at.now()) } else { Micros::ZERO }
    }

    fn charge(
        &self,
        state: Option<BucketLevel>,
        at: &Moment,
        permits: u64,
        _who: Option<&str>,
    ) -> Option<BucketLevel> {
        let tick = self.tick.floor(at.now());
        let (level, drains_from) = match &state {
            Some(state) => (self.level(state.units, state.at, tick), state.at),
            None => (0, 0),
        };
        let begun = if level < self.drain { self.tick.ceil(at.now()) } else { tick };
        let added = self.units_of(permits).min((2 * self.capacity()).saturating_sub(level));
        Some(BucketLevel { units: level + added, at: drains_from.max(begun), last: added })
    }

    fn refund(&self, state: BucketLevel, at: &Moment, permits: u64) -> (Option<BucketLevel>, u64) {
        let level = self.level_at(&state, at);
        let most = if self.queue { level.min(state.last) } else { level };
        let given = self.units_of(permits).min(most);
        let left = BucketLevel {
            units: state.units - given,
            last: state.last.saturating_sub(given),
            ..state
        };
        ((given < level).then_some(left), given.div_ceil(self.permit))
    }

    /// A charge may write the tick after the present one; that is not a step back.
    fn ahead(&self, state: &BucketLevel, at: &Moment) -> bool {
        state.at > self.tick.floor(at.now()) + 1
    }

    fn rebase(&self, state: &mut BucketLevel, at: &Moment) {
        state.at = self.tick.ceil(at.now());
    }

    fn pack(&self, state: &BucketLevel) -> Option<Packed> {
        Packed::new([state.units, state.at])
    }

    fn unpack(&self, packed: Packed) -> Option<BucketLevel> {
        let [units, at] = packed.numbers();
        Some(BucketLevel { units, at, last: 0 })
    }
}
