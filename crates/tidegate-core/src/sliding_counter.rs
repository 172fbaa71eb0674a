//! The sliding window from two counters: `sliding-window .. approximate`.
//!
//! The previous window counts in proportion to its part that the sliding window still covers. That
//! assumes evenly spread requests, so the bound is weaker: fewer than twice the limit.

use crate::arithmetic::Arithmetic;
use crate::invalid_limit::{InvalidLimit, LimitField};
use crate::packed::Packed;
use crate::state::state_is;
use crate::time::Tick;
use crate::{Micros, Moment};

/// A limit and a window in ticks whose product is exact.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SlidingCounter {
    pub(crate) tick: Tick,
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

/// The counts of a window and of the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CounterPair {
    pub(crate) previous: u64,
    pub(crate) present: u64,
    /// The number of the present window since the epoch.
    pub(crate) index: u64,
}

impl SlidingCounter {
    const MAX_PRODUCT: u64 = 1 << 52;
    const PACKED_BITS: u32 = 26;

    pub(crate) fn new(limit: u64, window: Micros) -> Result<Self, InvalidLimit> {
        let whole_ticks = |tick: &Tick| window.get().is_multiple_of(tick.span().get());
        let in_ticks = |tick: Tick| (tick, window.get() / tick.span().get());
        let candidates = || Tick::ALL.into_iter().filter(whole_ticks).map(in_ticks);
        let fits = |window: u64| limit.checked_mul(window).is_some_and(|p| p < Self::MAX_PRODUCT);
        match candidates().find(|&(_, window)| fits(window)) {
            Some((tick, window)) => Ok(Self { tick, limit, window }),
            None => {
                let fewest = candidates().map(|(_, window)| window).min().unwrap_or(1);
                let nearest = (Self::MAX_PRODUCT - 1) / fewest;
                Err(InvalidLimit::Inexact { part: LimitField::Count, nearest })
            }
        }
    }

    /// The counters at `at`, and how many ticks of the present window have passed.
    fn brought_to(&self, state: &CounterPair, at: &Moment) -> (CounterPair, u64) {
        let tick = self.tick.floor(at.now());
        let index = tick / self.window;
        let pair = match index - state.index {
            0 => *state,
            1 => CounterPair { previous: state.present, present: 0, index },
            _ => CounterPair { previous: 0, present: 0, index },
        };
        (pair, tick % self.window)
    }

    /// What is left of the count of the previous window after `passed` ticks of the present one.
    fn weighed(&self, pair: &CounterPair, passed: u64) -> u64 {
        (pair.previous * (self.window - passed)).div_ceil(self.window)
    }

    /// The sum of both counts. A step back inside the window increases the weight of the previous
    /// count, but never beyond the maximum debt.
    fn sum(&self, pair: &CounterPair, passed: u64) -> u64 {
        (pair.present + self.weighed(pair, passed)).min(2 * self.limit)
    }

    /// The earliest tick of the next window at which what is left of `count` fits into `room`
    /// permits, counted from the beginning of that window.
    fn fades_to(&self, count: u64, room: u64) -> u64 {
        let ticks_that_fit = (room * self.window).checked_div(count);
        ticks_that_fit.map_or(0, |ticks| self.window.saturating_sub(ticks))
    }

    /// The span until tick `passed` of window number `index`.
    fn until(&self, index: u64, passed: u64, at: &Moment) -> Micros {
        self.tick.until(index * self.window + passed, at.now())
    }

    /// The same counters under another limit, clamped to it.
    pub(crate) fn carry(
        &self,
        old: &Self,
        state: &CounterPair,
        at: &Moment,
    ) -> Option<Option<CounterPair>> {
        if (old.window, old.tick) != (self.window, self.tick) {
            return None;
        }
        let (mut pair, passed) = self.brought_to(state, at);
        pair.present = pair.present.min(self.limit);
        let room = self.limit - pair.present;
        let fits = room * self.window / (self.window - passed);
        pair.previous = pair.previous.min(fits).min(2 * self.limit);
        Some((pair.previous + pair.present > 0).then_some(pair))
    }
}

impl Arithmetic for SlidingCounter {
    state_is!(CounterPair as Pair);

    fn used(&self, state: &CounterPair, at: &Moment) -> u64 {
        let (pair, passed) = self.brought_to(state, at);
        self.sum(&pair, passed)
    }

    fn wait(&self, state: &CounterPair, at: &Moment, target: u64) -> Micros {
        let (pair, passed) = self.brought_to(state, at);
        if self.sum(&pair, passed) <= target {
            return Micros::ZERO;
        }
        if pair.present <= target {
            return self.until(pair.index, self.fades_to(pair.previous, target - pair.present), at);
        }
        self.until(pair.index + 1, self.fades_to(pair.present, target), at)
    }

    fn reset_after(&self, state: &CounterPair, at: &Moment) -> Micros {
        let (pair, _) = self.brought_to(state, at);
        match (pair.previous, pair.present) {
            (0, 0) => Micros::ZERO,
            (_, 0) => self.until(pair.index + 1, 0, at),
            _ => self.until(pair.index + 2, 0, at),
        }
    }

    fn charge(
        &self,
        state: Option<CounterPair>,
        at: &Moment,
        permits: u64,
        _who: Option<&str>,
    ) -> Option<CounterPair> {
        let index = self.tick.floor(at.now()) / self.window;
        let unused = CounterPair { previous: 0, present: 0, index };
        let (mut pair, passed) = self.brought_to(&state.unwrap_or(unused), at);
        pair.present += permits.min((2 * self.limit).saturating_sub(self.sum(&pair, passed)));
        Some(pair)
    }

    /// The present window first: the previous count refunds only a part of what is taken from it.
    fn refund(&self, state: CounterPair, at: &Moment, permits: u64) -> (Option<CounterPair>, u64) {
        let (mut pair, passed) = self.brought_to(&state, at);
        let used = self.sum(&pair, passed);
        let from_present = permits.min(pair.present);
        pair.present -= from_present;
        pair.previous = pair.previous.saturating_sub(permits - from_present);
        let left = self.sum(&pair, passed);
        ((pair.present + pair.previous > 0).then_some(pair), used - left)
    }

    fn ahead(&self, state: &CounterPair, at: &Moment) -> bool {
        state.index > self.tick.floor(at.now()) / self.window
    }

    /// Both counts become the present one: at the end of an earlier window the previous count would
    /// weigh nothing, and its permits could be used again.
    fn rebase(&self, state: &mut CounterPair, at: &Moment) {
        state.index = self.tick.floor(at.now()) / self.window;
        state.present = (state.present + state.previous).min(2 * self.limit);
        state.previous = 0;
    }

    /// Two counts below 2^26 fit into one number.
    fn pack(&self, state: &CounterPair) -> Option<Packed> {
        let fits = (state.previous | state.present) >> Self::PACKED_BITS == 0;
        let counts = state.previous << Self::PACKED_BITS | state.present;
        if fits { Packed::new([counts, state.index]) } else { None }
    }

    fn unpack(&self, packed: Packed) -> Option<CounterPair> {
        let [counts, index] = packed.numbers();
        let present = counts & ((1 << Self::PACKED_BITS) - 1);
        Some(CounterPair { previous: counts >> Self::PACKED_BITS, present, index })
    }
}
