//! Concurrency: a limit whose only state is its holds.

use core::convert::Infallible;

use crate::arithmetic::Arithmetic;
use crate::state::State;
use crate::{Micros, Moment};

/// At most `limit` slots, each for one lease unless it is renewed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Concurrency {
    pub(crate) limit: u64,
    pub(crate) lease: Micros,
}

/// Nothing is ever charged, so there is no state.
impl Arithmetic for Concurrency {
    type State = Infallible;

    fn read(_state: &State) -> Option<&Infallible> {
        None
    }

    fn take(_state: State) -> Option<Infallible> {
        None
    }

    fn wrap(state: Infallible) -> State {
        match state {}
    }

    fn used(&self, state: &Infallible, _at: &Moment) -> u64 {
        match *state {}
    }

    fn wait(&self, state: &Infallible, _at: &Moment, _target: u64) -> Micros {
        match *state {}
    }

    fn reset_after(&self, state: &Infallible, _at: &Moment) -> Micros {
        match *state {}
    }

    fn charge(
        &self,
        _state: Option<Infallible>,
        _at: &Moment,
        _permits: u64,
        _who: Option<&str>,
    ) -> Option<Infallible> {
        None
    }

    fn refund(&self, state: Infallible, _at: &Moment, _permits: u64) -> (Option<Infallible>, u64) {
        match state {}
    }

    fn ahead(&self, state: &Infallible, _at: &Moment) -> bool {
        match *state {}
    }

    fn rebase(&self, state: &mut Infallible, _at: &Moment) {
        match *state {}
    }
}
