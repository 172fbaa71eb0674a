//! The fixed window: aligned to the epoch, to the calendar, or to the first request.

use crate::arithmetic::Arithmetic;
use crate::calendar::{self, CalendarWindow};
use crate::packed::Packed;
use crate::state::state_is;
use crate::{CalendarUnit, Micros, Moment};

/// A count per window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) window: Window,
}

/// Where windows begin.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Window {
    /// At the multiples of a length.
    Aligned(u64),
    /// With a calendar unit.
    Calendar(CalendarUnit),
    /// With the first request, lasting this long.
    FirstHit(u64),
}

/// The count of the window that began at `start`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WindowCount {
    pub(crate) used: u64,
    pub(crate) start: u64,
}

impl FixedWindow {
    /// The window that contains `at`. A first-hit window that is over begins again.
    fn page(&self, state: Option<&WindowCount>, at: &Moment) -> CalendarWindow {
        let now = at.now().get();
        match self.window {
            Window::Aligned(length) => {
                let start = now - now % length;
                CalendarWindow { start, end: start + length }
            }
            Window::Calendar(unit) => calendar::page(unit, at),
            Window::FirstHit(length) => {
                let running = state.map(|s| s.start).filter(|start| now < start + length);
                let start = running.unwrap_or(now);
                CalendarWindow { start, end: start + length }
            }
        }
    }

    fn until_end(&self, state: &WindowCount, at: &Moment) -> Micros {
        Micros::new(self.page(Some(state), at).end - at.now().get())
    }

    /// The same count in a window of another length. A first-hit window that is running keeps its
    /// beginning, so that repeated changes of the limit do not extend it.
    pub(crate) fn carry(
        &self,
        old: &Self,
        state: &WindowCount,
        at: &Moment,
        used: u64,
    ) -> WindowCount {
        let began = match (old.window, self.window) {
            (Window::FirstHit(_), Window::FirstHit(_)) => Some(state),
            _ => None,
        };
        WindowCount { used, start: self.page(began, at).start }
    }
}

impl Arithmetic for FixedWindow {
    state_is!(WindowCount as Count);

    fn used(&self, state: &WindowCount, at: &Moment) -> u64 {
        if state.start == self.page(Some(state), at).start { state.used } else { 0 }
    }

    fn wait(&self, state: &WindowCount, at: &Moment, target: u64) -> Micros {
        if self.used(state, at) <= target { Micros::ZERO } else { self.until_end(state, at) }
    }

    fn reset_after(&self, state: &WindowCount, at: &Moment) -> Micros {
        if self.used(state, at) == 0 { Micros::ZERO } else { self.until_end(state, at) }
    }

    fn charge(
        &self,
        state: Option<WindowCount>,
        at: &Moment,
        permits: u64,
        _who: Option<&str>,
    ) -> Option<WindowCount> {
        let used = state.as_ref().map_or(0, |state| self.used(state, at));
        let used = used.saturating_add(permits).min(2 * self.limit);
        Some(WindowCount { used, start: self.page(state.as_ref(), at).start })
    }

    fn refund(&self, state: WindowCount, at: &Moment, permits: u64) -> (Option<WindowCount>, u64) {
        let used = self.used(&state, at);
        let given = permits.min(used);
        ((given < used).then_some(WindowCount { used: used - given, ..state }), given)
    }

    fn ahead(&self, state: &WindowCount, at: &Moment) -> bool {
        match self.window {
            Window::FirstHit(_) => state.start > at.now().get(),
            Window::Aligned(_) | Window::Calendar(_) => state.start > self.page(None, at).start,
        }
    }

    fn rebase(&self, state: &mut WindowCount, at: &Moment) {
        state.start = self.page(None, at).start;
    }

    fn pack(&self, state: &WindowCount) -> Option<Packed> {
        Packed::new([state.used, state.start])
    }

    fn unpack(&self, packed: Packed) -> Option<WindowCount> {
        let [used, start] = packed.numbers();
        Some(WindowCount { used, start })
    }
}
