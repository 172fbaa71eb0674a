//! What every algorithm must be able to do. Internal: users see it as [`Limit`](crate::Limit).

use crate::packed::Packed;
use crate::state::State;
use crate::{Micros, Moment};

/// The arithmetic of one algorithm over its own kind of state.
///
/// Everything but [`ahead`](Self::ahead) and [`rebase`](Self::rebase) may assume that the state is
/// not ahead of the clock. `permits` is at least 1 and, for [`wait`](Self::wait), at most the
/// limit's capacity.
pub(crate) trait Arithmetic {
    type State: Clone;

    /// The state, if it is of this algorithm's kind.
    fn read(state: &State) -> Option<&Self::State>;

    fn take(state: State) -> Option<Self::State>;

    fn wrap(state: Self::State) -> State;

    /// Consumption in permits, rounded up.
    fn used(&self, state: &Self::State, at: &Moment) -> u64;

    /// Do `permits` more fit now?
    fn fits(&self, state: &Self::State, at: &Moment, permits: u64, capacity: u64) -> bool {
        permits <= capacity.saturating_sub(self.used(state, at))
    }

    /// How long until `permits` more fit, if nothing else happens.
    fn wait(&self, state: &Self::State, at: &Moment, permits: u64) -> Micros;

    /// How long until the state equals that of an unused key.
    fn reset_after(&self, state: &Self::State, at: &Moment) -> Micros;

    /// How long a request that is allowed now must wait for its turn.
    fn delay(&self, _state: &Self::State, _at: &Moment) -> Micros {
        Micros::ZERO
    }

    /// Adds consumption, up to twice the capacity: a debt is at most one more limit.
    fn charge(
        &self,
        state: Option<Self::State>,
        at: &Moment,
        permits: u64,
        who: Option<&str>,
    ) -> Option<Self::State>;

    /// Takes back at most the present consumption. Returns what is left and how much came back.
    fn refund(&self, state: Self::State, at: &Moment, permits: u64) -> (Option<Self::State>, u64);

    /// Was the state written at a later instant? Then the clock has stepped back.
    fn ahead(&self, state: &Self::State, at: &Moment) -> bool;

    /// Brings a state that is ahead back to now, keeping its consumption.
    fn rebase(&self, state: &mut Self::State, at: &Moment);

    /// The state as two numbers, where it is no more than that.
    fn pack(&self, _state: &Self::State) -> Option<Packed> {
        None
    }

    /// The state that was packed.
    fn unpack(&self, _packed: Packed) -> Option<Self::State> {
        None
    }
}
