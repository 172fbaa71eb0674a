//! Shards and cells of a call under lock, and overflow buckets.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Holds, Micros, Verdict};

use super::budget::{Budget, HeapSize};
use super::cell::{Cell, CellLocation, Space};
use super::limit_registry::LimitRegistry;
use super::packed_table::PackedEntry;
use super::rule_records::RuleNumber;
use super::shard::{Shard, SweepSteps};
use super::state::{Memory, OverflowTables};
use super::table::{HeapBytes, Table};
use crate::fingerprint::fingerprint;
use crate::sync::atomic::Ordering;
use crate::sync::{MutexGuard, lock};
use crate::{Charge, EngineError, Op, RuleLimit};

/// One limit and key of a call, with the sum of the costs.
#[derive(Clone, Copy)]
pub(crate) struct CellCharge<'a> {
    pub(crate) limit: &'a Arc<RuleLimit>,
    pub(crate) fingerprint: u64,
    pub(crate) cost: Cost,
    pub(crate) caller: Option<&'a str>,
}

/// The state of one limit and key.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StateKey {
    space: Space,
    fingerprint: u64,
}

impl CellCharge<'_> {
    pub(crate) fn space(&self) -> Space {
        Space::of(self.limit)
    }

    fn state_key(&self) -> StateKey {
        StateKey { space: self.space(), fingerprint: self.fingerprint }
    }

    /// Whether the limit is in shadow mode.
    pub(crate) fn is_shadow(&self) -> bool {
        self.limit.is_shadow()
    }

    /// Whether `op` holds the cost instead of charging it.
    pub(crate) fn is_held_by(&self, op: Op<'_>) -> bool {
        op.holds(self.limit)
    }
}

pub(crate) type CellCharges<'a> = SmallVec<[CellCharge<'a>; 2]>;

/// The charges of a call; those to the same limit and key are summed.
pub(crate) fn cell_charges<'a>(charges: &'a [Charge<'a>]) -> CellCharges<'a> {
    let mut parts = CellCharges::new();
    for charge in charges {
        let fingerprint = fingerprint(charge.limit.tag(), charge.key);
        match parts.iter_mut().find(|part| part.fingerprint == fingerprint) {
            Some(part) => part.cost = part.cost.saturating_add(charge.cost),
            None => parts.push(CellCharge {
                limit: charge.limit,
                fingerprint,
                cost: charge.cost,
                caller: charge.caller,
            }),
        }
    }
    parts
}

/// The shards of a call, locked in the order of their numbers.
///
/// Packed states become cells during the call, and are packed again when it ends.
pub(crate) struct LockedShards<'a> {
    memory: &'a Memory,
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>,
    overflow: Option<MutexGuard<'a, OverflowTables>>,
    /// States of the call.
    keys: SmallVec<[StateKey; 2]>,
    /// Cells made from packed states, and new ones.
    unpacked: SmallVec<[(StateKey, Cell); 1]>,
    /// Shards in which this call has reserved room for a new cell, and its bytes on the heap.
    reserved: SmallVec<[ReservedRoom; 2]>,
    /// Overflow buckets for which this call has reserved room.
    reserved_buckets: usize,
}

/// Room for a new cell of the call.
struct ReservedRoom {
    space: Space,
    shard: usize,
    heap: usize,
}

impl<'a> LockedShards<'a> {
    /// Overflow buckets visited per call.
    const SWEEP_OVERFLOW: usize = 2;
    /// Overflow buckets per limit.
    const OVERFLOW_BUCKETS: u64 = 16;
    /// Locks the shards of the charges, and that of one more fingerprint.
    pub(crate) fn new(memory: &'a Memory, parts: &[CellCharge<'_>], extra: Option<u64>) -> Self {
        let keys: SmallVec<[StateKey; 2]> = parts.iter().map(CellCharge::state_key).collect();
        let fingerprints = keys.iter().map(|key| key.fingerprint).chain(extra);
        let mut indices: SmallVec<[usize; 2]> =
            fingerprints.map(|fingerprint| memory.shard_of(fingerprint)).collect();
        indices.sort_unstable();
        indices.dedup();
        let mut locked = Self {
            memory,
            shards: indices.into_iter().map(|index| (index, memory.shard(index))).collect(),
            overflow: None,
            unpacked: SmallVec::new(),
            keys,
            reserved: SmallVec::new(),
            reserved_buckets: 0,
        };
        for i in 0..locked.keys.len() {
            locked.unpack(locked.keys[i]);
        }
        locked
    }

    /// Turns a packed state into a cell.
    fn unpack(&mut self, key: StateKey) {
        let packed = self.shard(key.fingerprint).packed(key.space);
        let Some(entry) = packed.take(key.fingerprint) else { return };
        let limit = self.memory.registry.limit(entry.limit);
        if let Some(cell) = limit.and_then(|limit| Cell::unpacked(&limit, entry.state)) {
            self.add_unpacked(key, cell);
        }
    }

    fn add_unpacked(&mut self, key: StateKey, cell: Cell) {
        let budget = self.memory.budget_of(key.space, CellLocation::Own);
        budget.heap_resized(HeapSize::default(), cell.heap_bytes());
        self.unpacked.push((key, cell));
    }

    fn take_unpacked(&mut self, key: StateKey) -> Option<Cell> {
        let index = self.unpacked.iter().position(|(other, _)| *other == key)?;
        let (_, cell) = self.unpacked.swap_remove(index);
        let budget = self.memory.budget_of(key.space, CellLocation::Own);
        budget.heap_resized(cell.heap_bytes(), HeapSize::default());
        Some(cell)
    }

    /// Stores the cells: packed if possible and if there is room.
    fn put_back(&mut self) {
        let memory = self.memory;
        while let Some((key, _)) = self.unpacked.last() {
            let key = *key;
            let Some(mut cell) = self.take_unpacked(key) else { break };
            let (fingerprint, shard) = (key.fingerprint, self.shard(key.fingerprint));
            match Self::packed(memory, &mut cell) {
                Some(entry) => shard.packed(key.space).insert(fingerprint, entry),
                None if cell.is_unused() => {}
                None => shard.cells(key.space).insert(fingerprint.into(), cell),
            }
        }
        for key in std::mem::take(&mut self.keys) {
            let (fingerprint, shard) = (key.fingerprint, self.shard(key.fingerprint));
            let cell = shard.cells(key.space).get_mut(fingerprint.into());
            let Some(entry) = cell.and_then(|cell| Self::packed(memory, cell)) else { continue };
            let budget = memory.budget_of(key.space, CellLocation::Own);
            if budget.has_room_for(shard.packed(key.space).growth(1)) {
                shard.cells(key.space).remove(fingerprint.into());
                shard.packed(key.space).insert(fingerprint, entry);
            }
        }
    }

    /// The cell as a packed state, if possible. A limit that came with the call is replaced by the
    /// engine's instance of it, whose bytes are counted.
    fn packed(memory: &Memory, cell: &mut Cell) -> Option<PackedEntry> {
        let registry = &memory.registry;
        if !cell.limit().is_adhoc() {
            let (limit, state) = cell.packed()?;
            return Some(PackedEntry { limit: registry.of(limit)?, state });
        }
        let limit = cell.limit().clone();
        let (instance, number) =
            registry.per_call(&limit).or_else(|| registry.add_per_call(&limit))?;
        cell.set_limit(instance);
        let (limit, state) = cell.packed()?;
        LimitRegistry::packs(limit).then_some(PackedEntry { limit: number, state })
    }

    /// Whether the overflow buckets are locked too.
    pub(crate) fn has_overflow(&self) -> bool {
        self.overflow.is_some()
    }

    /// The shard that holds `fingerprint`.
    pub(crate) fn shard(&mut self, fingerprint: u64) -> &mut Shard {
        let index = self.memory.shard_of(fingerprint);
        let position = self.shards.iter().position(|(i, _)| *i == index).unwrap_or(0);
        &mut self.shards[position].1
    }

    /// Forgets the oldest ids of one of the shards, of one rule or of all. The age of the youngest
    /// of them.
    pub(crate) fn evict_ids(&mut self, only: Option<RuleNumber>, now: Micros) -> Option<Micros> {
        self.shards.iter_mut().find_map(|(_, shard)| shard.ids.evict(now, only))
    }

    /// Finds where a charge is counted, and makes room if `op` may create a cell.
    pub(crate) fn locate(
        &mut self,
        part: &CellCharge<'_>,
        op: Op<'_>,
        now: Micros,
    ) -> Result<CellLocation, EngineError> {
        let space = part.space();
        if let Some(cell) = self.own(part.state_key()) {
            let growth = cell.growth(part.caller);
            self.ensure_room(space, growth, now);
            return Ok(CellLocation::Own);
        }
        let may_create = op.takes() || matches!(op, Op::Record | Op::Settle { .. });
        let is_overflowing = self.memory.overflow_cells(space).load(Ordering::Relaxed) > 0;
        let mut found = None;
        if is_overflowing {
            found = self.locate_in_overflow(part, op, may_create, now);
        }
        if found.is_none() && may_create && !self.make_room(part, op, now) {
            self.make_overflow_room(part, now)?;
            found = Some(CellLocation::Shared);
        }
        if may_create && found == Some(CellLocation::Shared) {
            self.memory.budget_of(space, CellLocation::Own).count_overflow(now);
        }
        Ok(found.unwrap_or(CellLocation::Own))
    }

    /// A key that was charged in an overflow bucket must not start unused in a cell. It stays in
    /// the bucket, or its cell starts with a copy of the bucket's consumption, which is no less
    /// than the key's. So a bucket with steady traffic empties once there is room.
    fn locate_in_overflow(
        &mut self,
        part: &CellCharge<'_>,
        op: Op<'_>,
        may_create: bool,
        now: Micros,
    ) -> Option<CellLocation> {
        let (bucket, space) = (self.bucket(part), part.space());
        let cells = self.memory.overflow_cells(space);
        let overflow = self.overflow(space);
        // Swept here, or unused buckets would stay, and all new keys would use them.
        let removed = overflow.sweep(Self::SWEEP_OVERFLOW, |cell| cell.is_recovered(now));
        cells.fetch_sub(removed, Ordering::Relaxed);
        let found = overflow.get(bucket)?;
        if found.is_recovered(now) {
            overflow.remove(bucket);
            cells.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let heap = found.holds().is_empty().then(|| found.heap_bytes().own);
        let may_leave = may_create && heap.is_some_and(|heap| self.has_room(part, op, heap, now));
        let copy = self.overflow(space).get(bucket).filter(|_| may_leave).map(Cell::copy_of_state);
        let Some(copy) = copy else { return Some(CellLocation::Shared) };
        self.add_unpacked(part.state_key(), copy);
        Some(CellLocation::Own)
    }

    /// The cell of a charge, if it exists.
    pub(crate) fn cell(
        &mut self,
        part: &CellCharge<'_>,
        location: CellLocation,
    ) -> Option<&mut Cell> {
        match location {
            CellLocation::Own => self.own(part.state_key()),
            CellLocation::Shared => {
                let bucket = self.bucket(part);
                self.overflow(part.space()).get_mut(bucket)
            }
        }
    }

    /// The cell of a key, if it exists.
    fn own(&mut self, key: StateKey) -> Option<&mut Cell> {
        match self.unpacked.iter().position(|(other, _)| *other == key) {
            Some(index) => Some(&mut self.unpacked[index].1),
            None => {
                let shard = self.shard(key.fingerprint);
                shard.cells(key.space).get_mut(key.fingerprint.into())
            }
        }
    }

    /// The cost that a call has in the cell of `part`: the costs of keys that share an overflow
    /// bucket are summed.
    pub(crate) fn cost_in_cell(
        &self,
        part: &CellCharge<'_>,
        location: CellLocation,
        parts: &[CellCharge<'_>],
        locations: &[CellLocation],
    ) -> Cost {
        if location == CellLocation::Own {
            return part.cost;
        }
        let shared =
            parts.iter().zip(locations).filter(|(_, location)| **location == CellLocation::Shared);
        shared
            .filter(|(other, _)| self.bucket(other) == self.bucket(part))
            .fold(Cost::ZERO, |sum, (other, _)| sum.saturating_add(other.cost))
    }

    /// Changes the cell of a charge, which is created if needed.
    pub(crate) fn write(
        &mut self,
        part: &CellCharge<'_>,
        location: CellLocation,
        change: impl FnOnce(&mut Cell, &Budget),
    ) {
        let space = part.space();
        if self.cell(part, location).is_none() {
            let cell = Cell::new(part.limit);
            match location {
                CellLocation::Own => self.add_unpacked(part.state_key(), cell),
                CellLocation::Shared => {
                    let bucket = self.bucket(part);
                    self.overflow(space).insert(bucket, cell);
                    self.memory.overflow_cells(space).fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let budget = self.memory.budget_of(space, location);
        if let Some(cell) = self.cell(part, location) {
            change(cell, budget);
        }
    }

    /// Removes a cell that has recovered.
    pub(crate) fn drop_if_recovered(
        &mut self,
        part: &CellCharge<'_>,
        location: CellLocation,
        now: Micros,
    ) {
        let recovered = self.cell(part, location).is_some_and(|cell| cell.is_recovered(now));
        if recovered && location == CellLocation::Own {
            self.take_unpacked(part.state_key());
            let cells = self.shard(part.fingerprint).cells(part.space());
            cells.remove(part.fingerprint.into());
        }
    }

    /// Bytes that a hold will allocate in the list of its cell.
    pub(crate) fn hold_growth(&mut self, part: &CellCharge<'_>) -> usize {
        self.own(part.state_key()).map_or(Holds::NONE.growth(), |cell| cell.holds().growth())
    }

    /// Makes room for the cell of a key that has a packed state, which a hold turns into a cell.
    pub(crate) fn ensure_room_for_cell(&mut self, part: &CellCharge<'_>, now: Micros) -> bool {
        let key = part.state_key();
        let is_packed = self.unpacked.iter().any(|(other, _)| *other == key);
        let growth = self.shard(part.fingerprint).cells(key.space).growth(1);
        !is_packed || self.ensure_room(key.space, growth, now)
    }

    /// Whether there is room for `bytes` more of state. If not, recovered cells are removed first.
    fn ensure_room(&mut self, space: Space, bytes: usize, now: Micros) -> bool {
        let memory = self.memory;
        let budget = memory.budget_of(space, CellLocation::Own);
        if budget.has_room_for(bytes) {
            return true;
        }
        for (_, shard) in &mut self.shards {
            shard.sweep(space, &memory.registry, SweepSteps::WHEN_FULL, now);
        }
        memory.reclaim(space, now);
        budget.has_room_for(bytes)
    }

    /// Whether there is room for one more cell. If not, recovered cells are removed first.
    fn make_room(&mut self, part: &CellCharge<'_>, op: Op<'_>, now: Micros) -> bool {
        let heap = part.limit.limit().growth(None, part.caller);
        self.has_room(part, op, heap, now) || {
            self.ensure_room(part.space(), usize::MAX, now);
            self.has_room(part, op, heap, now)
        }
    }

    /// Sweeps a few entries, and reserves room for one more cell with `heap` bytes on the heap.
    /// `false` if there is none.
    fn has_room(&mut self, part: &CellCharge<'_>, op: Op<'_>, heap: usize, now: Micros) -> bool {
        let (space, index) = (part.space(), self.memory.shard_of(part.fingerprint));
        let reserved = || self.reserved.iter().filter(|reserved| reserved.space == space);
        let count = 1 + reserved().filter(|reserved| reserved.shard == index).count();
        let bytes = heap + reserved().map(|reserved| reserved.heap).sum::<usize>();
        let memory = self.memory;
        let is_packed = !part.is_held_by(op) && LimitRegistry::packs(part.limit);
        let is_here =
            |key: &StateKey| key.space == space && memory.shard_of(key.fingerprint) == index;
        let unpacked = self.unpacked.iter().filter(|(key, _)| is_here(key)).count();
        let shard = self.shard(part.fingerprint);
        shard.sweep(space, &memory.registry, SweepSteps::ON_INSERT, now);
        let growth = if is_packed {
            shard.packed(space).growth(count + unpacked)
        } else {
            shard.cells(space).growth(count)
        };
        let has_room = memory.budget_of(space, CellLocation::Own).has_room_for(growth + bytes)
            && memory.has_share(shard, part.limit, now);
        if has_room {
            self.reserved.push(ReservedRoom { space, shard: index, heap });
        }
        has_room
    }

    fn make_overflow_room(
        &mut self,
        part: &CellCharge<'_>,
        now: Micros,
    ) -> Result<(), EngineError> {
        let (memory, space) = (self.memory, part.space());
        let heap = part.limit.limit().growth(None, None);
        self.reserved_buckets += 1;
        let buckets = self.reserved_buckets;
        let overflow = self.overflow(space);
        if !overflow.has_room_for(buckets, heap * buckets) {
            let steps = SweepSteps::WHEN_FULL.cells;
            let removed = overflow.sweep(steps, |cell| cell.is_recovered(now));
            memory.overflow_cells(space).fetch_sub(removed, Ordering::Relaxed);
        }
        if overflow.has_room_for(buckets, heap * buckets) {
            Ok(())
        } else {
            Err(memory.budget_of(space, CellLocation::Shared).refuse(now))
        }
    }

    fn overflow(&mut self, space: Space) -> &mut Table<Cell> {
        let memory = self.memory;
        self.overflow.get_or_insert_with(|| lock(&memory.overflow)).of(space)
    }

    /// The overflow bucket of a charge: one of its limit's, chosen by the key.
    fn bucket(&self, part: &CellCharge<'_>) -> u128 {
        // Other keys must not be counted under the override of one key.
        let bucket_number = match part.limit.is_override() {
            true => part.fingerprint,
            false => part.fingerprint % Self::OVERFLOW_BUCKETS,
        };
        self.memory.fingerprints.of((part.limit.state(), "overflow", bucket_number))
    }
}

impl Drop for LockedShards<'_> {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// The present verdict of a charge at a cost of zero. The cell stays under the limit that wrote it
/// last.
pub(crate) fn peek(
    locked: &mut LockedShards<'_>,
    part: &CellCharge<'_>,
    location: CellLocation,
    now: Micros,
) -> Verdict {
    match locked.cell(part, location) {
        Some(cell) => {
            cell.rebase(now);
            cell.look(cell.limit(), now, Cost::ZERO)
        }
        None => {
            let at = part.limit.moment(now);
            part.limit.limit().look(None, Holds::NONE, &at, Cost::ZERO)
        }
    }
}
