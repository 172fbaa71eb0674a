//! A gate for each shard: who passes, and what became of it.

use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::Micros;

use super::BreakerEvent;
use super::machine::{Ask, Change, Machine};
use crate::{Circuit, Clock, EngineError, Shards};

pub(super) struct Gates {
    gates: Box<[Gate]>,
    /// A bit for each gate that is not closed, for those who need not know more.
    unwell: AtomicU64,
    clock: Arc<dyn Clock>,
    /// Transitions so far, of all gates.
    turns: AtomicU64,
    opened: AtomicU64,
    refused: AtomicU64,
    pub(super) slow_after: Option<Micros>,
    pub(super) watcher: Box<dyn Fn(BreakerEvent<'_>) + Send + Sync>,
}

/// Aligned, so that shards do not slow each other down.
#[repr(align(64))]
struct Gate {
    inside: Mutex<Inside>,
}

struct Inside {
    machine: Machine,
    /// The number of its last transition. What began before says nothing about what is after.
    turn: u64,
    /// What whoever does not pass is told.
    refusal: Option<EngineError>,
}

impl Gates {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let gate = |_| {
            // Each has keys of its own, and that is all the randomness that this needs.
            let machine = Machine::new(RandomState::new().hash_one(()));
            let inside = Inside { machine, turn: 0, refusal: None };
            Gate { inside: Mutex::new(inside) }
        };
        Self {
            gates: (0..Shards::MOST).map(gate).collect(),
            unwell: AtomicU64::new(0),
            clock,
            turns: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            slow_after: None,
            watcher: Box::new(|_| {}),
        }
    }

    /// Before anything is asked.
    pub(super) fn seed(&mut self, seed: u64) {
        for gate in &mut self.gates {
            gate.lock().machine = Machine::new(seed);
        }
    }

    /// Lets a call through to all of these shards, or to none. `up` says whether the store is there, as far
    /// as it knows.
    pub(super) fn enter(
        &self,
        shards: Shards,
        up: impl FnOnce() -> bool,
    ) -> Result<Passage<'_>, EngineError> {
        let mut passage = self.passage().about(shards);
        if !self.all_closed(shards) {
            self.enter_with_care(&mut passage, up)?;
        }
        Ok(passage)
    }

    /// Lets a call through of which it is not known yet whom it asks, while all circuits are closed.
    pub(super) fn enter_while_all_well(&self) -> Option<Passage<'_>> {
        let passage = self.passage();
        self.are_all_well().then_some(passage)
    }

    fn passage(&self) -> Passage<'_> {
        // Before anything else is read: a transition meanwhile makes what follows count for nothing.
        let turn = self.turns.load(Ordering::Acquire);
        let began = self.slow_after.map(|_| self.clock.elapsed());
        let (shards, probes) = (Shards::NONE, Shards::NONE);
        Passage { gates: self, shards, probes, looked: Micros::ZERO, turn, began }
    }

    pub(super) fn are_all_well(&self) -> bool {
        self.unwell.load(Ordering::Acquire) == 0
    }

    pub(super) fn all_closed(&self, shards: Shards) -> bool {
        self.unwell.load(Ordering::Acquire) & shards.bits() == 0
    }

    #[cold]
    fn enter_with_care(
        &self,
        passage: &mut Passage<'_>,
        up: impl FnOnce() -> bool,
    ) -> Result<(), EngineError> {
        let now = self.clock.elapsed();
        passage.looked = now;
        self.forget(passage.shards.numbers(), now);
        for shard in passage.shards.numbers() {
            let mut inside = self.gates[shard].lock();
            match inside.machine.ask(now) {
                Ask::Pass => {}
                Ask::Look => passage.probes = passage.probes.and(shard),
                Ask::Refuse => return Err(self.refuse(&inside)),
            }
        }
        if passage.probes == Shards::NONE {
            return Ok(());
        }
        let up = up();
        for shard in passage.probes.numbers() {
            let mut inside = self.gates[shard].lock();
            if !inside.machine.begin(now, up) {
                return Err(self.refuse(&inside));
            }
        }
        Ok(())
    }

    fn refuse(&self, inside: &Inside) -> EngineError {
        self.refused.fetch_add(1, Ordering::Relaxed);
        // It is there from opening to closing.
        inside.refusal.clone().unwrap_or_else(|| Refused::for_the_sake_of(None))
    }

    /// Closes those of these that nobody has asked for long.
    fn forget(&self, shards: impl Iterator<Item = usize>, now: Micros) {
        for shard in shards {
            let mut inside = self.gates[shard].lock();
            let Some(change) = inside.machine.forget(now) else { continue };
            self.turn(&mut inside, None);
            self.show(shard, &inside);
            drop(inside);
            self.tell(shard, change, None);
        }
    }

    /// What began before a transition says nothing about what is after.
    fn turn(&self, inside: &mut Inside, failure: Option<&EngineError>) {
        inside.turn = self.turns.fetch_add(1, Ordering::AcqRel) + 1;
        inside.refusal = failure.map(|error| Refused::for_the_sake_of(Some(error)));
    }

    pub(super) fn worst(&self) -> Circuit {
        let unwell = || Shards::from_bits(self.unwell.load(Ordering::Acquire)).numbers();
        self.forget(unwell(), self.clock.elapsed());
        let circuits = unwell().map(|shard| self.gates[shard].lock().machine.circuit());
        circuits.max().unwrap_or(Circuit::Closed)
    }

    /// Says of a gate whether it is closed. Its lock is held, so that the last word is the right one.
    fn show(&self, shard: usize, inside: &Inside) {
        let bit = Shards::NONE.and(shard).bits();
        match inside.machine.circuit() {
            Circuit::Closed => self.unwell.fetch_and(!bit, Ordering::AcqRel),
            Circuit::HalfOpen | Circuit::Open => self.unwell.fetch_or(bit, Ordering::AcqRel),
        };
    }

    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        // Nothing in here panics, as far as we know; if it does, going on is better than denying everyone.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call on its way. Dropped, it says nothing about the store.
pub(super) struct Passage<'a> {
    gates: &'a Gates,
    shards: Shards,
    /// Those that nobody else is asking.
    probes: Shards,
    /// When it was found that they may be asked.
    looked: Micros,
    turn: u64,
    /// When, if it matters how long it takes.
    began: Option<Micros>,
}

impl Passage<'_> {
    /// The call is about these.
    pub(super) fn about(mut self, shards: Shards) -> Self {
        self.shards = shards;
        self
    }

    /// It was answered, or not; or nobody was asked, which says as little about the store as a call that is dropped.
    pub(super) fn note<T>(mut self, answer: &Result<T, EngineError>) {
        // Dropped, it leaves its place to the next.
        if matches!(answer, Err(EngineError::Refused(why)) if !why.is_of_the_store()) {
            return;
        }
        let now = self.gates.clock.elapsed();
        let slow = self.slowness(now).map(EngineError::unavailable);
        let failure = match answer {
            Err(error) if !error.is_answer() => Some(error),
            _ => slow.as_ref(),
        };
        let probes = std::mem::replace(&mut self.probes, Shards::NONE);
        let mut changes: SmallVec<[(usize, Change); 1]> = SmallVec::new();
        for shard in self.shards.numbers() {
            let is_probe = probes.and(shard) == probes;
            changes
                .extend(self.note_one(shard, is_probe, now, failure).map(|change| (shard, change)));
        }
        // Told when nothing is locked: whoever watches may ask how the store is.
        for (shard, change) in changes {
            self.gates.tell(shard, change, failure);
        }
    }

    fn note_one(
        &self,
        shard: usize,
        is_probe: bool,
        now: Micros,
        failure: Option<&EngineError>,
    ) -> Option<Change> {
        let mut inside = self.gates.gates[shard].lock();
        let change = match is_probe {
            // It was given up, and another has begun.
            true if inside.machine.probing_since() != Some(self.looked) => None,
            true => inside.machine.probed(now, failure.is_none()),
            false if self.turn < inside.turn => None,
            false => inside.machine.passed(now, failure.is_none()),
        };
        if change.is_some() {
            self.gates.turn(&mut inside, failure);
            self.gates.show(shard, &inside);
        }
        change
    }

    fn slowness(&self, now: Micros) -> Option<Slow> {
        let took = now.saturating_sub(self.began?);
        (took > self.gates.slow_after?).then(|| Slow(took.into()))
    }
}

impl Gates {
    fn tell(&self, shard: usize, change: Change, failure: Option<&EngineError>) {
        match (change, failure) {
            (Change::Opened, Some(error)) => {
                self.opened.fetch_add(1, Ordering::Relaxed);
                (self.watcher)(BreakerEvent::Opened { shard, error });
            }
            (Change::Closed { after }, _) => {
                (self.watcher)(BreakerEvent::Closed { shard, after: after.into() });
            }
            (Change::Forgotten { after }, _) => {
                (self.watcher)(BreakerEvent::Forgotten { shard, after: after.into() });
            }
            // Only a failure opens it.
            (Change::Opened, None) => {}
        }
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        for shard in self.probes.numbers() {
            let mut inside = self.gates.gates[shard].lock();
            if inside.machine.probing_since() == Some(self.looked) {
                inside.machine.give_up();
            }
        }
    }
}

/// Why a call was not sent.
#[derive(Debug)]
struct Refused(Option<Arc<dyn Error + Send + Sync>>);

impl Refused {
    fn for_the_sake_of(failure: Option<&EngineError>) -> EngineError {
        let cause = failure.and_then(|error| match error {
            EngineError::Unavailable(cause) | EngineError::Ambiguous(cause) => Some(cause.clone()),
            EngineError::Refused(_) => None,
        });
        EngineError::unavailable(Self(cause))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store is left alone for a moment, since it did not answer")?;
        self.0.as_ref().map_or(Ok(()), |cause| write!(f, " ({cause})"))
    }
}

impl Error for Refused {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_ref().map(|cause| &**cause as &(dyn Error + 'static))
    }
}

/// An answer that came too late to be worth waiting for.
#[derive(Debug)]
struct Slow(Duration);

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store answered after {:?}; look at its slow log", self.0)
    }
}

impl Error for Slow {}
