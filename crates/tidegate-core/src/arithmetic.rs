//! The operations that every algorithm implements. Internal: users call them on
//! [`Limit`](crate::Limit).

use crate::packed::Packed;
use crate::state::State;
use crate::{Micros, Moment};

/// The arithmetic of one algorithm over its own kind of state.
///
/// Everything but [`ahead`](Self::ahead) and [`rebase`](Self::rebase) may assume that the state is
/// not ahead of the clock. `permits` is at least 1.
pub(crate) trait Arithmetic {
    type State: Clone;

    /// The state, if it belongs to this algorithm.
    fn read(state: &State) -> Option<&Self::State>;

    fn take(state: State) -> Option<Self::State>;

    fn wrap(state: Self::State) -> State;

    /// Consumption in permits, rounded up.
    fn used(&self, state: &Self::State, at: &Moment) -> u64;

    /// Do `permits` more fit now?
    fn fits(&self, state: &Self::State, at: &Moment, permits: u64, capacity: u64) -> bool {
        permits <= capacity.saturating_sub(self.used(state, at))
    }

    /// How long until consumption has fallen to `target` permits, if nothing else happens.
    fn wait(&self, state: &Self::State, at: &Moment, target: u64) -> Micros;

    /// How long until the state equals that of an unused key.
    fn reset_after(&self, state: &Self::State, at: &Moment) -> Micros;

    /// How long a request that is allowed now is delayed; only a queue delays.
    fn delay(&self, _state: &Self::State, _at: &Moment) -> Micros {
        Micros::ZERO
    }

    /// Adds consumption, up to twice the capacity: debt is at most one more limit.
    fn charge(
        &self,
        state: Option<Self::State>,
        at: &Moment,
        permits: u64,
        who: Option<&str>,
    ) -> Option<Self::State>;

    /// Refunds at most the present consumption. Returns the state that is left and the permits
    /// refunded.
    fn refund(&self, state: Self::State, at: &Moment, permits: u64) -> (Option<Self::State>, u64);

    /// Was the state written at a later instant? If so, the clock has stepped back.
    fn ahead(&self, state: &Self::State, at: &Moment) -> bool;

    /// Moves a state that is ahead of the clock to now, keeping its consumption.
    fn rebase(&self, state: &mut Self::State, at: &Moment);

    /// The state as two numbers, if two numbers are enough.
    fn pack(&self, _state: &Self::State) -> Option<Packed> {
        None
    }

    /// The state that was packed.
    fn unpack(&self, _packed: Packed) -> Option<Self::State> {
        None
    }
}
