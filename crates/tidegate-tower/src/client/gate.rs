//! Where calls wait while their far side is left alone.
//!
//! # Layout
//!
//! - [`Gate`] is one lock and a clock. [`Visit`] is one call's way through it.
//! - `state` is what is under the lock: pauses by key, and two lists of those who wait.

mod state;

use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use tidegate::{Clock, Micros};

pub(super) use self::state::Held;
use self::state::{Look, Place, State};
use super::advice::{Advice, Heard};

/// Keeps calls to a far side that asked to be left alone.
pub(super) struct Gate {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Keys are known by a hash that nobody outside can predict, so that their length is no matter.
    hashes: RandomState,
}

impl Gate {
    pub(super) fn new(clock: Arc<dyn Clock>, max_pauses: usize) -> Self {
        let state = Mutex::new(State::new(max_pauses));
        Self { clock, state, hashes: RandomState::new() }
    }

    /// A call for `key`, which may wait until the clock has moved on by `wait`.
    pub(super) fn arrive(self: &Arc<Self>, key: &str, wait: Micros) -> Visit {
        let deadline = self.clock.elapsed().saturating_add(wait);
        let place = (self.hashes.hash_one(key), self.with(State::ticket));
        Visit { gate: self.clone(), place, deadline, sent: Micros::ZERO }
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = look(&mut state);
        let woken = state.woken();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        seen
    }
}

/// One call's way through the gate. Dropped, it leaves nothing behind.
pub(super) struct Visit {
    gate: Arc<Gate>,
    place: Place,
    deadline: Micros,
    sent: Micros,
}

impl Visit {
    /// Waits until the far side may be called, in the order of arrival.
    pub(super) async fn enter(&self) -> Result<(), Held> {
        let clock = &self.gate.clock;
        loop {
            let now = clock.elapsed();
            match self.gate.with(|state| state.look(self.place, self.deadline, now)) {
                Look::Go => return Ok(()),
                Look::Hold(held) => return Err(held),
                Look::Wait(until) => {
                    let mut sleep = clock.sleep_until(until);
                    poll_fn(|cx| {
                        if self.gate.with(|state| state.is_called(self.place, cx.waker())) {
                            return Poll::Ready(());
                        }
                        sleep.as_mut().poll(cx)
                    })
                    .await;
                }
            }
        }
    }

    /// The output of `future`, or `None` as soon as a pause begins.
    pub(super) async fn unless_paused<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let now = self.gate.clock.elapsed();
            if self.gate.with(|state| state.watch(self.place, now, cx.waker())) {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// How long the call may still wait.
    pub(super) fn time_left(&self) -> Micros {
        self.deadline.saturating_sub(self.gate.clock.elapsed())
    }

    /// The call is sent now; `false` if a pause has begun meanwhile, and it must not be.
    pub(super) fn depart(&mut self) -> bool {
        let (place, now) = (self.place, self.gate.clock.elapsed());
        self.sent = now;
        self.gate.with(|state| {
            state.stop_watching(place);
            !state.is_paused(place.0, now)
        })
    }

    /// The call was answered. No pause will be longer than `max_pause`.
    pub(super) fn answered(self, heard: Heard, max_pause: Micros) {
        let now = self.gate.clock.elapsed();
        let luck = self.gate.hashes.hash_one((self.place, now));
        self.gate.with(|state| {
            let pause = match heard.advice {
                Some(Advice::Pause { span, hint }) => Some((span.into(), Some(hint))),
                Some(Advice::BackOff) => {
                    let span = state.pause_of(self.place.0, now).back_off(self.sent, now, luck);
                    span.map(|span| (span, None))
                }
                None => None,
            };
            state.returned(self.place, self.sent, heard);
            if let Some((span, hint)) = pause {
                let until = now.saturating_add(Micros::min(span, max_pause));
                state.pause(self.place.0, until, hint, now);
            }
        });
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.gate.with(|state| state.leave(self.place));
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use tidegate::ManualClock;

    use super::*;
    use crate::client::Hint;

    const REFUSED: Heard =
        Heard { advice: Some(Advice::Pause { span: PAUSE, hint: Hint::RetryAfter }), well: false };
    const SERVED: Heard = Heard { advice: None, well: true };
    const PAUSE: std::time::Duration = std::time::Duration::from_secs(5);
    const HOUR: Micros = Micros::from_secs(3_600);

    fn gate(max_pauses: usize) -> (ManualClock, Arc<Gate>) {
        let clock = ManualClock::default();
        (clock.clone(), Arc::new(Gate::new(Arc::new(clock), max_pauses)))
    }

    fn refuse(gate: &Arc<Gate>, key: &str) {
        gate.arrive(key, HOUR).answered(REFUSED, HOUR);
    }

    /// Looks once whether the call may go.
    fn may_go(visit: &Visit) -> bool {
        let mut enter = pin!(visit.enter());
        enter.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Begins to wait for something else, unless there is a pause.
    fn watches(visit: &Visit) -> bool {
        let mut waits = pin!(visit.unless_paused(std::future::pending::<()>()));
        waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Pauses, and entries in the two lists.
    fn sizes(gate: &Gate) -> (usize, usize, usize) {
        gate.with(|state| state.sizes())
    }

    #[test]
    fn calls_leave_nothing_behind_whether_they_are_served_or_dropped() {
        let (clock, gate) = gate(10);
        let visits: Vec<Visit> = (0..5).map(|_| gate.arrive("a", HOUR)).collect();
        assert!(visits.iter().all(watches));
        assert_eq!(sizes(&gate), (0, 0, 5));
        refuse(&gate, "a");
        assert_eq!(sizes(&gate), (1, 0, 0), "whoever watched was told");
        assert!(visits.iter().all(|visit| !may_go(visit)));
        assert_eq!(sizes(&gate), (1, 5, 0));
        clock.advance(PAUSE);
        let mut visits = visits.into_iter();
        let mut first = visits.next().unwrap();
        assert!(may_go(&first) && watches(&first) && first.depart());
        assert_eq!(sizes(&gate), (1, 4, 0), "who is sent no longer watches");
        visits.by_ref().take(3).for_each(drop);
        assert_eq!(sizes(&gate), (1, 1, 0));
        first.answered(SERVED, HOUR);
        let mut last = visits.next().unwrap();
        assert!(may_go(&last) && last.depart());
        last.answered(SERVED, HOUR);
        assert_eq!(sizes(&gate), (0, 0, 0), "served, and nobody waits: there is nothing to know");
    }

    #[test]
    fn a_pause_that_begins_on_the_way_out_keeps_the_call() {
        let (clock, gate) = gate(10);
        let mut visit = gate.arrive("a", HOUR);
        assert!(may_go(&visit));
        refuse(&gate, "a");
        assert!(!visit.depart());
        assert!(!may_go(&visit));
        clock.advance(PAUSE);
        assert!(may_go(&visit) && visit.depart());
    }

    #[test]
    fn nobody_overtakes_those_who_waited_before() {
        let (clock, gate) = gate(10);
        refuse(&gate, "a");
        let [first, second] = [gate.arrive("a", HOUR), gate.arrive("a", HOUR)];
        assert!(!may_go(&second) && !may_go(&first), "it is when they came that counts");
        clock.advance(PAUSE);
        let newcomer = gate.arrive("a", HOUR);
        assert!(!may_go(&newcomer) && !may_go(&second));
        assert!(may_go(&first));
        drop(first);
        assert!(!may_go(&newcomer));
        assert!(may_go(&second));
    }

    #[test]
    fn what_is_over_makes_room_first_and_then_what_ends_next() {
        let (clock, gate) = gate(3);
        let second = std::time::Duration::from_secs(1);
        for key in ["a", "b", "c"] {
            refuse(&gate, key);
            clock.advance(second);
        }
        let paused = |key: &str| !may_go(&gate.arrive(key, HOUR));
        assert!(["a", "b", "c"].into_iter().all(paused));
        refuse(&gate, "d");
        assert!(!paused("a"), "it would have ended next");
        assert!(["b", "c", "d"].into_iter().all(paused));
        clock.advance(4 * second);
        refuse(&gate, "e");
        assert_eq!(sizes(&gate).0, 2, "b and c are over");
        assert!(["d", "e"].into_iter().all(paused));
        refuse(&gate, "d");
        refuse(&gate, "f");
        assert_eq!(sizes(&gate).0, 3);
    }

    #[test]
    fn whoever_waits_for_a_pause_that_is_forgotten_goes() {
        let (_clock, gate) = gate(1);
        refuse(&gate, "a");
        let waiting: Vec<Visit> = (0..3).map(|_| gate.arrive("a", HOUR)).collect();
        assert!(!waiting.iter().any(may_go));
        refuse(&gate, "b");
        let called = |gate: &Gate| gate.with(|state| state.called());
        for (left, visit) in [2, 1, 0].into_iter().zip(&waiting) {
            assert_eq!(called(&gate), 1, "one calls the next");
            assert!(may_go(visit));
            assert_eq!(sizes(&gate).1, left);
        }
    }
}
