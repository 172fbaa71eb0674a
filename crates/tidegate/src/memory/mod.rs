//! The engine inside the process.
//!
//! # Layout
//!
//! - `quick`: checks of limits that keep two numbers. `decide`: all calls with charges. `settle`:
//!   calls about a hold.
//! - `locked`: which shards a call locks, where each of its charges finds its cell, and what
//!   happens when there is no room for a new one.
//! - `small`: states of two numbers by fingerprint. `numbers`: the limits that they belong to.
//! - `cell`: any other state, with its holds. `table`: cells by fingerprint. `budget`: bytes.

mod budget;
mod cell;
mod decide;
mod locked;
mod numbers;
mod quick;
mod settle;
mod small;
mod table;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, PoisonError, TryLockError};

use tidegate_core::{Cost, Expiry, Micros, Verdict};

use self::budget::Budget;
use self::cell::Cell;
use self::locked::{Locked, Place};
use self::numbers::Numbers;
pub(crate) use self::settle::check_ttl;
use self::small::{LimitNumber, Small};
use self::table::{HeapBytes, Table};
use crate::key::Fingerprints;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::{
    Answer, Call, Charge, Clock, Decision, Engine, EngineError, Health, Inspection, Key, Op,
    RuleLimit, Source, SystemClock,
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
    shards: Box<[Padded<Mutex<Shard>>]>,
    /// Always locked before the shards of the cells.
    holds: Box<[Mutex<Table<Reserved>>]>,
    /// Always locked after the shards of the cells.
    overflow: Mutex<Table<Cell>>,
    /// How many overflow cells there are, so that most calls need not lock them.
    overflowing: AtomicUsize,
    fingerprints: Fingerprints,
    numbers: Numbers,
    budget: Arc<Budget>,
    /// A share of the cap of its own, so that there is always room to count in.
    overflow_budget: Arc<Budget>,
    /// The shard that will be swept next on behalf of others.
    reclaim_next: AtomicUsize,
    /// When one was last swept thoroughly.
    swept_thoroughly: AtomicU64,
    /// `None` for the system's, which is quickly read.
    clock: Option<Arc<dyn Clock>>,
}

/// On cache lines of its own, so that threads on different shards are not in each other's way.
#[repr(align(64))]
struct Padded<T>(T);

/// A key is small or has a cell, or neither while it is unused.
//
// In this order: a check reads the beginning, next to the lock.
#[repr(C)]
struct Shard {
    small: Small,
    cells: Table<Cell>,
    once: Table<Once>,
}

impl Shard {
    fn new(budget: &Arc<Budget>) -> Self {
        Self { small: Small::new(budget), cells: Table::new(budget), once: Table::new(budget) }
    }

    fn has_cell(&self, fingerprint: u64) -> bool {
        self.cells.len() > 0 && self.cells.get(fingerprint.into()).is_some()
    }

    /// Looks at the next `steps` entries of each kind and drops those that have recovered.
    fn sweep(&mut self, memory: &Memory, steps: usize, now: Micros) {
        self.sweep_small(memory, steps, now, None);
        self.cells.sweep(steps, |cell| cell.is_recovered(now));
    }
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
    /// Made by an entry: there is one for every request and nobody asks how it ended, so that it is
    /// forgotten when it is settled.
    is_entry: bool,
    settled: Option<(Option<Cost>, Decision)>,
    forget_at: Micros,
}

#[derive(Clone)]
struct HeldPart {
    limit: Arc<RuleLimit>,
    fingerprint: u64,
    cost: Cost,
}

impl Memory {
    /// Bytes that a memory engine may use unless told otherwise: 256 MiB.
    pub const DEFAULT_CAP_BYTES: usize = 256 << 20;
    /// Cells of a shard that are looked at when there is no room.
    const SWEEP_WHEN_FULL: usize = 64;
    /// Shards that are swept when there is no room.
    const RECLAIM_SHARDS: usize = 4;
    /// Small entries of a shard that are looked at once in a while when there is no room: so many that
    /// one whose keys have recovered soon gives its memory back.
    const SWEEP_THOROUGHLY: usize = 4_096;
    /// How long it takes at least from one thorough sweep to the next. One takes a fraction of that.
    const THOROUGH_EVERY: Micros = Micros::from_millis(1);

    /// Settings for an engine.
    pub fn builder() -> MemoryBuilder {
        MemoryBuilder { cap_bytes: Self::DEFAULT_CAP_BYTES, clock: None }
    }

    #[inline]
    fn now(&self) -> Micros {
        match &self.clock {
            None => SystemClock.now(),
            Some(clock) => clock.now(),
        }
    }

    #[inline]
    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[index].0)
    }

    /// The upper half of the bits chooses the shard, the lower one the place in it.
    #[inline]
    fn shard_of(&self, fingerprint: u64) -> usize {
        (((fingerprint >> 32) * self.shards.len() as u64) >> 32) as usize
    }

    fn is_overflowing(&self) -> bool {
        self.overflowing.load(Ordering::Relaxed) > 0
    }

    /// The numbers of limits that entries go by.
    fn numbers_in_use(&self) -> HashSet<LimitNumber> {
        let mut numbers = HashSet::new();
        for index in 0..self.shards.len() {
            let shard = self.shard(index);
            numbers.extend(shard.small.iter().map(|entry| entry.limit));
            // A cell may become an entry before the numbers are freed.
            numbers.extend(shard.cells.iter().filter_map(|cell| self.numbers.of(cell.limit())));
        }
        numbers
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
        let last = self.swept_thoroughly.load(Ordering::Relaxed);
        let is_due = now.get().abs_diff(last) >= Self::THOROUGH_EVERY.get();
        let mut thoroughly = is_due
            && (self.swept_thoroughly)
                .compare_exchange(last, now.get(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        for _ in 0..Self::RECLAIM_SHARDS.min(self.shards.len()) {
            let index = self.reclaim_next.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            if let Some(mut shard) = try_lock(&self.shards[index].0) {
                if std::mem::take(&mut thoroughly) {
                    shard.sweep_small(self, Self::SWEEP_THOROUGHLY, now, None);
                }
                shard.sweep(self, Self::SWEEP_WHEN_FULL, now);
                shard.once.sweep(Self::SWEEP_WHEN_FULL, |record| record.has_expired(now));
            }
            if let Some(mut holds) = try_lock(&self.holds[index]) {
                holds.sweep(Self::SWEEP_WHEN_FULL, |reserved| reserved.may_go(now));
            }
        }
    }

    /// Decides a call that is not quickly done.
    #[inline(never)]
    fn decide_with_care(&self, call: &Call<'_>) -> Result<Decision, EngineError> {
        call.validate()?;
        self.numbers.tidy(|| self.numbers_in_use());
        match call.op {
            Op::Settle { id, cost } => self.settle(id, cost),
            Op::Renew { id, ttl } => self.renew(id, ttl),
            _ => self.run(call),
        }
    }

    fn inspect_now(&self, limit: &Arc<RuleLimit>, key: Key<'_>) -> Result<Inspection, EngineError> {
        let look = Call {
            op: Op::Peek,
            charges: &[Charge { limit, key, cost: Cost::ZERO, who: None }],
            once: None,
        };
        look.validate()?;
        let parts = locked::parts(look.charges);
        let mut locked = Locked::new(self, &parts, None);
        let part = parts[0];
        let place = locked.place(&part, Op::Peek, self.now())?;
        let now = self.now();
        let Some(cell) = locked.cell(&part, place) else {
            return Ok(Cell::new(limit).inspect(now, false));
        };
        let seen = cell.seen_by(limit, now, self.budget_of(place));
        Ok(seen.inspect(now, place == Place::Shared))
    }
}

impl Engine for Memory {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        match self.quick(&call) {
            Some(decision) => Answer::Ready(Ok(decision)),
            None => Answer::Ready(self.decide_with_care(&call)),
        }
    }

    #[inline]
    fn check_one(&self, charge: &Charge<'_>) -> Option<(Source, Verdict)> {
        Some((Source::Memory, self.quick_one(charge)?))
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        Answer::Ready(self.inspect_now(limit, key))
    }

    fn health(&self) -> Health {
        let keys = |shard: MutexGuard<'_, Shard>| shard.small.len() + shard.cells.len();
        let own: usize = (0..self.shards.len()).map(|index| keys(self.shard(index))).sum();
        let keys = own + self.overflowing.load(Ordering::Relaxed);
        let bytes = self.budget.used() + self.overflow_budget.used();
        Health::up(Some(keys as u64), bytes as u64)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone().unwrap_or_else(|| Arc::new(SystemClock))
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
    /// `None` for the system's.
    clock: Option<Arc<dyn Clock>>,
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
        self.clock = Some(Arc::new(clock));
        self
    }

    /// The engine.
    pub fn build(self) -> Memory {
        let overflow_bytes = (self.cap_bytes / 16).max(8 << 10);
        let budget = Arc::new(Budget::new(self.cap_bytes - overflow_bytes));
        let overflow_budget = Arc::new(Budget::new(overflow_bytes));
        // Small caps get few shards, so that what every shard has in reserve stays small too.
        let shards = (self.cap_bytes >> 16).clamp(1, 256);
        let memory = Memory {
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new(&budget)))).collect(),
            holds: (0..shards).map(|_| Mutex::new(Table::new(&budget))).collect(),
            overflow: Mutex::new(Table::new(&overflow_budget)),
            overflowing: AtomicUsize::new(0),
            fingerprints: Fingerprints::default(),
            numbers: Numbers::default(),
            budget,
            overflow_budget,
            reclaim_next: AtomicUsize::new(0),
            swept_thoroughly: AtomicU64::new(0),
            clock: self.clock,
        };
        // The first reading sets some clocks up. Nobody should wait for that under a lock.
        memory.now();
        memory
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
#[inline]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same without waiting.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
