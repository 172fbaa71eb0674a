//! The engine inside the process.
//!
//! # Layout
//!
//! - `decide`: calls with charges. `settle`: calls about a hold.
//! - `locked`: which shards a call locks, where each of its charges finds its cell, and what
//!   happens when there is no room for a new one.
//! - `cell`: a limit's state for one key. `table`: cells by fingerprint. `budget`: bytes.

mod budget;
mod cell;
mod decide;
mod locked;
mod settle;
mod table;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::{Cost, Expiry, Micros};

use self::budget::Budget;
use self::cell::Cell;
use self::locked::{Locked, Place};
use self::table::{HeapBytes, Table};
use crate::key::Fingerprints;
use crate::{
    Answer, Call, Clock, Decision, Engine, EngineError, Health, Inspection, Key, Op, RuleLimit,
    SystemClock,
};

/// Counts in this process, for one machine or one instance.
///
/// Memory stays below a cap. Only keys that have fully recovered make room for new ones; when there
/// are none, new keys share a few overflow buckets per limit until those have recovered. A key with
/// consumption left is never forgotten, so a flood of keys lets nobody through.
///
/// ```
/// use tidegate::Memory;
/// let small = Memory::builder().cap_bytes(8 << 20).build();
/// ```
pub struct Memory {
    shards: Box<[Mutex<Shard>]>,
    /// Always locked before the shards of the cells.
    holds: Box<[Mutex<Table<Reserved>>]>,
    /// Always locked after the shards of the cells.
    overflow: Mutex<Table<Cell>>,
    /// How many overflow cells there are, so that most calls need not lock them.
    overflowing: AtomicUsize,
    fingerprints: Fingerprints,
    budget: Arc<Budget>,
    /// A share of the cap of its own, so that there is always room to count in.
    overflow_budget: Arc<Budget>,
    /// The shard that will be swept next on behalf of others.
    reclaim_next: AtomicUsize,
    clock: Arc<dyn Clock>,
}

struct Shard {
    cells: Table<Cell>,
    once: Table<Once>,
}

/// A call that was charged under an id.
struct Once {
    request: u128,
    decision: Decision,
    expires: Micros,
}

/// A hold, its parts, and how it ended.
struct Reserved {
    parts: Vec<HeldPart>,
    expiry: Expiry,
    settled: Option<(Option<Cost>, Decision)>,
    forget_at: Micros,
}

#[derive(Clone)]
struct HeldPart {
    limit: Arc<RuleLimit>,
    fingerprint: u128,
    cost: Cost,
}

impl Memory {
    /// Bytes that a memory engine may use unless told otherwise: 256 MiB.
    pub const DEFAULT_CAP_BYTES: usize = 256 << 20;
    /// Cells of a shard that are looked at when there is no room.
    const SWEEP_WHEN_FULL: usize = 64;
    /// Shards that are swept when there is no room.
    const RECLAIM_SHARDS: usize = 4;

    /// Settings for an engine.
    pub fn builder() -> MemoryBuilder {
        MemoryBuilder { cap_bytes: Self::DEFAULT_CAP_BYTES, clock: Arc::new(SystemClock) }
    }

    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[index])
    }

    /// The top bits choose the shard, the low ones the place in it.
    fn shard_of(&self, fingerprint: u128) -> usize {
        usize::try_from(fingerprint >> 96).unwrap_or(0) % self.shards.len()
    }

    fn fingerprint(&self, limit: &RuleLimit, key: Key<'_>) -> u128 {
        self.fingerprints.of((limit.state(), key))
    }

    fn budget_of(&self, place: Place) -> &Budget {
        match place {
            Place::Own => &self.budget,
            Place::Shared => &self.overflow_budget,
        }
    }

    /// Sweeps a few shards that nobody has locked. Called when there is no room, so that what has
    /// recovered anywhere makes room everywhere.
    fn reclaim(&self, now: Micros) {
        for _ in 0..Self::RECLAIM_SHARDS.min(self.shards.len()) {
            let index = self.reclaim_next.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            if let Ok(mut shard) = self.shards[index].try_lock() {
                shard.cells.sweep(Self::SWEEP_WHEN_FULL, |cell| cell.is_recovered(now));
                shard.once.sweep(Self::SWEEP_WHEN_FULL, |record| record.has_expired(now));
            }
            if let Ok(mut holds) = self.holds[index].try_lock() {
                holds.sweep(Self::SWEEP_WHEN_FULL, |reserved| reserved.may_go(now));
            }
        }
    }

    fn decide_now(&self, call: &Call<'_>) -> Result<Decision, EngineError> {
        call.validate()?;
        match call.op {
            Op::Settle { id, cost } => self.settle(id, cost),
            Op::Renew { id, ttl } => self.renew(id, ttl),
            _ => self.run(call),
        }
    }

    fn inspect_now(&self, limit: &Arc<RuleLimit>, key: Key<'_>) -> Result<Inspection, EngineError> {
        let look = Call {
            op: Op::Peek,
            charges: &[crate::Charge { limit, key, cost: Cost::ZERO, who: None }],
            once: None,
        };
        look.validate()?;
        let parts = locked::parts(self, look.charges);
        let mut locked = Locked::new(self, &parts, None);
        let part = parts[0];
        let place = locked.place(&part, Op::Peek, self.clock.now())?;
        let now = self.clock.now();
        let Some(cell) = locked.cell(&part, place) else {
            return Ok(Cell::new(limit).inspect(now, false));
        };
        let seen = cell.seen_by(limit, now, self.budget_of(place));
        Ok(seen.inspect(now, place == Place::Shared))
    }
}

impl Engine for Memory {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        Answer::Ready(self.decide_now(&call))
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        Answer::Ready(self.inspect_now(limit, key))
    }

    fn health(&self) -> Health {
        let own: usize = (0..self.shards.len()).map(|i| self.shard(i).cells.len()).sum();
        let keys = own + self.overflowing.load(Ordering::Relaxed);
        let bytes = self.budget.used() + self.overflow_budget.used();
        Health::up(Some(keys as u64), bytes as u64)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::builder().build()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("budget", &self.budget).finish_non_exhaustive()
    }
}

/// Settings for a [`Memory`].
pub struct MemoryBuilder {
    cap_bytes: usize,
    clock: Arc<dyn Clock>,
}

impl MemoryBuilder {
    /// Bytes of state that the engine may use, give or take a tenth; at least 64 KiB.
    #[must_use]
    pub fn cap_bytes(mut self, cap_bytes: usize) -> Self {
        self.cap_bytes = cap_bytes.max(64 << 10);
        self
    }

    /// The clock to go by.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The engine.
    pub fn build(self) -> Memory {
        let overflow_bytes = (self.cap_bytes / 16).max(8 << 10);
        let budget = Arc::new(Budget::new(self.cap_bytes - overflow_bytes));
        let overflow_budget = Arc::new(Budget::new(overflow_bytes));
        // Small caps get few shards, so that what every shard has in reserve stays small too.
        let shards = (self.cap_bytes >> 16).clamp(1, 64);
        let shard = || Mutex::new(Shard { cells: Table::new(&budget), once: Table::new(&budget) });
        Memory {
            shards: (0..shards).map(|_| shard()).collect(),
            holds: (0..shards).map(|_| Mutex::new(Table::new(&budget))).collect(),
            overflow: Mutex::new(Table::new(&overflow_budget)),
            overflowing: AtomicUsize::new(0),
            fingerprints: Fingerprints::default(),
            budget,
            overflow_budget,
            reclaim_next: AtomicUsize::new(0),
            clock: self.clock,
        }
    }
}

impl HeapBytes for Once {
    fn heap_bytes(&self) -> usize {
        self.decision.heap_bytes()
    }
}

impl HeapBytes for Reserved {
    /// Counts the answer from the beginning, so that settling never has to ask for room.
    fn heap_bytes(&self) -> usize {
        let limits: usize = self.parts.iter().map(|part| part.limit.own_bytes()).sum();
        let parts = self.parts.capacity() * size_of::<HeldPart>();
        limits + parts + Decision::heap_bytes_for(self.parts.len())
    }
}

/// Why the memory engine cannot take a new key or reservation.
#[derive(Clone, Copy, Debug)]
struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory is full of keys in use; raise the cap or use fewer distinct limits")
    }
}

impl std::error::Error for Full {}

/// Nothing in here panics, as far as we know; if it does, going on is better than denying everyone.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
