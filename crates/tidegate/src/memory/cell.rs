//! The general form of the state of one limit and key, with its holds.

use std::sync::Arc;

use tidegate_core::{Cost, Hold, Holds, Micros, Packed, State, Verdict};

use super::budget::{Budget, HeapSize};
use super::table::HeapBytes;
use crate::{Inspection, RuleLimit, Source};

/// A state, its holds, and the limit that wrote them last.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    limit: Arc<RuleLimit>,
    state: Option<State>,
    holds: Holds,
}

/// Whose limit a state is under. Each has tables and budgets of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    Rules,
    /// Limits that come with calls.
    Adhoc,
}

impl Space {
    pub(crate) fn of(limit: &RuleLimit) -> Self {
        if limit.is_per_call() { Self::Adhoc } else { Self::Rules }
    }
}

/// Where a charge is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CellLocation {
    /// In the key's cell, which may not exist yet.
    Own,
    /// In an overflow bucket that keys share.
    Shared,
}

impl Cell {
    pub(crate) fn new(limit: &Arc<RuleLimit>) -> Self {
        Self { limit: limit.clone(), state: None, holds: Holds::default() }
    }

    /// The cell of a state packed under `limit`.
    pub(crate) fn unpacked(limit: &Arc<RuleLimit>, state: Packed) -> Option<Self> {
        let state = limit.limit().unpack(state)?;
        Some(Self { state: Some(state), ..Self::new(limit) })
    }

    /// The limit and the packed state, if the cell has no holds and its state can be packed.
    pub(crate) fn packed(&self) -> Option<(&Arc<RuleLimit>, Packed)> {
        let state = self.state.as_ref().filter(|_| self.holds.is_empty())?;
        Some((&self.limit, self.limit.limit().pack(state)?))
    }

    /// Whether nothing is charged or held.
    pub(crate) fn is_unused(&self) -> bool {
        self.state.is_none() && self.holds.is_empty()
    }

    pub(crate) fn limit(&self) -> &Arc<RuleLimit> {
        &self.limit
    }

    /// Replaces the limit by an equal instance.
    pub(crate) fn set_limit(&mut self, same: Arc<RuleLimit>) {
        self.limit = same;
    }

    pub(crate) fn holds(&self) -> &Holds {
        &self.holds
    }

    /// Brings the cell to `limit` and `now`: consumption is carried over to a changed limit, and
    /// after a step back of the clock it is rebased. Both must be stored even if nothing is
    /// charged. A limit older than the cell's is of a call that was in flight during the change,
    /// and is ignored.
    pub(crate) fn bring_to(&mut self, limit: &Arc<RuleLimit>, now: Micros, budget: &Budget) {
        if !Arc::ptr_eq(&self.limit, limit) && limit.is_newer_than(&self.limit) {
            self.resize(budget, |cell| cell.change(limit, now));
        }
        self.rebase(now);
    }

    /// Moves what was written after `now` to `now`. Every call stores it, even if it only reads.
    pub(crate) fn rebase(&mut self, now: Micros) {
        let at = self.limit.moment(now);
        self.limit.limit().rebase(&mut self.state, &mut self.holds, &at);
    }

    /// Prepares the cell for a call under `limit` that may be denied.
    ///
    /// A limit of a rule is activated by the first call that has it. One that comes with calls is
    /// activated by a call that it allows: if callers alternate between a large and a small limit,
    /// the small one must not discard consumption under the large one. Until then the cell recovers
    /// under the limit that charged last.
    pub(crate) fn prepare(&mut self, limit: &Arc<RuleLimit>, now: Micros, budget: &Budget) {
        if self.is_under_other(limit) {
            self.rebase(now);
        } else {
            self.bring_to(limit, now, budget);
        }
    }

    /// Prepares the cell for a write of a call under `limit`. A limit that comes with calls is
    /// activated by a call that takes permits, which fit, so that nothing is cut off; and by a
    /// reset.
    pub(crate) fn prepare_write(
        &mut self,
        limit: &Arc<RuleLimit>,
        now: Micros,
        activates: bool,
        budget: &Budget,
    ) {
        if self.is_under_other(limit) && (activates || self.is_recovered(now)) {
            self.bring_to(limit, now, budget);
        } else {
            self.prepare(limit, now, budget);
        }
    }

    /// Whether calls with other limits share the cell, and one of those has charged last.
    fn is_under_other(&self, limit: &RuleLimit) -> bool {
        limit.is_per_call() && self.limit.limit() != limit.limit()
    }

    fn change(&mut self, limit: &Arc<RuleLimit>, now: Micros) {
        let (old, new) = (self.limit.limit(), limit.limit());
        if old != new {
            let (old_at, at) = (self.limit.moment(now), limit.moment(now));
            old.expire(&mut self.state, &mut self.holds, &old_at);
            self.state = self.state.take().and_then(|state| new.carry(old, &old_at, state, &at));
        }
        self.limit = limit.clone();
    }

    /// The capacity that counts for a call under `limit`.
    fn capacity_under(&self, limit: &RuleLimit) -> u64 {
        let other = self.is_under_other(limit).then_some(limit.limit());
        other.unwrap_or(self.limit.limit()).capacity()
    }

    /// The verdict under the cell's limit, or under one that comes with calls.
    pub(crate) fn look(&self, limit: &Arc<RuleLimit>, now: Micros, cost: Cost) -> Verdict {
        let at = self.limit.moment(now);
        let capacity = self.capacity_under(limit);
        let (state, holds) = (self.state.as_ref(), &self.holds);
        let verdict = self.limit.limit().look_within(capacity, state, holds, &at, cost);
        if !self.is_under_other(limit) || !verdict.allowed || cost.is_zero() {
            return verdict;
        }
        // The delay is that of the limit which the call activates.
        let mut delay = Micros::ZERO;
        if limit.limit().is_queue() {
            let mut copy = self.clone();
            copy.change(limit, now);
            delay = copy.turn_after(now);
        }
        Verdict { delay, ..verdict }
    }

    pub(crate) fn inspect(&self, under: &Arc<RuleLimit>, now: Micros, shared: bool) -> Inspection {
        let (limit, at) = (self.limit.limit(), self.limit.moment(now));
        let (state, capacity) = (self.state.as_ref(), self.capacity_under(under));
        let (standing, recovery) = limit.standing_within(capacity, state, &self.holds, &at);
        let entries = limit.entries(state, &at);
        Inspection {
            source: Source::Memory,
            standing,
            limit: capacity,
            recovery,
            entries: entries.map(|(caller, permits)| (caller.map(Into::into), permits)).collect(),
            shared,
        }
    }

    /// Whether consumption and holds have fully recovered: the cell equals an unused one.
    pub(crate) fn is_recovered(&self, now: Micros) -> bool {
        let at = self.limit.moment(now);
        let standing = self.limit.limit().standing(self.state.as_ref(), &self.holds, &at);
        standing.reset_after == Micros::ZERO
    }

    /// Permits charged and not recovered yet.
    pub(crate) fn used(&self, now: Micros) -> u64 {
        let at = self.limit.moment(now);
        self.limit.limit().standing(self.state.as_ref(), &self.holds, &at).used
    }

    /// Bytes that the next charge will allocate.
    pub(crate) fn growth(&self, caller: Option<&str>) -> usize {
        self.limit.limit().growth(self.state.as_ref(), caller)
    }

    pub(crate) fn charge(
        &mut self,
        now: Micros,
        cost: Cost,
        mut caller: Option<&str>,
        budget: &Budget,
    ) {
        self.write(now, budget, |cell| {
            let (limit, at) = (cell.limit.limit(), cell.limit.moment(now));
            // A cell that may not grow gets coarser: without the caller, then with fewer entries.
            // It recovers later because of that, never earlier.
            let before = cell.heap_bytes().own;
            loop {
                let growth = limit.growth(cell.state.as_ref(), caller);
                let freed = before.saturating_sub(cell.heap_bytes().own);
                if growth == 0 || budget.has_room_for(growth.saturating_sub(freed)) {
                    break;
                }
                if caller.take().is_none() && !limit.compact(&mut cell.state, &at) {
                    break;
                }
            }
            limit.charge(&mut cell.state, &at, cost, caller);
        });
    }

    pub(crate) fn refund(&mut self, now: Micros, cost: Cost, budget: &Budget) -> Cost {
        self.write(now, budget, |cell| {
            let at = cell.limit.moment(now);
            cell.limit.limit().refund(&mut cell.state, &at, cost)
        })
    }

    pub(crate) fn hold(&mut self, now: Micros, hold: Hold, budget: &Budget) {
        self.write(now, budget, |cell| cell.holds.insert(hold));
    }

    /// Removes the hold `id`, unless it has expired.
    pub(crate) fn release(&mut self, now: Micros, id: u128, budget: &Budget) -> Option<Hold> {
        self.write(now, budget, |cell| cell.holds.remove(id))
    }

    /// Clears consumption and the holds that would be released. Holds that are charged when they
    /// expire stay.
    pub(crate) fn clear(&mut self, now: Micros, budget: &Budget) {
        self.write(now, budget, |cell| {
            cell.state = None;
            cell.holds.release();
        });
    }

    pub(crate) fn turn_after(&self, now: Micros) -> Micros {
        let at = self.limit.moment(now);
        self.limit.limit().turn_after(self.state.as_ref(), &self.holds, &at)
    }

    /// Whether the hold `id` is active.
    pub(crate) fn has_active_hold(&self, id: u128, now: Micros) -> bool {
        self.holds.get(id).is_some_and(|hold| hold.deadline > now)
    }

    /// A copy of the consumption without holds, for a key that has used no more than that.
    pub(crate) fn copy_of_state(&self) -> Self {
        let (limit, state) = (self.limit.clone(), self.state.clone());
        Self { limit, state, holds: Holds::default() }
    }

    /// Applies `change` after expired holds are removed or charged.
    fn write<T>(&mut self, now: Micros, budget: &Budget, change: impl FnOnce(&mut Self) -> T) -> T {
        self.resize(budget, |cell| {
            let at = cell.limit.moment(now);
            cell.limit.limit().expire(&mut cell.state, &mut cell.holds, &at);
            change(cell)
        })
    }

    fn resize<T>(&mut self, budget: &Budget, change: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.heap_bytes();
        let result = change(self);
        budget.heap_resized(before, self.heap_bytes());
        result
    }
}

impl HeapBytes for Cell {
    fn heap_bytes(&self) -> HeapSize {
        let own = self.state.as_ref().map_or(0, State::heap_bytes);
        HeapSize { own, holds: self.holds.heap_bytes() }
    }
}
