//! The token bucket that refills in steps: `token-bucket .. every`.

use crate::arithmetic::Arithmetic;
use crate::invalid_limit::InvalidLimit;
use crate::packed::Packed;
use crate::state::state_is;
use crate::{Micros, Moment};

/// A bucket that is refilled with `amount` permits at every multiple of `every`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SteppedBucket {
    pub(crate) every: u64,
    pub(crate) amount: u64,
    pub(crate) size: u64,
}

/// Permits missing from the bucket as of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SteppedLevel {
    pub(crate) used: u64,
    pub(crate) step: u64,
}

impl SteppedBucket {
    pub(crate) fn new(
        count: u64,
        period: Micros,
        every: Micros,
        size: u64,
    ) -> Result<Self, InvalidLimit> {
        if !period.get().is_multiple_of(every.get()) {
            return Err(InvalidLimit::EveryDoesNotDivide);
        }
        let steps = period.get() / every.get();
        if !count.is_multiple_of(steps) {
            return Err(InvalidLimit::EveryNotWhole);
        }
        Ok(Self { every: every.get(), amount: count / steps, size })
    }

    fn step(&self, at: &Moment) -> u64 {
        at.now().get() / self.every
    }

    /// The span until consumption is down to `used`; it must be higher now.
    fn until(&self, state: &SteppedLevel, used: u64, at: &Moment) -> Micros {
        let step = state.step + state.used.saturating_sub(used).div_ceil(self.amount.max(1));
        let instant = u128::from(step) * u128::from(self.every);
        Micros::saturating_from(instant.saturating_sub(u128::from(at.now().get())))
    }
}

impl Arithmetic for SteppedBucket {
    state_is!(SteppedLevel as Stepped);

    fn used(&self, state: &SteppedLevel, at: &Moment) -> u64 {
        let steps = self.step(at).saturating_sub(state.step);
        state.used.saturating_sub(steps.saturating_mul(self.amount))
    }

    fn wait(&self, state: &SteppedLevel, at: &Moment, target: u64) -> Micros {
        if self.used(state, at) <= target { Micros::ZERO } else { self.until(state, target, at) }
    }

    fn reset_after(&self, state: &SteppedLevel, at: &Moment) -> Micros {
        self.until(state, 0, at)
    }

    fn charge(
        &self,
        state: Option<SteppedLevel>,
        at: &Moment,
        permits: u64,
        _who: Option<&str>,
    ) -> Option<SteppedLevel> {
        let used = state.map_or(0, |state| self.used(&state, at));
        let used = used.saturating_add(permits).min(2 * self.size);
        Some(SteppedLevel { used, step: self.step(at) })
    }

    fn refund(
        &self,
        state: SteppedLevel,
        at: &Moment,
        permits: u64,
    ) -> (Option<SteppedLevel>, u64) {
        let used = self.used(&state, at);
        let given = permits.min(used);
        let left = SteppedLevel { used: used - given, step: self.step(at) };
        ((given < used).then_some(left), given)
    }

    fn ahead(&self, state: &SteppedLevel, at: &Moment) -> bool {
        state.step > self.step(at)
    }

    fn rebase(&self, state: &mut SteppedLevel, at: &Moment) {
        state.step = self.step(at);
    }

    fn pack(&self, state: &SteppedLevel) -> Option<Packed> {
        Packed::new([state.used, state.step])
    }

    fn unpack(&self, packed: Packed) -> Option<SteppedLevel> {
        let [used, step] = packed.numbers();
        Some(SteppedLevel { used, step })
    }
}
