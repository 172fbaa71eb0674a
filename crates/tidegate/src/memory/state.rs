//! State of the memory engine: shards, holds, overflow buckets and budgets.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use tidegate_core::Micros;

use super::budget::{Budget, Budgets};
use super::cell::{Cell, CellLocation, Space};
use super::limit_registry::LimitRegistry;
use super::packed_table::{LimitNumber, PackedTable};
use super::records::StoredHold;
use super::shard::{Shard, SweepSteps};
use super::table::Table;
use crate::key::Fingerprints;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, lock, try_lock};
use crate::{Clock, EngineError, IdempotencyKey, RuleLimit, SystemClock};

/// The in-process engine, for one machine or one instance.
///
/// Memory stays below a cap, and each [kind of memory](crate::MemoryKind) has a part of it that the
/// others cannot take. Only keys that have fully recovered make room for new ones; if there are
/// none, new keys share a few overflow buckets per limit until those have recovered. A flood of new
/// keys cannot evict consumption.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limit, Limiter, ManualClock, Memory};
///
/// // At most 8 MiB, and in tests a clock that only the test advances.
/// let clock = ManualClock::default();
/// let memory = Memory::builder().cap_bytes(8 << 20).clock(clock.clone()).build();
/// let limiter = Limiter::new(memory, "1/m".parse::<Limit>()?);
/// assert!(limiter.allow("user-42")?);
/// assert!(!limiter.allow("user-42")?);
/// clock.advance(Duration::from_secs(60));
/// assert!(limiter.allow("user-42")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Memory {
    pub(super) shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Always locked before the shards of the cells.
    pub(super) holds: Box<[Mutex<Table<StoredHold>>]>,
    /// Always locked after the shards of the cells.
    pub(super) overflow: Mutex<OverflowTables>,
    /// Number of overflow cells of rules, so that most calls need not lock them.
    pub(super) overflow_cells: AtomicUsize,
    /// Those of limits that come with calls.
    pub(super) adhoc_overflow_cells: AtomicUsize,
    pub(super) fingerprints: Fingerprints,
    pub(super) registry: LimitRegistry,
    pub(super) budgets: Budgets,
    /// The shard that a full engine sweeps next.
    pub(super) reclaim_next: AtomicUsize,
    /// Time of the last thorough sweep, in microseconds.
    pub(super) swept_thoroughly: AtomicU64,
    /// Time when unused limits that came with calls were last freed to make room.
    pub(super) freed_limits: AtomicU64,
    /// The shard in which ids were last forgotten to make room.
    pub(super) evicted_shard: AtomicUsize,
    /// Age of the last id that was forgotten to make room, in microseconds.
    pub(super) id_retention: AtomicU64,
    /// `None` for the system clock, which is cheaper to read without dynamic dispatch.
    pub(super) clock: Option<Arc<dyn Clock>>,
}

/// Overflow buckets. Those of limits that come with calls cannot take the room of those of rules.
pub(super) struct OverflowTables {
    rules: Table<Cell>,
    adhoc: Table<Cell>,
}

impl OverflowTables {
    pub(super) fn new(budgets: &Budgets) -> Self {
        let (rules, adhoc) = (&budgets.overflow, &budgets.adhoc_overflow);
        Self { rules: Table::new(rules), adhoc: Table::new(adhoc) }
    }

    pub(super) fn of(&mut self, space: Space) -> &mut Table<Cell> {
        match space {
            Space::Rules => &mut self.rules,
            Space::Adhoc => &mut self.adhoc,
        }
    }
}

/// Aligned to a cache line, so that threads on different shards do not contend.
#[repr(align(64))]
pub(super) struct CachePadded<T>(pub(super) T);

impl Memory {
    /// Default memory cap: 256 MiB.
    pub const DEFAULT_CAP_BYTES: usize = 256 << 20;
    /// A rule takes room for a new key as long as it has at most so many times what is free.
    const MAX_RULE_SHARE: usize = 8;
    /// Shards swept when there is no room.
    const RECLAIM_SHARDS: usize = 4;
    /// Shortest time between thorough sweeps. One sweep takes a fraction of that.
    const THOROUGH_INTERVAL: Micros = Micros::from_millis(1);
    /// Shortest time between two searches for unused limits: each visits every state.
    const FREE_INTERVAL: Micros = Micros::from_secs(1);

    #[inline]
    pub(super) fn now(&self) -> Micros {
        match &self.clock {
            None => SystemClock.now(),
            Some(clock) => clock.now(),
        }
    }

    #[inline]
    pub(super) fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[index].0)
    }

    /// The upper half of the bits chooses the shard, the lower half the slot in it.
    #[inline]
    pub(super) fn shard_of(&self, fingerprint: u64) -> usize {
        (((fingerprint >> 32) * self.shards.len() as u64) >> 32) as usize
    }

    /// Whether overflow buckets are in use.
    pub(super) fn is_overflowing(&self, space: Space) -> bool {
        self.overflow_cells(space).load(Ordering::Relaxed) > 0
    }

    pub(super) fn overflow_cells(&self, space: Space) -> &AtomicUsize {
        match space {
            Space::Rules => &self.overflow_cells,
            Space::Adhoc => &self.adhoc_overflow_cells,
        }
    }

    /// The numbers of limits that packed states refer to.
    pub(super) fn numbers_in_use(&self) -> HashSet<LimitNumber> {
        let mut numbers = HashSet::new();
        for index in 0..self.shards.len() {
            let shard = self.shard(index);
            let packed = shard.packed.iter().chain(shard.adhoc_packed.iter());
            numbers.extend(packed.map(|entry| entry.limit));
            // A cell may become a packed state before the numbers are freed.
            numbers.extend(shard.cells.iter().filter_map(|cell| self.registry.of(cell.limit())));
        }
        numbers
    }

    pub(super) fn budget_of(&self, space: Space, location: CellLocation) -> &Budget {
        match (space, location) {
            (Space::Rules, CellLocation::Own) => &self.budgets.state,
            (Space::Rules, CellLocation::Shared) => &self.budgets.overflow,
            (Space::Adhoc, CellLocation::Own) => &self.budgets.adhoc,
            (Space::Adhoc, CellLocation::Shared) => &self.budgets.adhoc_overflow,
        }
    }

    /// Whether so much of the budget of states is free that a new key of any rule may take some.
    /// Limits that come with calls have no shares.
    pub(super) fn is_spacious(&self, space: Space) -> bool {
        let state = &self.budgets.state;
        space == Space::Adhoc || state.used() <= Self::MAX_RULE_SHARE * state.room()
    }

    /// Whether there is room for charges that may be left out: at most half of what states can take
    /// is used. Otherwise keys that have recovered are removed, a few at a time.
    pub(crate) fn has_spare_room(&self) -> bool {
        let state = &self.budgets.state;
        if state.used() <= state.room() {
            return true;
        }
        let now = self.now();
        if is_due(&self.swept_thoroughly, Self::THOROUGH_INTERVAL, now) {
            let index = self.reclaim_next.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            if let Some(mut shard) = try_lock(&self.shards[index].0) {
                shard.sweep(Space::Rules, &self.registry, SweepSteps::THOROUGH, now);
            }
        }
        false
    }

    /// Whether a rule may take room for a new key: what it has is at most eight times what is free.
    /// So a flood of one rule leaves a ninth to the others.
    pub(super) fn has_share(&self, shard: &Shard, limit: &RuleLimit, now: Micros) -> bool {
        if self.is_spacious(Space::of(limit)) {
            return true;
        }
        let (state, shards) = (&self.budgets.state, self.shards.len());
        // Keys are spread evenly over the shards.
        let packed = (shards * shard.packed.bytes()).min(state.used());
        let (stored, free) = match LimitRegistry::packs(limit) {
            true => (packed, shards * shard.packed.free_slots() * PackedTable::KEY_BYTES),
            false => (state.used() - packed, 0),
        };
        let (sampled, own) = shard.share_of(limit, &self.registry, now);
        let own = stored / sampled.max(1) * own;
        // A rule that has more than half leaves the last room to grow to the others: it would be
        // used up by some shards, and the others might have no free slots.
        let room = if own > state.used() / 2 { 0 } else { state.room() };
        own <= Self::MAX_RULE_SHARE * (free + room)
    }

    /// Sweeps the states of a few shards that are not locked. Called when there is no room, so that
    /// keys that have recovered in any shard make room in every shard.
    pub(super) fn reclaim(&self, space: Space, now: Micros) {
        let mut thoroughly = is_due(&self.swept_thoroughly, Self::THOROUGH_INTERVAL, now);
        for index in self.next_shards() {
            if let Some(mut shard) = try_lock(&self.shards[index].0) {
                let steps = match std::mem::take(&mut thoroughly) {
                    true => SweepSteps::THOROUGH,
                    false => SweepSteps::WHEN_FULL,
                };
                shard.sweep(space, &self.registry, steps, now);
            }
        }
    }

    /// Numbers of the shards that a full engine looks at next.
    pub(super) fn next_shards(&self) -> impl Iterator<Item = usize> {
        (0..Self::RECLAIM_SHARDS.min(self.shards.len()))
            .map(|_| self.reclaim_next.fetch_add(1, Ordering::Relaxed) % self.shards.len())
    }

    /// The engine's instance of a limit that comes with a call. Must be called without a lock.
    pub(super) fn instance_of(
        &self,
        limit: &Arc<RuleLimit>,
        now: Micros,
    ) -> Result<Arc<RuleLimit>, EngineError> {
        if let Some((instance, _)) = self.registry.per_call(limit) {
            return Ok(instance);
        }
        let (budget, bytes) = (&self.budgets.adhoc, LimitRegistry::bytes(limit));
        // A flood of limits leaves a ninth to the keys of known limits.
        let has_room = || budget.has_room_for(bytes + budget.used() / Self::MAX_RULE_SHARE);
        if !has_room() {
            if is_due(&self.freed_limits, Self::FREE_INTERVAL, now) {
                for index in 0..self.shards.len() {
                    self.shard(index).sweep(Space::Adhoc, &self.registry, SweepSteps::ALL, now);
                }
                self.registry.set_crowded();
                self.registry.free_unused(|| self.numbers_in_use());
            }
            if !has_room() {
                return Err(budget.refuse(now));
            }
        }
        Ok(self.registry.add_per_call(limit).map_or_else(|| limit.clone(), |(limit, _)| limit))
    }

    /// How long ids are kept at present.
    pub(super) fn id_retention(&self, now: Micros) -> Micros {
        match self.budgets.ids.is_full(now) {
            true => Micros::new(self.id_retention.load(Ordering::Relaxed)),
            false => IdempotencyKey::TTL,
        }
    }
}

/// Whether `interval` has passed since the time in `last`, which is then set to `now`. True for one
/// thread.
fn is_due(last: &AtomicU64, interval: Micros, now: Micros) -> bool {
    let before = last.load(Ordering::Relaxed);
    now.get().abs_diff(before) >= interval.get()
        && last.compare_exchange(before, now.get(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("budgets", &self.budgets).finish_non_exhaustive()
    }
}
