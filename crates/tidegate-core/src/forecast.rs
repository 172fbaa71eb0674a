//! The future of a state without further requests: holds expire, consumption recovers.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use crate::hold::{HoldEnd, HoldEnds};
use crate::limit::{RecoveryPoint, Standing};
use crate::{Cost, Holds, Limit, Micros, Moment, State, Verdict, Wait};

/// A state and its holds at a moment, and later, for calls under some capacity.
///
/// Holds that expired since the last write are dropped or charged here without being stored, so
/// that a look never writes.
#[derive(Clone)]
pub(crate) struct Forecast<'a> {
    limit: &'a Limit,
    /// What fits at once: that of the limit, unless the call is under another one.
    capacity: u64,
    state: Option<Cow<'a, State>>,
    /// The ends of the holds; those at the beginning have passed.
    ends: HoldEnds<'a>,
    passed: usize,
    held: u64,
    /// Is a hold charged when it expires?
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
            capacity: limit.capacity(),
            state: limit.rebased(state, at),
            held: holds.held(),
            charges: holds.any_charged(),
            ends: holds.ends(at.now()),
            passed: 0,
            at: *at,
        };
        while forecast.next_end().is_some_and(|end| end.has_ended(at.now())) {
            forecast.pass_next_end();
        }
        forecast.at = *at;
        forecast
    }

    /// The same for a call under another capacity.
    pub(crate) fn within(self, capacity: u64) -> Self {
        Self { capacity, ..self }
    }

    pub(crate) fn look(self, cost: Cost) -> Verdict {
        let standing = self.standing();
        let capacity = self.capacity;
        let allowed = if cost.is_zero() {
            standing.used <= capacity
        } else {
            cost.get() <= standing.remaining
        };
        let delay = if allowed && !cost.is_zero() { self.delay() } else { Micros::ZERO };
        Verdict {
            allowed,
            retry_after: self.wait(cost.get().max(1)),
            delay,
            limit: capacity,
            remaining: standing.remaining,
            reset_after: standing.reset_after,
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        let used = self.state.as_deref().map_or(0, |state| self.limit.used(state, &self.at));
        Standing {
            used,
            held: self.held,
            remaining: self.remaining(),
            reset_after: self.clone().reset_after(),
        }
    }

    pub(crate) fn delay(&self) -> Micros {
        self.state.as_deref().map_or(Micros::ZERO, |state| self.limit.delay(state, &self.at))
    }

    /// How long until `permits` fit. A hold that expires may make room earlier than recovery.
    pub(crate) fn wait(mut self, permits: u64) -> Wait {
        let capacity = self.capacity;
        if permits > capacity {
            return Wait::Never;
        }
        let start = self.at.now();
        loop {
            let wanted = permits.saturating_add(self.held);
            // Spans, not instants: near the maximum an instant would saturate.
            let elapsed = self.at.now().saturating_sub(start);
            let target = capacity.checked_sub(wanted);
            let fits = target.map(|target| elapsed.saturating_add(self.falls_to(target)));
            let next = self.next_deadline().map(|deadline| deadline.saturating_sub(start));
            match (fits, next) {
                (Some(wait), Some(next)) if wait > next => {}
                (Some(wait), _) => return Wait::For(wait),
                (None, Some(_)) => {}
                (None, None) => return Wait::For(Micros::MAX),
            }
            self.pass_next_end();
        }
    }

    /// The instants at which more permits fit, in at most [`RecoveryPoint::MAX`] steps.
    pub(crate) fn recovery(mut self) -> Vec<RecoveryPoint> {
        let (start, capacity) = (self.at.now(), self.capacity);
        let mut points = Vec::new();
        let mut fits = self.remaining();
        let mut step = (capacity - fits).div_ceil(RecoveryPoint::MAX as u64).max(1);
        while fits < capacity && points.len() < RecoveryPoint::MAX {
            let wanted = fits.saturating_add(step).min(capacity);
            match self.clone().wait(wanted) {
                Wait::For(span) if span < Micros::MAX => {
                    self.advance(self.at.now().saturating_add(span));
                    fits = self.remaining();
                    let after = Wait::For(self.at.now().saturating_sub(start));
                    points.push(RecoveryPoint { after, fits });
                }
                // A smaller number may fit before the holds that never expire matter.
                _ if step > 1 => step = 1,
                _ => {
                    points.push(RecoveryPoint { after: Wait::Never, fits: capacity });
                    break;
                }
            }
        }
        points
    }

    fn remaining(&self) -> u64 {
        let used = self.state.as_deref().map_or(0, |state| self.limit.used(state, &self.at));
        self.capacity.saturating_sub(used.saturating_add(self.held))
    }

    fn advance(&mut self, to: Micros) {
        while self.next_deadline().is_some_and(|deadline| deadline <= to) {
            self.pass_next_end();
        }
        self.at = self.at.moved_to(to);
    }

    fn falls_to(&self, target: u64) -> Micros {
        self.state.as_deref().map_or(Micros::ZERO, |s| self.limit.wait(s, &self.at, target))
    }

    fn reset_after(mut self) -> Micros {
        let start = self.at.now();
        let last = self.ends.len().checked_sub(1).and_then(|last| self.ends.get(last));
        if last.is_some_and(|last| last.is_endless()) {
            return Micros::MAX;
        }
        // Only charges on the way matter. Without any, only the last hold to expire does.
        if let (false, Some(last)) = (self.charges, last) {
            self.at = self.at.moved_to(last.deadline.max(start));
            self.passed = self.ends.len();
        }
        while self.next_end().is_some() {
            self.pass_next_end();
        }
        let state = self.state.as_deref();
        let rest = state.map_or(Micros::ZERO, |state| self.limit.reset_after(state, &self.at));
        self.at.now().saturating_sub(start).saturating_add(rest)
    }

    fn next_end(&self) -> Option<HoldEnd> {
        self.ends.get(self.passed)
    }

    /// The deadline of the next hold, unless it never expires.
    fn next_deadline(&self) -> Option<Micros> {
        self.next_end().filter(|end| !end.is_endless()).map(|end| end.deadline)
    }

    /// Lets the next holds expire.
    fn pass_next_end(&mut self) {
        let Some(end) = self.next_end() else { return };
        self.passed += 1;
        self.held = self.held.saturating_sub(end.held);
        self.at = self.at.moved_to(end.deadline);
        if end.charged > 0 {
            let mut state = self.state.take().map(Cow::into_owned);
            self.limit.charge(&mut state, &self.at, Cost::total(end.charged), None);
            self.state = state.map(Cow::Owned);
        }
    }
}
