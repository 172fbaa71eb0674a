//! The cells of one call, under lock.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use smallvec::SmallVec;
use tidegate_core::{Cost, Holds, Micros, Verdict};

use super::budget::Budget;
use super::cell::Cell;
use super::table::{HeapBytes, Table};
use super::{Full, Memory, Shard, lock};
use crate::{Charge, EngineError, Op, RuleLimit};

/// One limit and key of a call, with all that the call charges to it.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) limit: &'a Arc<RuleLimit>,
    pub(crate) fingerprint: u128,
    pub(crate) cost: Cost,
    pub(crate) who: Option<&'a str>,
}

impl Part<'_> {
    /// Does its limit only look on?
    pub(crate) fn looks_on(&self) -> bool {
        self.limit.is_shadow()
    }
}

pub(crate) type Parts<'a> = SmallVec<[Part<'a>; 2]>;

/// The charges of a call; those to the same limit and key are added up.
pub(crate) fn parts<'a>(memory: &Memory, charges: &'a [Charge<'a>]) -> Parts<'a> {
    let mut parts = Parts::new();
    for charge in charges {
        let fingerprint = memory.fingerprint(charge.limit, charge.key);
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
    /// In its shard, if it has one yet.
    Own,
    /// In an overflow bucket.
    Shared,
}

/// The shards of a call, locked in the order of their numbers.
pub(crate) struct Locked<'a> {
    memory: &'a Memory,
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>,
    overflow: Option<MutexGuard<'a, Table<Cell>>>,
    /// The shards in which this call was promised room for a cell, and the bytes of all of them.
    promised: SmallVec<[usize; 2]>,
    promised_bytes: usize,
}

impl<'a> Locked<'a> {
    /// Overflow buckets per limit.
    const OVERFLOW_BUCKETS: u128 = 16;
    /// Cells looked at, in passing, when a new one comes: more than one, so that sweeping outruns
    /// inserting.
    const SWEEP_IN_PASSING: usize = 2;

    /// Locks the shards of the parts, and that of one more fingerprint.
    pub(crate) fn new(memory: &'a Memory, parts: &[Part<'_>], beside: Option<u128>) -> Self {
        let fingerprints = parts.iter().map(|part| part.fingerprint).chain(beside);
        let mut indices: SmallVec<[usize; 2]> =
            fingerprints.map(|fingerprint| memory.shard_of(fingerprint)).collect();
        indices.sort_unstable();
        indices.dedup();
        let shards = indices.into_iter().map(|index| (index, memory.shard(index))).collect();
        Self { memory, shards, overflow: None, promised: SmallVec::new(), promised_bytes: 0 }
    }

    /// Are the overflow buckets locked too?
    pub(crate) fn has_overflow(&self) -> bool {
        self.overflow.is_some()
    }

    /// The shard that holds `fingerprint`.
    pub(crate) fn shard(&mut self, fingerprint: u128) -> &mut Shard {
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
        if let Some(cell) = self.shard(part.fingerprint).cells.get(part.fingerprint) {
            let growth = cell.growth(part.who);
            self.ask_for(growth, now);
            return Ok(Place::Own);
        }
        let may_create = matches!(op, Op::Check | Op::Record | Op::Hold { .. } | Op::Settle { .. });
        if self.memory.overflowing.load(Ordering::Relaxed) > 0
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
        self.shard(part.fingerprint).cells.insert(part.fingerprint, twin);
        self.promised.pop();
        Some(Place::Own)
    }

    /// The cell of a part, if it has one.
    pub(crate) fn cell(&mut self, part: &Part<'_>, place: Place) -> Option<&mut Cell> {
        match place {
            Place::Own => self.shard(part.fingerprint).cells.get_mut(part.fingerprint),
            Place::Shared => {
                let bucket = self.bucket(part);
                self.overflow().get_mut(bucket)
            }
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
                Place::Own => self.shard(part.fingerprint).cells.insert(part.fingerprint, cell),
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
            self.shard(part.fingerprint).cells.remove(part.fingerprint);
        }
    }

    /// Bytes that a hold on this part will allocate beside its cell.
    pub(crate) fn hold_growth(&mut self, part: &Part<'_>) -> usize {
        let cell = self.shard(part.fingerprint).cells.get(part.fingerprint);
        cell.map_or(Holds::NONE, Cell::holds).growth()
    }

    /// Has the budget room for `bytes` more? If not, looks for cells that can go.
    pub(crate) fn ask_for(&mut self, bytes: usize, now: Micros) -> bool {
        let memory = self.memory;
        if bytes == 0 || memory.budget.has_room_for(bytes) {
            return true;
        }
        for (_, shard) in &mut self.shards {
            shard.cells.sweep(Memory::SWEEP_WHEN_FULL, |cell| cell.is_recovered(now));
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
        let cells = &mut self.shard(part.fingerprint).cells;
        cells.sweep(Self::SWEEP_IN_PASSING, |cell| cell.is_recovered(now));
        let has_room = cells.has_room_for(count, bytes);
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
