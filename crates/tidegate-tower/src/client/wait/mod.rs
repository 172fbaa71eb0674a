//! The queue in which calls wait while their upstream is paused. Imports: advice, backoff.
//!
//! [`PauseGate`] is a lock and a clock; [`PendingCall`] is one call. `state` is the data under the
//! lock: pauses by key, and two lists of waiting calls.

mod state;

use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use tidegate::{Clock, Micros};

pub(super) use self::state::PausedTooLong;
use self::state::{PauseCheck, PauseState, WaitPosition};
use super::advice::{Advice, ResponseAdvice};

/// Delays calls to upstreams that are paused.
pub(super) struct PauseGate {
    clock: Arc<dyn Clock>,
    state: Mutex<PauseState>,
    /// Keys are stored as hashes, so their length does not matter. The seed is random, so
    /// collisions cannot be provoked.
    hashes: RandomState,
}

impl PauseGate {
    pub(super) fn new(clock: Arc<dyn Clock>, max_pauses: usize) -> Self {
        let state = Mutex::new(PauseState::new(max_pauses));
        Self { clock, state, hashes: RandomState::new() }
    }

    /// A call for `key`, which may wait for up to `wait`.
    pub(super) fn start_waiting(self: &Arc<Self>, key: &str, wait: Micros) -> PendingCall {
        let deadline = self.clock.elapsed().saturating_add(wait);
        let position = (self.hashes.hash_one(key), self.with(PauseState::next_number));
        PendingCall { gate: self.clone(), position, deadline, sent: Micros::ZERO }
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn with<T>(&self, change: impl FnOnce(&mut PauseState) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        let wakers = state.wakers();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        result
    }
}

/// One call, from its start to its response. Dropping it removes it from all lists.
pub(super) struct PendingCall {
    gate: Arc<PauseGate>,
    position: WaitPosition,
    deadline: Micros,
    sent: Micros,
}

impl PendingCall {
    /// Waits until the upstream may be called, in the order of arrival.
    pub(super) async fn wait_for_pause(&self) -> Result<(), PausedTooLong> {
        let clock = &self.gate.clock;
        loop {
            let now = clock.elapsed();
            match self.gate.with(|state| state.check(self.position, self.deadline, now)) {
                PauseCheck::Send => return Ok(()),
                PauseCheck::TooLong(paused) => return Err(paused),
                PauseCheck::Wait(until) => {
                    let mut sleep = clock.sleep_until(until);
                    poll_fn(|cx| {
                        if self.gate.with(|state| state.is_notified(self.position, cx.waker())) {
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
            if self.gate.with(|state| state.watch(self.position, now, cx.waker())) {
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

    /// Marks the call as sent; `false` if a pause has begun, and the call must not be sent.
    pub(super) fn mark_sent(&mut self) -> bool {
        let (position, now) = (self.position, self.gate.clock.elapsed());
        self.sent = now;
        self.gate.with(|state| {
            state.stop_watching(position);
            !state.is_paused(position.0, now)
        })
    }

    /// Processes the response. No pause is longer than `max_pause`.
    pub(super) fn finish(self, response: ResponseAdvice, max_pause: Micros) {
        let now = self.gate.clock.elapsed();
        let random = self.gate.hashes.hash_one((self.position, now));
        self.gate.with(|state| {
            let pause = match response.advice {
                Some(Advice::Pause { span, hint }) => Some((span.into(), Some(hint))),
                Some(Advice::BackOff) => {
                    let span =
                        state.backoff_of(self.position.0, now).back_off(self.sent, now, random);
                    span.map(|span| (span, None))
                }
                None => None,
            };
            state.finished(self.position, self.sent, response);
            if let Some((span, hint)) = pause {
                let until = now.saturating_add(Micros::min(span, max_pause));
                state.pause(self.position.0, until, hint, now);
            }
        });
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        self.gate.with(|state| state.leave(self.position));
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use tidegate::ManualClock;

    use super::*;
    use crate::client::Hint;

    const REJECTED: ResponseAdvice = ResponseAdvice {
        advice: Some(Advice::Pause { span: PAUSE, hint: Hint::RetryAfter }),
        served: false,
    };
    const SERVED: ResponseAdvice = ResponseAdvice { advice: None, served: true };
    const PAUSE: std::time::Duration = std::time::Duration::from_secs(5);
    const HOUR: Micros = Micros::from_secs(3_600);

    fn gate(max_pauses: usize) -> (ManualClock, Arc<PauseGate>) {
        let clock = ManualClock::default();
        (clock.clone(), Arc::new(PauseGate::new(Arc::new(clock), max_pauses)))
    }

    fn reject(gate: &Arc<PauseGate>, key: &str) {
        gate.start_waiting(key, HOUR).finish(REJECTED, HOUR);
    }

    /// Checks once whether the call may be sent.
    fn may_send(call: &PendingCall) -> bool {
        let mut ready = pin!(call.wait_for_pause());
        ready.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Starts to wait for something else, unless there is a pause.
    fn watches(call: &PendingCall) -> bool {
        let mut waits = pin!(call.unless_paused(std::future::pending::<()>()));
        waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Number of pauses, of queued calls, and of watching calls.
    fn sizes(gate: &PauseGate) -> (usize, usize, usize) {
        gate.with(|state| state.sizes())
    }

    #[test]
    fn calls_leave_nothing_behind_whether_they_are_served_or_dropped() {
        let (clock, gate) = gate(10);
        let calls: Vec<PendingCall> = (0..5).map(|_| gate.start_waiting("a", HOUR)).collect();
        assert!(calls.iter().all(watches));
        assert_eq!(sizes(&gate), (0, 0, 5));
        reject(&gate, "a");
        assert_eq!(sizes(&gate), (1, 0, 0), "all watching calls were woken");
        assert!(calls.iter().all(|call| !may_send(call)));
        assert_eq!(sizes(&gate), (1, 5, 0));
        clock.advance(PAUSE);
        let mut calls = calls.into_iter();
        let mut first = calls.next().unwrap();
        assert!(may_send(&first) && watches(&first) && first.mark_sent());
        assert_eq!(sizes(&gate), (1, 4, 0), "a call that was sent no longer watches");
        calls.by_ref().take(3).for_each(drop);
        assert_eq!(sizes(&gate), (1, 1, 0));
        first.finish(SERVED, HOUR);
        let mut last = calls.next().unwrap();
        assert!(may_send(&last) && last.mark_sent());
        last.finish(SERVED, HOUR);
        assert_eq!(sizes(&gate), (0, 0, 0), "served, and no call waits: no state is kept");
    }

    #[test]
    fn a_pause_that_begins_before_the_call_is_sent_delays_it() {
        let (clock, gate) = gate(10);
        let mut call = gate.start_waiting("a", HOUR);
        assert!(may_send(&call));
        reject(&gate, "a");
        assert!(!call.mark_sent());
        assert!(!may_send(&call));
        clock.advance(PAUSE);
        assert!(may_send(&call) && call.mark_sent());
    }

    #[test]
    fn no_call_overtakes_an_earlier_one() {
        let (clock, gate) = gate(10);
        reject(&gate, "a");
        let [first, second] = [gate.start_waiting("a", HOUR), gate.start_waiting("a", HOUR)];
        assert!(!may_send(&second) && !may_send(&first), "the order of arrival counts");
        clock.advance(PAUSE);
        let newcomer = gate.start_waiting("a", HOUR);
        assert!(!may_send(&newcomer) && !may_send(&second));
        assert!(may_send(&first));
        drop(first);
        assert!(!may_send(&newcomer));
        assert!(may_send(&second));
    }

    #[test]
    fn pauses_that_are_over_are_evicted_first_and_then_the_next_to_end() {
        let (clock, gate) = gate(3);
        let second = std::time::Duration::from_secs(1);
        for key in ["a", "b", "c"] {
            reject(&gate, key);
            clock.advance(second);
        }
        let paused = |key: &str| !may_send(&gate.start_waiting(key, HOUR));
        assert!(["a", "b", "c"].into_iter().all(paused));
        reject(&gate, "d");
        assert!(!paused("a"), "it would have ended next");
        assert!(["b", "c", "d"].into_iter().all(paused));
        clock.advance(4 * second);
        reject(&gate, "e");
        assert_eq!(sizes(&gate).0, 2, "b and c are over");
        assert!(["d", "e"].into_iter().all(paused));
        reject(&gate, "d");
        reject(&gate, "f");
        assert_eq!(sizes(&gate).0, 3);
    }

    #[test]
    fn calls_that_wait_for_an_evicted_pause_are_sent() {
        let (_clock, gate) = gate(1);
        reject(&gate, "a");
        let waiting: Vec<PendingCall> = (0..3).map(|_| gate.start_waiting("a", HOUR)).collect();
        assert!(!waiting.iter().any(may_send));
        reject(&gate, "b");
        let notified = |gate: &PauseGate| gate.with(|state| state.notified());
        for (left, call) in [2, 1, 0].into_iter().zip(&waiting) {
            assert_eq!(notified(&gate), 1, "each wakes the next");
            assert!(may_send(call));
            assert_eq!(sizes(&gate).1, left);
        }
    }
}
