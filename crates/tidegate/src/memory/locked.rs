//! The cells of one call, under lock.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Holds, Micros, Verdict};

use super::budget::Budget;
use super::cell::Cell;
use super::small::Entry;
use super::table::{HeapBytes, Table};
use super::{Full, Memory, Shard, lock};
use crate::fingerprint::fingerprint;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::{Charge, EngineError, Op, RuleLimit};

/// One limit and key of a call, with all that the call charges to it.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) limit: &'a Arc<RuleLimit>,
    pub(crate) fingerprint: u64,
    pub(crate) cost: Cost,
    pub(crate) who: Option<&'a str>,
}

impl Part<'_> {
    /// Does its limit only look on?
    pub(crate) fn looks_on(&self) -> bool {
        self.limit.is_shadow()
    }

    /// Is its cost set aside by `op`, rather than charged?
    pub(crate) fn is_set_aside(&self, op: Op) -> bool {
        op.sets_aside(self.limit.limit())
    }
}

pub(crate) type Parts<'a> = SmallVec<[Part<'a>; 2]>;

/// The charges of a call; those to the same limit and key are added up.
pub(crate) fn parts<'a>(charges: &'a [Charge<'a>]) -> Parts<'a> {
    let mut parts = Parts::new();
    for charge in charges {
        let fingerprint = fingerprint(charge.limit.tag(), charge.key);
        match parts.iter_mut().find(|part| part.fingerprint == fingerprint) {
            Some(part) => part.cost = part.cost.saturating_add(charge.cost),
            None => parts.push(Part {
                limit: charge.limit,
                fingerprint,
                cost: charge.cost,
                who: charge.who,
            }),
        }
    }
    parts
}

/// Where a part finds its cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Its own, if it has one yet.
    Own,
    /// In an overflow bucket.
    Shared,
}

/// The shards of a call, locked in the order of their numbers.
///
/// Small entries become cells for as long as the call is at it, and go back when it is done.
pub(crate) struct Locked<'a> {
    memory: &'a Memory,
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>,
    overflow: Option<MutexGuard<'a, Table<Cell>>>,
    /// The keys of the call.
    keys: SmallVec<[u64; 2]>,
    /// Cells that were small, and new ones.
    loose: SmallVec<[(u64, Cell); 1]>,
    /// The shards in which this call was promised room for a new cell, and the bytes of all of them.
    promised: SmallVec<[usize; 2]>,
    promised_bytes: usize,
}

impl<'a> Locked<'a> {
    /// Overflow buckets that are looked at in passing.
    const SWEEP_OVERFLOW: usize = 2;
    /// Overflow buckets per limit.
    const OVERFLOW_BUCKETS: u64 = 16;
    /// Locks the shards of the parts, and that of one more fingerprint.
    pub(crate) fn new(memory: &'a Memory, parts: &[Part<'_>], beside: Option<u64>) -> Self {
        let keys: SmallVec<[u64; 2]> = parts.iter().map(|part| part.fingerprint).collect();
        let fingerprints = keys.iter().copied().chain(beside);
        let mut indices: SmallVec<[usize; 2]> =
            fingerprints.map(|fingerprint| memory.shard_of(fingerprint)).collect();
        indices.sort_unstable();
        indices.dedup();
        let mut locked = Self {
            memory,
            shards: indices.into_iter().map(|index| (index, memory.shard(index))).collect(),
            overflow: None,
            loose: SmallVec::new(),
            keys,
            promised: SmallVec::new(),
            promised_bytes: 0,
        };
        for place in 0..locked.keys.len() {
            locked.loosen(locked.keys[place]);
        }
        locked
    }

    /// Makes a cell of a small entry.
    fn loosen(&mut self, fingerprint: u64) {
        let Some(entry) = self.shard(fingerprint).small.take(fingerprint) else { return };
        let limit = self.memory.numbers.limit(entry.limit);
        if let Some(cell) = limit.and_then(|limit| Cell::unpacked(&limit, entry.state)) {
            self.add_loose(fingerprint, cell);
        }
    }

    fn add_loose(&mut self, fingerprint: u64, cell: Cell) {
        self.memory.budget.resized(0, cell.heap_bytes());
        self.loose.push((fingerprint, cell));
    }

    fn take_loose(&mut self, fingerprint: u64) -> Option<Cell> {
        let place = self.loose.iter().position(|(key, _)| *key == fingerprint)?;
        let (_, cell) = self.loose.swap_remove(place);
        self.memory.budget.resized(cell.heap_bytes(), 0);
        Some(cell)
    }

    /// Puts the cells where they belong: small ones among the small, if there is room.
    fn put_back(&mut self) {
        let memory = self.memory;
        while let Some((fingerprint, _)) = self.loose.last() {
            let fingerprint = *fingerprint;
            let Some(cell) = self.take_loose(fingerprint) else { break };
            let shard = self.shard(fingerprint);
            match Self::small(memory, &cell) {
                Some(entry) => shard.small.insert(fingerprint, entry),
                None if cell.is_unused() => {}
                None => shard.cells.insert(fingerprint.into(), cell),
            }
        }
        for fingerprint in std::mem::take(&mut self.keys) {
            let shard = self.shard(fingerprint);
            let cell = shard.cells.get(fingerprint.into());
            let Some(entry) = cell.and_then(|cell| Self::small(memory, cell)) else { continue };
            if memory.budget.has_room_for(shard.small.growth(1)) {
                shard.cells.remove(fingerprint.into());
                shard.small.insert(fingerprint, entry);
            }
        }
    }

    /// The cell as a small entry, if it can be one.
    fn small(memory: &Memory, cell: &Cell) -> Option<Entry> {
        let (limit, state) = cell.packed()?;
        Some(Entry { limit: memory.numbers.of(limit)?, state })
    }

    /// Are the overflow buckets locked too?
    pub(crate) fn has_overflow(&self) -> bool {
        self.overflow.is_some()
    }

    /// The shard that holds `fingerprint`.
    pub(crate) fn shard(&mut self, fingerprint: u64) -> &mut Shard {
        let index = self.memory.shard_of(fingerprint);
        let place = self.shards.iter().position(|(i, _)| *i == index).unwrap_or(0);
        &mut self.shards[place].1
    }

    /// Finds where a part belongs, and makes room for it if `op` may write a new cell.
    pub(crate) fn place(
        &mut self,
        part: &Part<'_>,
        op: Op,
        now: Micros,
    ) -> Result<Place, EngineError> {
        if let Some(cell) = self.own(part.fingerprint) {
            let growth = cell.growth(part.who);
            self.ask_for(growth, now);
            return Ok(Place::Own);
        }
        let may_create = op.takes() || matches!(op, Op::Record | Op::Settle { .. });
        if self.memory.is_overflowing()
            && let Some(place) = self.place_in_overflow(part, may_create, now)
        {
            return Ok(place);
        }
        if !may_create || self.make_room(part, now) {
            return Ok(Place::Own);
        }
        self.make_overflow_room(part, now)?;
        Ok(Place::Shared)
    }

    /// Whoever was charged in an overflow bucket must not start unused in a cell of its own. It stays
    /// in the bucket; or it takes the bucket's consumption with it, which is no less than its own,
    /// so that a bucket with steady traffic empties once there is room again.
    fn place_in_overflow(
        &mut self,
        part: &Part<'_>,
        may_create: bool,
        now: Micros,
    ) -> Option<Place> {
        let bucket = self.bucket(part);
        let memory = self.memory;
        // In passing, or buckets to which nobody comes any more would stay, and all new keys come here.
        let gone = self.overflow().sweep(Self::SWEEP_OVERFLOW, |cell| cell.is_recovered(now));
        memory.overflowing.fetch_sub(gone, Ordering::Relaxed);
        let found = self.overflow().get(bucket)?;
        if found.is_recovered(now) {
            self.overflow().remove(bucket);
            memory.overflowing.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let heap = found.holds().is_empty().then(|| found.heap_bytes());
        let may_leave = may_create && heap.is_some_and(|heap| self.has_room(part, heap, now));
        let twin = self.overflow().get(bucket).filter(|_| may_leave).map(Cell::twin);
        let Some(twin) = twin else { return Some(Place::Shared) };
        self.add_loose(part.fingerprint, twin);
        Some(Place::Own)
    }

    /// The cell of a part, if it has one.
    pub(crate) fn cell(&mut self, part: &Part<'_>, place: Place) -> Option<&mut Cell> {
        match place {
            Place::Own => self.own(part.fingerprint),
            Place::Shared => {
                let bucket = self.bucket(part);
                self.overflow().get_mut(bucket)
            }
        }
    }

    /// The cell of a key's own, if it has one.
    fn own(&mut self, fingerprint: u64) -> Option<&mut Cell> {
        match self.loose.iter().position(|(key, _)| *key == fingerprint) {
            Some(place) => Some(&mut self.loose[place].1),
            None => self.shard(fingerprint).cells.get_mut(fingerprint.into()),
        }
    }

    /// What a call wants of the cell of `part`: keys that share an overflow bucket want it together.
    pub(crate) fn wanted(
        &self,
        part: &Part<'_>,
        place: Place,
        parts: &[Part<'_>],
        places: &[Place],
    ) -> Cost {
        if place == Place::Own {
            return part.cost;
        }
        let shared = parts.iter().zip(places).filter(|(_, place)| **place == Place::Shared);
        shared
            .filter(|(other, _)| self.bucket(other) == self.bucket(part))
            .fold(Cost::ZERO, |sum, (other, _)| sum.saturating_add(other.cost))
    }

    /// Changes the cell of a part, which is made if it has none.
    pub(crate) fn write(
        &mut self,
        part: &Part<'_>,
        place: Place,
        change: impl FnOnce(&mut Cell, &Budget),
    ) {
        if self.cell(part, place).is_none() {
            let cell = Cell::new(part.limit);
            match place {
                Place::Own => self.add_loose(part.fingerprint, cell),
                Place::Shared => {
                    let bucket = self.bucket(part);
                    self.overflow().insert(bucket, cell);
                    self.memory.overflowing.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let budget = self.memory.budget_of(place);
        if let Some(cell) = self.cell(part, place) {
            change(cell, budget);
        }
    }

    /// Drops a cell that says nothing any more.
    pub(crate) fn drop_if_recovered(&mut self, part: &Part<'_>, place: Place, now: Micros) {
        let recovered = self.cell(part, place).is_some_and(|cell| cell.is_recovered(now));
        if recovered && place == Place::Own {
            self.take_loose(part.fingerprint);
            self.shard(part.fingerprint).cells.remove(part.fingerprint.into());
        }
    }

    /// Bytes that a hold on this part will allocate beside its cell.
    pub(crate) fn hold_growth(&mut self, part: &Part<'_>) -> usize {
        let cells = &self.shard(part.fingerprint).cells;
        match cells.get(part.fingerprint.into()) {
            Some(cell) => cell.holds().growth(),
            None => cells.growth(1) + Holds::NONE.growth(),
        }
    }

    /// Has the budget room for `bytes` more? If not, looks for cells that can go.
    pub(crate) fn ask_for(&mut self, bytes: usize, now: Micros) -> bool {
        let memory = self.memory;
        if bytes == 0 || memory.budget.has_room_for(bytes) {
            return true;
        }
        for (_, shard) in &mut self.shards {
            shard.sweep(memory, Memory::SWEEP_WHEN_FULL, now);
        }
        memory.reclaim(now);
        memory.budget.has_room_for(bytes)
    }

    /// Sweeps in passing; is there room for one more cell? If not, looks for cells that can go.
    fn make_room(&mut self, part: &Part<'_>, now: Micros) -> bool {
        let heap = part.limit.own_bytes() + part.limit.limit().growth(None, part.who);
        self.has_room(part, heap, now) || {
            self.ask_for(usize::MAX, now);
            self.has_room(part, heap, now)
        }
    }

    /// Sweeps in passing; is there room for one more cell, with `heap` bytes of its own? Then it is
    /// promised.
    fn has_room(&mut self, part: &Part<'_>, heap: usize, now: Micros) -> bool {
        let index = self.memory.shard_of(part.fingerprint);
        let count = 1 + self.promised.iter().filter(|promised| **promised == index).count();
        let bytes = self.promised_bytes + heap;
        let memory = self.memory;
        let is_small = memory.numbers.of(part.limit).is_some();
        let loose = self.loose.iter().filter(|(key, _)| memory.shard_of(*key) == index).count();
        let shard = self.shard(part.fingerprint);
        shard.sweep(memory, Memory::SWEEP_IN_PASSING, now);
        let growth =
            if is_small { shard.small.growth(count + loose) } else { shard.cells.growth(count) };
        let has_room = memory.budget.has_room_for(growth + bytes);
        if has_room {
            self.promised.push(index);
            self.promised_bytes = bytes;
        }
        has_room
    }

    fn make_overflow_room(&mut self, part: &Part<'_>, now: Micros) -> Result<(), EngineError> {
        let memory = self.memory;
        let heap = part.limit.own_bytes() + part.limit.limit().growth(None, None);
        let overflow = self.overflow();
        if !overflow.has_room_for(1, heap) {
            let forgotten = overflow.sweep(Memory::SWEEP_WHEN_FULL, |cell| cell.is_recovered(now));
            memory.overflowing.fetch_sub(forgotten, Ordering::Relaxed);
        }
        if overflow.has_room_for(1, heap) { Ok(()) } else { Err(EngineError::unavailable(Full)) }
    }

    fn overflow(&mut self) -> &mut MutexGuard<'a, Table<Cell>> {
        let memory = self.memory;
        self.overflow.get_or_insert_with(|| lock(&memory.overflow))
    }

    /// The overflow bucket of a part: one of its limit's own, chosen by the key.
    fn bucket(&self, part: &Part<'_>) -> u128 {
        // One key's own limit is not for others to be counted under.
        let nth = match part.limit.is_override() {
            true => part.fingerprint,
            false => part.fingerprint % Self::OVERFLOW_BUCKETS,
        };
        self.memory.fingerprints.of((part.limit.state(), "overflow", nth))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// What a part has now, as a peek sees it. The cell stays under the limit that wrote it last.
pub(crate) fn peek(locked: &mut Locked<'_>, part: &Part<'_>, place: Place, now: Micros) -> Verdict {
    match locked.cell(part, place) {
        Some(cell) => cell.look(now, Cost::ZERO),
        None => {
            let at = part.limit.moment(now);
            part.limit.limit().look(None, Holds::NONE, &at, Cost::ZERO)
        }
    }
}
