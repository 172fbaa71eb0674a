//! The fixed window: aligned to the epoch, to the calendar, or to the first request.

use crate::arithmetic::Arithmetic;
use crate::calendar::{self, Page};
use crate::packed::Packed;
use crate::state::state_is;
use crate::{CalendarUnit, Micros, Moment};

/// A count per window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Fixed {
    pub(crate) limit: u64,
    pub(crate) window: Window,
}

/// Where windows begin and end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Window {
    /// At the multiples of a length.
    Aligned(u64),
    /// With a page of the calendar.
    Calendar(CalendarUnit),
    /// With the first request, lasting this long.
    FirstHit(u64),
}

/// What was counted in the window that began at `start`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Count {
    used: u64,
    start: u64,
}

impl Fixed {
    /// The window that `at` lies in. A first-hit window that is over begins anew.
    fn page(&self, state: Option<&Count>, at: &Moment) -> Page {
        let now = at.now().get();
        match self.window {
            Window::Aligned(length) => {
                let start = now - now % length;
                Page { start, end: start + length }
            }
            Window::Calendar(unit) => calendar::page(unit, at),
            Window::FirstHit(length) => {
                let running = state.map(|s| s.start).filter(|start| now < start + length);
                let start = running.unwrap_or(now);
                Page { start, end: start + length }
            }
        }
    }

    fn until_end(&self, state: &Count, at: &Moment) -> Micros {
        Micros::new(self.page(Some(state), at).end - at.now().get())
    }

    /// The same count in a window of another length. A first-hit window that goes on keeps its
    /// beginning, so that changing the limit again and again does not prolong it.
    pub(crate) fn carry(&self, old: &Self, state: &Count, at: &Moment, used: u64) -> Count {
        let began = match (old.window, self.window) {
            (Window::FirstHit(_), Window::FirstHit(_)) => Some(state),
            _ => None,
        };
        Count { used, start: self.page(began, at).start }
    }
}

impl Arithmetic for Fixed {
    state_is!(Count as Count);

    fn used(&self, state: &Count, at: &Moment) -> u64 {
        if state.start == self.page(Some(state), at).start { state.used } else { 0 }
    }

    fn wait(&self, state: &Count, at: &Moment, permits: u64) -> Micros {
        if self.used(state, at) <= self.limit - permits {
            return Micros::ZERO;
        }
        self.until_end(state, at)
    }

    fn reset_after(&self, state: &Count, at: &Moment) -> Micros {
        if self.used(state, at) == 0 { Micros::ZERO } else { self.until_end(state, at) }
    }

    fn charge(
        &self,
        state: Option<Count>,
        at: &Moment,
        permits: u64,
        _who: Option<&str>,
    ) -> Option<Count> {
        let used = state.as_ref().map_or(0, |state| self.used(state, at));
        let used = used.saturating_add(permits).min(2 * self.limit);
        Some(Count { used, start: self.page(state.as_ref(), at).start })
    }

    fn refund(&self, state: Count, at: &Moment, permits: u64) -> (Option<Count>, u64) {
        let used = self.used(&state, at);
        let given = permits.min(used);
        ((given < used).then_some(Count { used: used - given, ..state }), given)
    }

    fn ahead(&self, state: &Count, at: &Moment) -> bool {
        match self.window {
            Window::FirstHit(_) => state.start > at.now().get(),
            Window::Aligned(_) | Window::Calendar(_) => state.start > self.page(None, at).start,
        }
    }

    fn rebase(&self, state: &mut Count, at: &Moment) {
        state.start = self.page(None, at).start;
    }

    fn pack(&self, state: &Count) -> Option<Packed> {
        Packed::new([state.used, state.start])
    }

    fn unpack(&self, packed: Packed) -> Option<Count> {
        let [used, start] = packed.numbers();
        Some(Count { used, start })
    }
}
