//! Calls that hold more under a hold.

use smallvec::SmallVec;
use tidegate_core::{Cost, Hold, Micros, Verdict, Wait};

use super::cell::CellLocation;
use super::locked_shards::{CellCharges, LockedShards, peek};
use super::records::HeldCell;
use super::settle::locate_all;
use super::state::Memory;
use crate::engine::{Refusal, check_ttl};
use crate::{Decision, EngineError, Extension, HoldId, Op, Source};

impl Memory {
    pub(super) fn extend(&self, id: HoldId, to: Extension<'_>) -> Result<Decision, EngineError> {
        self.with_hold(id, |hold, parts, locked, now| {
            let mut totals = hold.named_costs(Op::Extend { id, to })?;
            if let Some(ttl) = to.ttl {
                check_ttl(ttl, hold.cells.iter().map(|cell| &cell.limit))?;
            }
            if hold.settled.is_some() {
                return Err(Refusal::AlreadySettled.into());
            }
            let locations = locate_all(locked, parts, parts.iter().map(|_| Op::Peek), now)?;
            let now = self.now();
            let mut is_active = SmallVec::<[bool; 2]>::new();
            for (part, location) in parts.iter().zip(&locations) {
                peek(locked, part, *location, now);
                let cell = locked.cell(part, *location);
                is_active.push(cell.is_some_and(|cell| cell.has_active_hold(id.get(), now)));
            }
            for (i, cell) in hold.cells.iter().enumerate().filter(|(i, _)| !is_active[*i]) {
                if cell.expiry.is_some() && !cell.limit.is_shadow() {
                    return Err(Refusal::HoldExpired.into());
                }
                totals[i] = None;
            }
            let wanted = WantedTotals { cells: &hold.cells, totals: &totals, parts, to };
            let (added, mut verdicts) = wanted.look(locked, &locations, now);
            let is_granted = allowed(&added, &verdicts);
            for (i, (part, location)) in added.iter().zip(locations).enumerate() {
                // A shadow limit that denies the call stays as it is.
                let cost = if verdicts[i].allowed { part.cost } else { Cost::ZERO };
                let changes = is_active[i] && (to.ttl.is_some() || !cost.is_zero());
                if !is_granted || !changes {
                    continue;
                }
                let budget = self.budget_of(part.space(), location);
                if let Some(cell) = locked.cell(part, location)
                    && let Some(held) = cell.release(now, id.get(), budget)
                {
                    let ttl = to.ttl.unwrap_or(held.ttl);
                    let deadline = to.ttl.map_or(held.deadline, |ttl| now.saturating_add(ttl));
                    let cost = held.cost.saturating_add(cost);
                    cell.hold(now, Hold { cost, deadline, ttl, ..held }, budget);
                }
                hold.cells[i].cost = hold.cells[i].cost.saturating_add(cost);
                let Verdict { remaining, reset_after, .. } = peek(locked, part, location, now);
                verdicts[i] = Verdict { remaining, reset_after, ..verdicts[i] };
            }
            if let Some(ttl) = to.ttl.filter(|_| is_granted) {
                // The record must outlast the hold.
                let deadline = now.saturating_add(ttl);
                hold.forget_at = hold.forget_at.max(deadline.saturating_add(HoldId::RETENTION));
            }
            let mut decision = Decision::new(Source::Memory, SmallVec::new());
            for (part, verdict) in parts.iter().zip(verdicts) {
                decision.push(part.limit, verdict);
            }
            let enforced = hold.cells.iter().filter(|cell| !cell.limit.is_shadow());
            decision.details_mut().reserved = enforced.map(|cell| cell.cost).collect();
            Ok(decision)
        })
    }
}

/// The totals that an extension names for the cells of a hold.
struct WantedTotals<'a, 'p> {
    cells: &'a [HeldCell],
    totals: &'a [Option<Cost>],
    parts: &'a CellCharges<'p>,
    to: Extension<'a>,
}

impl<'p> WantedTotals<'_, 'p> {
    /// What is held in addition for `quantity`, or less if a total is less.
    fn increments(&self, quantity: Cost) -> CellCharges<'p> {
        let mut parts = self.parts.clone();
        for ((part, cell), total) in parts.iter_mut().zip(self.cells).zip(self.totals) {
            let total = total.map_or(Cost::ZERO, |total| total.min(quantity));
            part.cost = total.saturating_sub(cell.cost);
        }
        parts
    }

    /// The increments of the largest quantity that fits, with the verdicts on them; those of the
    /// smallest if none does.
    fn look(
        &self,
        locked: &mut LockedShards<'_>,
        locations: &[CellLocation],
        now: Micros,
    ) -> (CellCharges<'p>, SmallVec<[Verdict; 2]>) {
        let mut added = self.increments(self.to.want());
        let mut verdicts = look(locked, &added, locations, now);
        let Some(min) = self.to.min else { return (added, verdicts) };
        let named = (0..self.parts.len()).filter(|i| self.totals[*i].is_some());
        let fits = named
            .filter(|i| !self.parts[*i].is_shadow())
            .map(|i| self.cells[i].cost.saturating_add(Cost::total(verdicts[i].remaining)));
        let fits = fits.min().unwrap_or(min).clamp(min, self.to.want());
        // Keys that share an overflow bucket may fit one by one and not together.
        for quantity in [fits, min] {
            if !allowed(&added, &verdicts) {
                added = self.increments(quantity);
                verdicts = look(locked, &added, locations, now);
            }
        }
        (added, verdicts)
    }
}

/// The verdict of each part on its increment. A part without one allows the call, even if its limit
/// is overdrawn: a repeated call does nothing.
fn look(
    locked: &mut LockedShards<'_>,
    parts: &CellCharges<'_>,
    locations: &[CellLocation],
    now: Micros,
) -> SmallVec<[Verdict; 2]> {
    let verdicts = parts.iter().zip(locations).map(|(part, location)| {
        let cost = locked.cost_in_cell(part, *location, parts, locations);
        let verdict = match locked.cell(part, *location) {
            Some(cell) if !part.cost.is_zero() => cell.look(cell.limit(), now, cost),
            _ => {
                let present = peek(locked, part, *location, now);
                Verdict { allowed: true, retry_after: Wait::NONE, ..present }
            }
        };
        Verdict { delay: Micros::ZERO, ..verdict }
    });
    verdicts.collect()
}

/// Whether every enforced limit allows the call.
fn allowed(parts: &CellCharges<'_>, verdicts: &[Verdict]) -> bool {
    parts.iter().zip(verdicts).all(|(part, verdict)| verdict.allowed || part.is_shadow())
}
