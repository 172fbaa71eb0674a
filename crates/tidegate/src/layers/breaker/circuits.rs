//! One circuit per shard: admission, outcome of calls, events.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::Micros;
use tokio::sync::Notify;

use super::error::{CircuitOpen, InterruptedCall, SlowReply};
use super::event::BreakerEvent;
use super::outcome::StoreOutcome;
use super::state::{CircuitAdmission, CircuitMachine, CircuitTransition};
use crate::{Circuit, Clock, EngineError, Shards};

pub(crate) struct Circuits {
    pub(super) shards: Box<[ShardCircuit]>,
    /// One bit per circuit that is not closed: the fast path reads only this.
    not_closed: AtomicU64,
    pub(super) clock: Arc<dyn Clock>,
    /// Number of transitions so far, of all circuits.
    pub(super) transitions: AtomicU64,
    opened: AtomicU64,
    refused: AtomicU64,
    /// Wakes the calls in flight when a circuit opens.
    pub(super) opening: Notify,
    pub(crate) slow_after: Option<Micros>,
    pub(crate) watcher: Box<dyn Fn(BreakerEvent<'_>) + Send + Sync>,
}

/// Aligned to a cache line, so that shards do not contend.
#[repr(align(64))]
pub(super) struct ShardCircuit {
    state: Mutex<CircuitState>,
}

pub(super) struct CircuitState {
    pub(super) machine: CircuitMachine,
    /// Number of the last transition. Calls admitted before it say nothing about the state after
    /// it.
    pub(super) transition: u64,
    /// Set from opening to closing.
    outage: Option<Outage>,
}

/// Why a circuit is not closed.
struct Outage {
    /// When the circuit opened, by the wall clock.
    since: Micros,
    /// The latest failure, and the error for calls that are not admitted.
    failure: EngineError,
    refusal: EngineError,
}

impl Outage {
    fn new(since: Micros, failure: &EngineError) -> Self {
        Self { since, failure: failure.clone(), refusal: CircuitOpen::caused_by(Some(failure)) }
    }
}

/// What the circuits say about the store.
#[derive(Default)]
pub(crate) struct CircuitsStatus {
    pub(crate) worst: Circuit,
    /// Number of circuits that are not closed.
    pub(crate) not_closed: u32,
    /// When the first of them opened, and its latest failure.
    pub(crate) outage: Option<(Micros, EngineError)>,
}

impl Circuits {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let circuit = |_| {
            // Every `RandomState` has different keys; that is enough randomness here.
            let machine = CircuitMachine::new(RandomState::new().hash_one(()));
            let state = CircuitState { machine, transition: 0, outage: None };
            ShardCircuit { state: Mutex::new(state) }
        };
        Self {
            shards: (0..Shards::MAX).map(circuit).collect(),
            not_closed: AtomicU64::new(0),
            clock,
            transitions: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            opening: Notify::new(),
            slow_after: None,
            watcher: Box::new(|_| {}),
        }
    }

    /// Sets the random seed; before the first call.
    pub(crate) fn seed(&mut self, seed: u64) {
        for circuit in &mut self.shards {
            circuit.lock().machine = CircuitMachine::new(seed);
        }
    }

    pub(crate) fn all_closed(&self) -> bool {
        self.not_closed.load(Ordering::Acquire) == 0
    }

    /// Those of these shards whose circuits are not closed.
    pub(crate) fn not_closed(&self, shards: Shards) -> Shards {
        Shards::from_bits(self.not_closed.load(Ordering::Acquire) & shards.bits())
    }

    /// Those of these shards that must be sent a probe now, and the time that identifies it. `up`
    /// is the store's report about itself.
    #[cold]
    pub(crate) fn due_probes(&self, shards: Shards, up: impl FnOnce() -> bool) -> (Shards, Micros) {
        let now = self.clock.elapsed();
        let shards = self.not_closed(shards);
        self.reset_idle(shards.numbers(), now);
        let may_probe = |shard: &usize| {
            self.shards[*shard].lock().machine.admit(now) == CircuitAdmission::MayProbe
        };
        let probes = shards.numbers().filter(may_probe).fold(Shards::NONE, Shards::and);
        if probes == Shards::NONE {
            return (probes, now);
        }
        let up = up();
        let begins = |shard: &usize| self.shards[*shard].lock().machine.begin(now, up);
        (probes.numbers().filter(begins).fold(Shards::NONE, Shards::and), now)
    }

    /// Records the outcome of the probe of `shard` that was admitted at that time. A refusal before
    /// the store was contacted counts for nothing.
    pub(crate) fn record_probe<T>(
        &self,
        shard: usize,
        admitted: Micros,
        result: &Result<T, EngineError>,
    ) {
        let Some(outcome) = StoreOutcome::of(result) else {
            return self.cancel_probe(shard, admitted);
        };
        let now = self.clock.elapsed();
        let slow = self.slowness(Some(admitted), now);
        let failure = outcome.failure().or(slow.as_ref());
        let mut state = self.shards[shard].lock();
        // Otherwise this probe has timed out, and another has begun.
        if state.machine.probing_since() != Some(admitted) {
            return;
        }
        match state.machine.on_probe(now, failure.is_none()) {
            Some(change) => {
                self.on_transition(&mut state, failure);
                self.publish(shard, &state);
                drop(state);
                self.emit(shard, change, failure);
            }
            None => {
                if let (Some(failure), Some(outage)) = (failure, &mut state.outage) {
                    *outage = Outage::new(outage.since, failure);
                }
            }
        }
    }

    /// The outcome of a probe will not be known: another may begin.
    pub(crate) fn cancel_probe(&self, shard: usize, admitted: Micros) {
        let mut state = self.shards[shard].lock();
        if state.machine.probing_since() == Some(admitted) {
            state.machine.cancel_probe();
        }
    }

    pub(super) fn interruption(&self, state: &CircuitState) -> EngineError {
        let failure = state.outage.as_ref().map(|outage| &outage.failure);
        InterruptedCall::caused_by(failure)
    }

    pub(super) fn slowness(&self, began: Option<Micros>, now: Micros) -> Option<EngineError> {
        let took = now.saturating_sub(began?);
        (took > self.slow_after?).then(|| EngineError::unavailable(SlowReply(took.into())))
    }

    pub(super) fn refuse(&self, state: &CircuitState) -> EngineError {
        self.refused.fetch_add(1, Ordering::Relaxed);
        // The circuit may have closed a moment ago.
        let refusal = state.outage.as_ref().map(|outage| outage.refusal.clone());
        refusal.unwrap_or_else(|| CircuitOpen::caused_by(None))
    }

    /// Closes the circuit of a shard to which no key belongs.
    pub(crate) fn forget(&self, shard: usize) {
        self.reset(shard, |machine| machine.reset(self.clock.elapsed()));
    }

    /// Closes circuits of shards without recent calls.
    fn reset_idle(&self, shards: impl Iterator<Item = usize>, now: Micros) {
        shards.for_each(|shard| self.reset(shard, |machine| machine.reset_if_idle(now)));
    }

    fn reset(
        &self,
        shard: usize,
        reset: impl FnOnce(&mut CircuitMachine) -> Option<CircuitTransition>,
    ) {
        let mut state = self.shards[shard].lock();
        let Some(change) = reset(&mut state.machine) else { return };
        self.on_transition(&mut state, None);
        self.publish(shard, &state);
        drop(state);
        self.emit(shard, change, None);
    }

    /// Calls admitted before the transition say nothing about the state after it.
    pub(super) fn on_transition(&self, state: &mut CircuitState, failure: Option<&EngineError>) {
        state.transition = self.transitions.fetch_add(1, Ordering::AcqRel) + 1;
        state.outage = failure.map(|error| Outage::new(self.clock.now(), error));
    }

    pub(crate) fn status(&self) -> CircuitsStatus {
        self.reset_idle(self.not_closed(Shards::ALL).numbers(), self.clock.elapsed());
        let mut status = CircuitsStatus::default();
        for shard in self.not_closed(Shards::ALL).numbers() {
            let state = self.shards[shard].lock();
            status.worst = status.worst.max(state.machine.circuit());
            // It may have closed a moment ago.
            let Some(outage) = &state.outage else { continue };
            status.not_closed += 1;
            if status.outage.as_ref().is_none_or(|(since, _)| outage.since < *since) {
                status.outage = Some((outage.since, outage.failure.clone()));
            }
        }
        status
    }

    /// Publishes whether a circuit is closed. Called under its lock, so that the last write is the
    /// right one.
    pub(super) fn publish(&self, shard: usize, state: &CircuitState) {
        let bit = Shards::NONE.and(shard).bits();
        match state.machine.circuit() {
            Circuit::Closed => self.not_closed.fetch_and(!bit, Ordering::AcqRel),
            Circuit::HalfOpen | Circuit::Open => self.not_closed.fetch_or(bit, Ordering::AcqRel),
        };
    }

    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl ShardCircuit {
    pub(super) fn lock(&self) -> MutexGuard<'_, CircuitState> {
        // A poisoned lock is ignored: continuing is better than denying every request.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Circuits {
    pub(super) fn emit(
        &self,
        shard: usize,
        change: CircuitTransition,
        failure: Option<&EngineError>,
    ) {
        match (change, failure) {
            (CircuitTransition::Opened, Some(error)) => {
                self.opened.fetch_add(1, Ordering::Relaxed);
                self.opening.notify_waiters();
                (self.watcher)(BreakerEvent::Opened { shard, error });
            }
            (CircuitTransition::Closed { after }, _) => {
                (self.watcher)(BreakerEvent::Closed { shard, after: after.into() });
            }
            (CircuitTransition::IdleReset { after }, _) => {
                (self.watcher)(BreakerEvent::IdleReset { shard, after: after.into() });
            }
            // Only a failure opens a circuit.
            (CircuitTransition::Opened, None) => {}
        }
    }
}
