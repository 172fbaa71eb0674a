//! What the memory engine keeps for one limit and one key.

use std::borrow::Cow;
use std::sync::Arc;

use tidegate_core::{Cost, Hold, Holds, Micros, Packed, State, Verdict};

use super::budget::Budget;
use super::table::HeapBytes;
use crate::{Inspection, RuleLimit, Source};

/// A state, its holds, and the limit that wrote them.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    limit: Arc<RuleLimit>,
    state: Option<State>,
    holds: Holds,
}

impl Cell {
    pub(crate) fn new(limit: &Arc<RuleLimit>) -> Self {
        Self { limit: limit.clone(), state: None, holds: Holds::default() }
    }

    /// The cell of a state that was packed by `limit`.
    pub(crate) fn unpacked(limit: &Arc<RuleLimit>, state: Packed) -> Option<Self> {
        let state = limit.limit().unpack(state)?;
        Some(Self { state: Some(state), ..Self::new(limit) })
    }

    /// The limit and two numbers, if there is no more to it.
    pub(crate) fn packed(&self) -> Option<(&Arc<RuleLimit>, Packed)> {
        let state = self.state.as_ref().filter(|_| self.holds.is_empty())?;
        Some((&self.limit, self.limit.limit().pack(state)?))
    }

    /// Nothing was ever charged or held, or all of it was given back.
    pub(crate) fn is_unused(&self) -> bool {
        self.state.is_none() && self.holds.is_empty()
    }

    pub(crate) fn limit(&self) -> &Arc<RuleLimit> {
        &self.limit
    }

    pub(crate) fn holds(&self) -> &Holds {
        &self.holds
    }

    /// Makes the cell fit for `limit` and `now`: a changed limit carries the consumption over, a
    /// clock that stepped back brings it back. Both have to be kept even if nothing is charged.
    /// A limit older than the cell's own is a call's that was on its way when it changed.
    pub(crate) fn bring_to(&mut self, limit: &Arc<RuleLimit>, now: Micros, budget: &Budget) {
        if !Arc::ptr_eq(&self.limit, limit) && limit.is_newer_than(&self.limit) {
            self.resize(budget, |cell| cell.change(limit, now));
        }
        let at = self.limit.moment(now);
        self.limit.limit().rebase(&mut self.state, &mut self.holds, &at);
    }

    /// The cell as a call under `limit` sees it before it writes.
    ///
    /// A rule's limit is put into force by whoever comes first. One that a call has brought along is
    /// put into force only by being charged: callers with a large and a small one by turns would
    /// otherwise have the small one forget what the large one has used.
    pub(crate) fn seen_by(
        &mut self,
        limit: &Arc<RuleLimit>,
        now: Micros,
        budget: &Budget,
    ) -> Cow<'_, Self> {
        let stays = limit.comes_with_call() && self.limit.limit() != limit.limit();
        let own = self.limit.clone();
        self.bring_to(if stays { &own } else { limit }, now, budget);
        if !stays {
            return Cow::Borrowed(self);
        }
        let mut copy = self.clone();
        copy.change(limit, now);
        Cow::Owned(copy)
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

    pub(crate) fn look(&self, now: Micros, cost: Cost) -> Verdict {
        let at = self.limit.moment(now);
        self.limit.limit().look(self.state.as_ref(), &self.holds, &at, cost)
    }

    pub(crate) fn inspect(&self, now: Micros, shared: bool) -> Inspection {
        let (limit, at) = (self.limit.limit(), self.limit.moment(now));
        let entries = limit.entries(self.state.as_ref(), &at);
        Inspection {
            source: Source::Memory,
            standing: limit.standing(self.state.as_ref(), &self.holds, &at),
            limit: limit.capacity(),
            entries: entries.map(|(who, permits)| (who.map(Into::into), permits)).collect(),
            shared,
        }
    }

    /// Consumption and holds have gone: the cell says nothing that no cell would not say.
    pub(crate) fn is_recovered(&self, now: Micros) -> bool {
        let at = self.limit.moment(now);
        let standing = self.limit.limit().standing(self.state.as_ref(), &self.holds, &at);
        standing.reset_after == Micros::ZERO
    }

    /// Bytes that the next charge will allocate.
    pub(crate) fn growth(&self, who: Option<&str>) -> usize {
        self.limit.limit().growth(self.state.as_ref(), who)
    }

    pub(crate) fn charge(
        &mut self,
        now: Micros,
        cost: Cost,
        mut who: Option<&str>,
        budget: &Budget,
    ) {
        self.write(now, budget, |cell| {
            let (limit, at) = (cell.limit.limit(), cell.limit.moment(now));
            // What may not grow gets coarser instead: without the name, then with fewer entries,
            // later to recover and never too early.
            let before = cell.heap_bytes();
            loop {
                let growth = limit.growth(cell.state.as_ref(), who);
                let freed = before.saturating_sub(cell.heap_bytes());
                if growth == 0 || budget.has_room_for(growth.saturating_sub(freed)) {
                    break;
                }
                if who.take().is_none() && !limit.compact(&mut cell.state, &at) {
                    break;
                }
            }
            limit.charge(&mut cell.state, &at, cost, who);
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

    /// Ends the hold of `id`, unless it has ended by itself.
    pub(crate) fn release(&mut self, now: Micros, id: u128, budget: &Budget) -> Option<Hold> {
        self.write(now, budget, |cell| cell.holds.remove(id))
    }

    /// Forgets what is used and what would be released. What is charged at its end stays held.
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

    /// Does the hold of `id` still last?
    pub(crate) fn holds_still(&self, id: u128, now: Micros) -> bool {
        self.holds.iter().any(|hold| hold.id == id && hold.deadline > now)
    }

    /// The same consumption for another key, which has used no more than that.
    pub(crate) fn twin(&self) -> Self {
        let (limit, state) = (self.limit.clone(), self.state.clone());
        Self { limit, state, holds: Holds::default() }
    }

    /// Whatever has ended by now is gone or charged before `change` is made.
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
        budget.resized(before, self.heap_bytes());
        result
    }
}

impl HeapBytes for Cell {
    fn heap_bytes(&self) -> usize {
        let state = self.state.as_ref().map_or(0, State::heap_bytes);
        state + self.holds.heap_bytes() + self.limit.own_bytes()
    }
}
