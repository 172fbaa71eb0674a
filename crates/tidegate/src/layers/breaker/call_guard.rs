//! A call in flight: its admission, its wait and its outcome.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tidegate_core::Micros;
use tokio::runtime::Handle;

use super::circuits::Circuits;
use super::error::SilentStore;
use super::failure_rate::CallWait;
use super::outcome::StoreOutcome;
use super::state::{CircuitMachine, CircuitTransition};
use crate::{EngineError, Shards, Sleep};

/// A call in flight. Dropped without a record, it counts for nothing.
pub(crate) struct CallGuard<'a> {
    circuits: &'a Circuits,
    pub(super) shards: Shards,
    /// Number of transitions before the call was admitted.
    transition: u64,
    /// Start of the call. Not known for one that is decided at once, unless slow replies count as
    /// failures.
    began: Option<Micros>,
    /// When the call is late, and again every 25 ms for a second; `None` without a runtime.
    timer: Option<LateTimer>,
    /// The call is late, and its shards have counted it.
    is_late: bool,
}

struct LateTimer {
    due: Micros,
    sleep: Sleep,
}

impl<'a> CallGuard<'a> {
    /// The soft deadline: a call without a reply for this long counts against the store, and goes
    /// on waiting.
    const SOFT_DEADLINE: Micros = Micros::from_millis(25);
    /// A call is not watched for longer. By then it has ended, or its engine has no deadline.
    const WATCHED_FOR: Micros = Micros::from_secs(1);

    pub(super) fn new(circuits: &'a Circuits, transition: u64) -> Self {
        let began = circuits.slow_after.map(|_| circuits.clock.elapsed());
        let (shards, timer) = (Shards::NONE, None);
        Self { circuits, shards, transition, began, timer, is_late: false }
    }

    /// Sets the shards of the call.
    pub(crate) fn with_shards(mut self, shards: Shards) -> Self {
        self.shards = shards;
        self
    }

    /// The call begins to wait for the store.
    pub(crate) fn begin(mut self) -> Self {
        let began = self.circuits.clock.elapsed();
        self.began = Some(began);
        if Handle::try_current().is_ok() {
            self.timer = Some(self.timer_from(began));
        }
        self
    }

    fn timer_from(&self, now: Micros) -> LateTimer {
        let due = now.saturating_add(Self::SOFT_DEADLINE);
        LateTimer { due, sleep: self.circuits.clock.sleep_until(due) }
    }

    pub(super) fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.timer {
            Some(timer) => timer.sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    /// Counts the call as late, and opens the circuits of shards that are silent.
    pub(super) fn record_late(&mut self) {
        let now = self.circuits.clock.elapsed();
        let Some(due) = self.timer.as_ref().map(|timer| timer.due) else { return };
        let began = self.began.unwrap_or(now);
        let is_watched = now.saturating_sub(began) < Self::WATCHED_FOR;
        self.timer = is_watched.then(|| self.timer_from(now));
        let is_first = !std::mem::replace(&mut self.is_late, true);
        if is_first {
            self.each_shard(|machine| machine.on_late(began));
        }
        // After a pause of this process, its timers are due before it has read the replies that
        // arrived meanwhile.
        if now.saturating_sub(due) >= Self::SOFT_DEADLINE {
            return;
        }
        for shard in self.shards.numbers() {
            let mut state = self.circuits.shards[shard].lock();
            if self.transition < state.transition {
                continue;
            }
            let Some((change, silence)) = state.machine.open_if_silent(now) else { continue };
            let failure = EngineError::unavailable(SilentStore(silence));
            self.circuits.on_transition(&mut state, Some(&failure));
            self.circuits.publish(shard, &state);
            drop(state);
            self.circuits.emit(shard, change, Some(&failure));
        }
    }

    /// Changes the circuits of the call's shards, unless they have changed their state since.
    fn each_shard(&self, change: impl Fn(&mut CircuitMachine)) {
        for shard in self.shards.numbers() {
            let mut state = self.circuits.shards[shard].lock();
            if self.transition >= state.transition {
                change(&mut state.machine);
            }
        }
    }

    /// Records the outcome. A refusal before the store was contacted counts for nothing, as a
    /// dropped call does.
    pub(crate) fn record<T>(mut self, result: &Result<T, EngineError>) {
        let Some(outcome) = StoreOutcome::of(result) else { return };
        let now = self.circuits.clock.elapsed();
        let slow = self.circuits.slowness(self.began, now);
        let failure = outcome.failure().or(slow.as_ref());
        let is_late = std::mem::take(&mut self.is_late);
        let wait = CallWait { began: self.began.unwrap_or(now), is_late };
        let mut changes: SmallVec<[(usize, CircuitTransition); 1]> = SmallVec::new();
        for shard in self.shards.numbers() {
            let change = self.record_one(shard, now, wait, failure);
            changes.extend(change.map(|change| (shard, change)));
        }
        // Emitted without a lock held: the watcher may call `health`.
        for (shard, change) in changes {
            self.circuits.emit(shard, change, failure);
        }
    }

    fn record_one(
        &self,
        shard: usize,
        now: Micros,
        wait: CallWait,
        failure: Option<&EngineError>,
    ) -> Option<CircuitTransition> {
        let mut state = self.circuits.shards[shard].lock();
        if self.transition < state.transition {
            return None;
        }
        let change = state.machine.on_call(now, wait, failure.is_none())?;
        self.circuits.on_transition(&mut state, failure);
        self.circuits.publish(shard, &state);
        Some(change)
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if self.is_late {
            self.each_shard(CircuitMachine::forget_late);
        }
    }
}

impl Circuits {
    /// Admits a call to all of these shards, if their circuits are closed.
    pub(crate) fn admit(&self, shards: Shards) -> Result<CallGuard<'_>, EngineError> {
        let guard = self.guard().with_shards(shards);
        match self.not_closed(shards).numbers().next() {
            None => Ok(guard),
            Some(shard) => Err(self.refuse(&self.shards[shard].lock())),
        }
    }

    /// Admits a call whose shards are not computed yet, if all circuits are closed.
    pub(crate) fn admit_if_all_closed(&self) -> Option<CallGuard<'_>> {
        let guard = self.guard();
        self.all_closed().then_some(guard)
    }

    fn guard(&self) -> CallGuard<'_> {
        // Read first: a transition after this makes the outcome of the call irrelevant.
        let transition = self.transitions.load(Ordering::Acquire);
        CallGuard::new(self, transition)
    }

    /// The result of a call in flight, or an error if the circuit of one of its shards opens
    /// before: the reply is not to be expected, and the call may have been charged.
    pub(crate) async fn until_open<T>(
        &self,
        mut guard: CallGuard<'_>,
        call: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let mut call = pin!(call);
        loop {
            let mut opening = pin!(self.opening.notified());
            // From here on no opening is missed.
            opening.as_mut().enable();
            let opened = self.not_closed(guard.shards).numbers().next();
            let progress = poll_fn(|cx| match call.as_mut().poll(cx) {
                Poll::Ready(result) => Poll::Ready(CallProgress::Ended(result)),
                Poll::Pending if opened.is_some() => Poll::Ready(CallProgress::Interrupted),
                Poll::Pending => match opening.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(CallProgress::Interrupted),
                    Poll::Pending => guard.poll_late(cx).map(|()| CallProgress::Late),
                },
            });
            match (progress.await, opened) {
                (CallProgress::Ended(result), _) => {
                    guard.record(&result);
                    return result;
                }
                (CallProgress::Interrupted, Some(shard)) => {
                    return Err(self.interruption(&self.shards[shard].lock()));
                }
                // The circuit of another shard may have opened.
                (CallProgress::Interrupted, None) => {}
                (CallProgress::Late, _) => guard.record_late(),
            }
        }
    }
}

/// What ends the wait of a call in flight.
enum CallProgress<T> {
    Ended(Result<T, EngineError>),
    /// A circuit has opened.
    Interrupted,
    /// The call waits for another 25 ms.
    Late,
}
