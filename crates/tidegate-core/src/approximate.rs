//! The sliding window from two counters: `sliding-window .. approximate`.
//!
//! The previous window counts for the share of it that the sliding window still covers. That is a
//! guess at when its requests came, and so is the promise: fewer than twice the limit.

use crate::arithmetic::Arithmetic;
use crate::invalid::{InvalidLimit, Part};
use crate::packed::Packed;
use crate::state::state_is;
use crate::time::Tick;
use crate::{Micros, Moment};

/// A limit and a window in ticks whose product stays exact.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Approximate {
    pub(crate) tick: Tick,
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

/// The counts of a window and of the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pair {
    previous: u64,
    present: u64,
    /// The number of the present window since the epoch.
    index: u64,
}

impl Approximate {
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
                Err(InvalidLimit::Inexact { part: Part::Count, nearest })
            }
        }
    }

    /// The counters as of `at`, and how many ticks of the present window have passed.
    fn brought_to(&self, state: &Pair, at: &Moment) -> (Pair, u64) {
        let tick = self.tick.floor(at.now());
        let index = tick / self.window;
        let pair = match index - state.index {
            0 => *state,
            1 => Pair { previous: state.present, present: 0, index },
            _ => Pair { previous: 0, present: 0, index },
        };
        (pair, tick % self.window)
    }

    /// What is left of the previous window's count after `passed` ticks of the present one.
    fn weighed(&self, pair: &Pair, passed: u64) -> u64 {
        (pair.previous * (self.window - passed)).div_ceil(self.window)
    }

    /// What counts of both. A step back inside the window makes the previous count weigh more
    /// again, but never more than a debt may be.
    fn sum(&self, pair: &Pair, passed: u64) -> u64 {
        (pair.present + self.weighed(pair, passed)).min(2 * self.limit)
    }

    /// The earliest tick of the window after `count` was counted at which `room` permits are enough
    /// to hold what is left of `count`, as a number of ticks since that window began.
    fn fades_to(&self, count: u64, room: u64) -> u64 {
        let ticks_that_fit = (room * self.window).checked_div(count);
        ticks_that_fit.map_or(0, |ticks| self.window.saturating_sub(ticks))
    }

    /// The span until tick `passed` of the window number `index`.
    fn until(&self, index: u64, passed: u64, at: &Moment) -> Micros {
        self.tick.until(index * self.window + passed, at.now())
    }

    /// The same counters under another limit; only the limit's own clamp changes them.
    pub(crate) fn carry(&self, old: &Self, state: &Pair, at: &Moment) -> Option<Option<Pair>> {
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

impl Arithmetic for Approximate {
    state_is!(Pair as Pair);

    fn used(&self, state: &Pair, at: &Moment) -> u64 {
        let (pair, passed) = self.brought_to(state, at);
        self.sum(&pair, passed)
    }

    fn wait(&self, state: &Pair, at: &Moment, permits: u64) -> Micros {
        let (pair, passed) = self.brought_to(state, at);
        let room = self.limit - permits;
        if self.sum(&pair, passed) <= room {
            return Micros::ZERO;
        }
        if pair.present <= room {
            return self.until(pair.index, self.fades_to(pair.previous, room - pair.present), at);
        }
        self.until(pair.index + 1, self.fades_to(pair.present, room), at)
    }

    fn reset_after(&self, state: &Pair, at: &Moment) -> Micros {
        let (pair, _) = self.brought_to(state, at);
        match (pair.previous, pair.present) {
            (0, 0) => Micros::ZERO,
            (_, 0) => self.until(pair.index + 1, 0, at),
            _ => self.until(pair.index + 2, 0, at),
        }
    }

    fn charge(
        &self,
        state: Option<Pair>,
        at: &Moment,
        permits: u64,
        _who: Option<&str>,
    ) -> Option<Pair> {
        let index = self.tick.floor(at.now()) / self.window;
        let unused = Pair { previous: 0, present: 0, index };
        let (mut pair, passed) = self.brought_to(&state.unwrap_or(unused), at);
        pair.present += permits.min((2 * self.limit).saturating_sub(self.sum(&pair, passed)));
        Some(pair)
    }

    /// The present window first: a counter of the past gives back only a share of what is taken.
    fn refund(&self, state: Pair, at: &Moment, permits: u64) -> (Option<Pair>, u64) {
        let (mut pair, passed) = self.brought_to(&state, at);
        let used = self.sum(&pair, passed);
        let from_present = permits.min(pair.present);
        pair.present -= from_present;
        pair.previous = pair.previous.saturating_sub(permits - from_present);
        let left = self.sum(&pair, passed);
        ((pair.present + pair.previous > 0).then_some(pair), used - left)
    }

    fn ahead(&self, state: &Pair, at: &Moment) -> bool {
        state.index > self.tick.floor(at.now()) / self.window
    }

    /// Both counts become the present one: at the end of an earlier window the previous count would
    /// weigh nothing, and what it stands for would pass again.
    fn rebase(&self, state: &mut Pair, at: &Moment) {
        state.index = self.tick.floor(at.now()) / self.window;
        state.present = (state.present + state.previous).min(2 * self.limit);
        state.previous = 0;
    }

    /// Counts below 2^26 share a number.
    fn pack(&self, state: &Pair) -> Option<Packed> {
        let fits = (state.previous | state.present) >> Self::PACKED_BITS == 0;
        let counts = state.previous << Self::PACKED_BITS | state.present;
        if fits { Packed::new([counts, state.index]) } else { None }
    }

    fn unpack(&self, packed: Packed) -> Option<Pair> {
        let [counts, index] = packed.numbers();
        let present = counts & ((1 << Self::PACKED_BITS) - 1);
        Some(Pair { previous: counts >> Self::PACKED_BITS, present, index })
    }
}
