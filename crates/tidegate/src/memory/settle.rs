//! Calls about a hold: settle and renew.

use smallvec::SmallVec;
use tidegate_core::{Cost, Expiry, Hold, Micros, Verdict};

use super::cell::CellLocation;
use super::locked_shards::{CellCharge, CellCharges, LockedShards, peek};
use super::records::{HeldCell, SettledHold, StoredHold};
use super::rule_records::RuleNumber;
use super::state::Memory;
use super::table::Table;
use crate::engine::{Refusal, check_ttl};
use crate::sync::{MutexGuard, lock, try_lock};
use crate::{Costs, Decision, EngineError, HoldId, HoldSpec, Op, Source};

/// The locked shard of holds that a call is about.
pub(super) struct LockedHolds<'a> {
    table: MutexGuard<'a, Table<StoredHold>>,
    /// The rule of the hold that the call makes.
    pub(super) rule: RuleNumber,
}

impl LockedHolds<'_> {
    /// Records visited when a hold is made.
    const SWEEP_ON_INSERT: usize = 4;

    /// Makes room for the hold that `op` makes, in this shard and in those of the cells. Without
    /// room, records of settled holds are removed, then those of expired ones: of any rule if the
    /// kind has no room, of this rule if that has its share.
    pub(super) fn make_room(
        &mut self,
        memory: &Memory,
        op: Op<'_>,
        parts: &CellCharges<'_>,
        locked: &mut LockedShards<'_>,
        now: Micros,
    ) -> Result<(), EngineError> {
        let held = || parts.iter().filter(|part| part.is_held_by(op));
        if let Some(part) = held().find(|part| !locked.ensure_room_for_cell(part, now)) {
            return Err(memory.budget_of(part.space(), CellLocation::Own).refuse(now));
        }
        self.table.sweep(Self::SWEEP_ON_INSERT, |hold| hold.is_forgotten(now));
        let recorded = parts.iter().map(|part| &**part.limit).filter(|limit| op.records(limit));
        let record = StoredHold::heap_bytes_of(recorded);
        let heap = record + held().map(|part| locked.hold_growth(part)).sum::<usize>();
        let (budget, rule) = (&memory.budgets.holds, self.rule);
        let has_bytes = budget.has_room_for(self.table.growth(1) + heap);
        if has_bytes && budget.has_share(rule) {
            return Ok(());
        }
        let only = has_bytes.then_some(rule);
        let (used, records) = (budget.used(), budget.records(rule));
        let has_room = |this: &Self| {
            let has_bytes = budget.has_room_since(used, this.table.growth(1) + heap);
            has_bytes && budget.has_share_since(records, rule)
        };
        remove_settled(&mut self.table, only, now);
        if !has_room(self) {
            memory.reclaim_holds(|holds| remove_settled(holds, only, now));
        }
        if has_room(self) {
            return Ok(());
        }
        // Only expired ones are left to remove: a late commit of one of them is refused.
        remove_expired(&mut self.table, only, now);
        if !has_room(self) {
            memory.reclaim_holds(|holds| remove_expired(holds, only, now));
        }
        if !has_room(self) {
            return Err(budget.refuse(now));
        }
        budget.count_overflow(now);
        Ok(())
    }

    pub(super) fn insert(&mut self, id: HoldId, hold: StoredHold) {
        self.table.insert(id.get(), hold);
    }
}

/// Removes the records of holds that were settled or are forgotten, of one rule or of all.
fn remove_settled(holds: &mut Table<StoredHold>, only: Option<RuleNumber>, now: Micros) {
    holds.sweep(usize::MAX, |hold| hold.is_of(only) && hold.is_removable(now));
}

/// Removes the records of a few holds that have expired and were not settled, the oldest first, of
/// one rule or of all.
fn remove_expired(holds: &mut Table<StoredHold>, only: Option<RuleNumber>, now: Micros) {
    /// The smallest number removed at once: finding them visits all.
    const MIN_REMOVED: usize = 16;
    let own = holds.entries().filter(|(_, hold)| hold.is_of(only));
    let expired = own.filter_map(|(id, hold)| Some((hold.expired_at(now)?, id)));
    let mut expired: Vec<(Micros, u128)> = expired.collect();
    let removed = (expired.len() / 16).max(MIN_REMOVED).min(expired.len());
    if removed < expired.len() {
        expired.select_nth_unstable(removed);
    }
    for (_, id) in &expired[..removed] {
        holds.remove(*id);
    }
}

impl Memory {
    /// Makes room in a few shards of holds that are not locked.
    fn reclaim_holds(&self, make_room: impl Fn(&mut Table<StoredHold>)) {
        for index in self.next_shards() {
            if let Some(mut holds) = try_lock(&self.holds[index]) {
                make_room(&mut holds);
            }
        }
    }

    /// Locks the shard of the hold that `op` makes on any of the charges; `None` if it makes none.
    pub(super) fn lock_hold_of(
        &self,
        op: Op<'_>,
        parts: &CellCharges<'_>,
    ) -> Result<Option<LockedHolds<'_>>, EngineError> {
        let held = || parts.iter().filter(|part| part.is_held_by(op)).map(|part| part.limit);
        let Op::Hold(HoldSpec { id, ttl, .. }) = op else { return Ok(None) };
        if held().next().is_none() {
            return Ok(None);
        }
        check_ttl(ttl, held())?;
        let mut table = self.lock_holds(id);
        let now = self.now();
        match table.get_mut(id.get()).map(|hold| hold.is_forgotten(now)) {
            None => {}
            // The id of a named hold comes again.
            Some(true) => drop(table.remove(id.get())),
            Some(false) => return Err(Refusal::IdReused.into()),
        }
        let rule = held().next().map_or("", |limit| limit.rule());
        Ok(Some(LockedHolds { table, rule: RuleNumber::of(rule) }))
    }

    pub(super) fn settle(&self, id: HoldId, costs: Costs<'_>) -> Result<Decision, EngineError> {
        self.with_hold(id, |hold, parts, locked, now| {
            let named = hold.named_costs(Op::Settle { id, costs })?;
            let actual: SmallVec<[Cost; 2]> = named
                .iter()
                .zip(&hold.cells)
                .map(|(cost, cell)| cost.unwrap_or(cell.cost))
                .collect();
            if let Some(settled) = &hold.settled {
                let same = hold.cells.iter().map(|cell| cell.actual).eq(actual);
                return same.then(|| settled.decision()).ok_or(Refusal::AlreadySettled.into());
            }
            let charges = hold.cells.iter().zip(&actual);
            let charges = charges.map(|(cell, cost)| cell.expiry.is_some() && !cost.is_zero());
            let ops = charges.map(|charges| match charges {
                true => Op::Settle { id, costs },
                false => Op::Peek,
            });
            let locations = locate_all(locked, parts, ops, now)?;
            let now = self.now();
            let mut decision = Decision::new(Source::Memory, SmallVec::new());
            for (i, (part, location)) in parts.iter().zip(locations).enumerate() {
                let cell = &mut hold.cells[i];
                cell.actual = actual[i];
                let turn = self.settle_cell(id, cell, part, location, locked, now);
                if turn.is_err() && !part.is_shadow() {
                    decision.details_mut().expired = true;
                }
                let (Ok(delay) | Err(delay)) = turn;
                let after = Verdict { delay, ..peek(locked, part, location, now) };
                decision.push(part.limit, after);
                locked.drop_if_recovered(part, location, now);
            }
            hold.settled = Some(SettledHold::new(&decision));
            hold.forget_at = now.saturating_add(HoldId::RETENTION);
            Ok(decision)
        })
    }

    /// Ends the hold on one cell and charges its actual cost. The delay of the charge; as an error
    /// if the hold had expired.
    fn settle_cell(
        &self,
        id: HoldId,
        cell: &mut HeldCell,
        part: &CellCharge<'_>,
        location: CellLocation,
        locked: &mut LockedShards<'_>,
        now: Micros,
    ) -> Result<Micros, Micros> {
        let Some(expiry) = cell.expiry else {
            cell.charged = cell.cost;
            return Ok(Micros::ZERO);
        };
        let budget = self.budget_of(part.space(), location);
        let state = locked.cell(part, location);
        let held = state.and_then(|state| state.release(now, id.get(), budget));
        let charged_at_end = match (held, expiry) {
            (None, Expiry::Charge) => cell.cost,
            _ => Cost::ZERO,
        };
        // A single cost is at most `Cost::MAX`; what was held may be the sum of several.
        let due = cell.actual.min(cell.cost.max(Cost::MAX)).saturating_sub(charged_at_end);
        let (mut turn, mut charged) = (Micros::ZERO, Cost::ZERO);
        if !due.is_zero() {
            locked.write(part, location, |state, budget| {
                turn = state.turn_after(now);
                let before = state.used(now);
                state.charge(now, due, None, budget);
                charged = Cost::total(state.used(now).saturating_sub(before)).min(due);
            });
        }
        if part.limit.limit().lease().is_none() {
            cell.charged = charged_at_end.saturating_add(charged);
        }
        held.map(|_| turn).ok_or(turn)
    }

    pub(super) fn renew(&self, id: HoldId, ttl: Micros) -> Result<Decision, EngineError> {
        self.with_hold(id, |hold, parts, locked, now| {
            check_ttl(ttl, hold.cells.iter().map(|part| &part.limit))?;
            if hold.settled.is_some() {
                return Err(Refusal::AlreadySettled.into());
            }
            let locations = locate_all(locked, parts, parts.iter().map(|_| Op::Peek), now)?;
            let now = self.now();
            let mut decision = Decision::new(Source::Memory, SmallVec::new());
            let deadline = now.saturating_add(ttl);
            for ((part, location), held) in parts.iter().zip(locations).zip(&hold.cells) {
                let budget = self.budget_of(part.space(), location);
                let cell = locked.cell(part, location).filter(|_| held.expiry.is_some());
                let renewed = cell.is_some_and(|cell| {
                    let held = cell.release(now, id.get(), budget);
                    let renewed = held.map(|held| Hold { deadline, ttl, ..held });
                    renewed.map(|hold| cell.hold(now, hold, budget)).is_some()
                });
                if !renewed && held.expiry.is_some() && !part.is_shadow() {
                    decision.details_mut().expired = true;
                }
                decision.push(part.limit, peek(locked, part, location, now));
            }
            // The record of a renewed hold must outlast the hold.
            let forget_at = deadline.saturating_add(HoldId::RETENTION);
            hold.forget_at = hold.forget_at.max(forget_at);
            Ok(decision)
        })
    }

    /// Finds a hold whose record has not expired, and locks it and its cells.
    pub(super) fn with_hold(
        &self,
        id: HoldId,
        change: impl FnOnce(
            &mut StoredHold,
            &CellCharges<'_>,
            &mut LockedShards<'_>,
            Micros,
        ) -> Result<Decision, EngineError>,
    ) -> Result<Decision, EngineError> {
        let mut holds = self.lock_holds(id);
        let hold = holds.get_mut(id.get()).ok_or(Refusal::UnknownHold)?;
        let cells = hold.cells.clone();
        let parts = cell_charges(&cells);
        let mut locked = LockedShards::new(self, &parts, None);
        let now = self.now();
        if hold.is_forgotten(now) {
            return Err(Refusal::UnknownHold.into());
        }
        let mut decision = change(hold, &parts, &mut locked, now)?;
        let enforced = || hold.cells.iter().filter(|cell| !cell.limit.is_shadow());
        let details = decision.details_mut();
        details.held = enforced().map(|cell| cell.limit.clone()).collect();
        if hold.settled.is_some() {
            details.settled = enforced().map(HeldCell::settled).collect();
        }
        details.lines = cells.iter().map(|part| part.fingerprint).collect();
        if hold.is_per_request && hold.settled.is_some() {
            holds.remove(id.get());
        }
        Ok(decision)
    }

    /// Whether there is a record of this hold.
    pub(crate) fn has_hold(&self, id: HoldId) -> bool {
        self.lock_holds(id).get(id.get()).is_some()
    }

    fn lock_holds(&self, id: HoldId) -> MutexGuard<'_, Table<StoredHold>> {
        lock(&self.holds[self.shard_of(id.low_bits())])
    }
}

fn cell_charges<'a>(held: &'a [HeldCell]) -> CellCharges<'a> {
    let whole = |held: &'a HeldCell| {
        let HeldCell { limit, fingerprint, cost, .. } = held;
        CellCharge { limit, fingerprint: *fingerprint, cost: *cost, caller: None }
    };
    held.iter().map(whole).collect()
}

pub(super) fn locate_all<'a>(
    locked: &mut LockedShards<'_>,
    parts: &CellCharges<'_>,
    ops: impl Iterator<Item = Op<'a>>,
    now: Micros,
) -> Result<Vec<CellLocation>, EngineError> {
    parts.iter().zip(ops).map(|(part, op)| locked.locate(part, op, now)).collect()
}
