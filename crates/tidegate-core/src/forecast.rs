//! The future of a state if nobody comes: holds expire, consumption recovers.

use alloc::borrow::Cow;

use crate::limit::Standing;
use crate::{Expiry, Hold, Holds, Limit, Micros, Moment, State, Wait};

/// A state and its holds as they are at a moment, and as they will be.
///
/// Holds that expired since the last write are gone or charged here without being written, so that
/// looking never writes.
#[derive(Clone)]
pub(crate) struct Forecast<'a> {
    limit: &'a Limit,
    state: Option<Cow<'a, State>>,
    /// Holds that still last, the next to expire first.
    holds: Cow<'a, [Hold]>,
    passed: usize,
    held: u64,
    /// Will a hold be charged when it ends?
    charges: bool,
    at: Moment,
}

impl<'a> Forecast<'a> {
    pub(crate) fn new(
        limit: &'a Limit,
        state: Option<&'a State>,
        holds: &'a Holds,
        at: &Moment,
    ) -> Self {
        let mut forecast = Self {
            limit,
            state: limit.rebased(state, at),
            held: holds.held(),
            charges: holds.any_charged(),
            holds: holds.rebased(at.now()),
            passed: 0,
            at: *at,
        };
        while forecast.next_hold().is_some_and(|hold| hold.has_ended(at.now())) {
            forecast.let_next_hold_expire();
        }
        forecast.at = *at;
        forecast
    }

    pub(crate) fn standing(&self) -> Standing {
        let used = self.state.as_deref().map_or(0, |state| self.limit.used(state, &self.at));
        Standing {
            used,
            held: self.held,
            remaining: self.limit.capacity().saturating_sub(used.saturating_add(self.held)),
            reset_after: self.clone().reset_after(),
        }
    }

    pub(crate) fn delay(&self) -> Micros {
        self.state.as_deref().map_or(Micros::ZERO, |state| self.limit.delay(state, &self.at))
    }

    /// How long until `permits` fit. A hold that goes may let them in earlier than recovery would.
    pub(crate) fn wait(mut self, permits: u64) -> Wait {
        let capacity = self.limit.capacity();
        if permits > capacity {
            return Wait::Never;
        }
        let start = self.at.now();
        loop {
            let wanted = permits.saturating_add(self.held);
            // Spans, not instants: near the end of time an instant would be cut short.
            let elapsed = self.at.now().saturating_sub(start);
            let fits = (wanted <= capacity).then(|| elapsed.saturating_add(self.recovers(wanted)));
            let next = self.next_deadline().map(|deadline| deadline.saturating_sub(start));
            match (fits, next) {
                (Some(wait), Some(next)) if wait > next => {}
                (Some(wait), _) => return Wait::For(wait),
                (None, Some(_)) => {}
                (None, None) => return Wait::For(Micros::MAX),
            }
            self.let_next_hold_expire();
        }
    }

    fn recovers(&self, permits: u64) -> Micros {
        self.state.as_deref().map_or(Micros::ZERO, |s| self.limit.wait(s, &self.at, permits))
    }

    fn reset_after(mut self) -> Micros {
        let start = self.at.now();
        if self.holds.get(self.passed..).and_then(|left| left.last()).is_some_and(Hold::is_endless)
        {
            return Micros::MAX;
        }
        // Only what is charged on the way matters; otherwise the last to end says it all.
        if let (false, Some(last)) = (self.charges, self.holds.last()) {
            self.at = self.at.moved_to(last.deadline.max(start));
            self.passed = self.holds.len();
        }
        while self.next_hold().is_some() {
            self.let_next_hold_expire();
        }
        let state = self.state.as_deref();
        let rest = state.map_or(Micros::ZERO, |state| self.limit.reset_after(state, &self.at));
        self.at.now().saturating_sub(start).saturating_add(rest)
    }

    fn next_hold(&self) -> Option<&Hold> {
        self.holds.get(self.passed)
    }

    /// The deadline of the next hold, if it ever comes.
    fn next_deadline(&self) -> Option<Micros> {
        self.next_hold().filter(|hold| !hold.is_endless()).map(|hold| hold.deadline)
    }

    fn let_next_hold_expire(&mut self) {
        let Some(hold) = self.next_hold().copied() else { return };
        self.passed += 1;
        self.held = self.held.saturating_sub(hold.cost.get());
        self.at = self.at.moved_to(hold.deadline);
        if hold.expiry == Expiry::Charge {
            let mut state = self.state.take().map(Cow::into_owned);
            self.limit.charge(&mut state, &self.at, hold.cost, None);
            self.state = state.map(Cow::Owned);
        }
    }
}
