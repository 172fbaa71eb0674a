//! Calls about a hold: its end, and its renewal.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Expiry, Hold, Micros, Verdict};

use super::locked::{Locked, Part, Parts, Place, peek};
use super::table::Table;
use super::{Full, HeldPart, Memory, Reserved, lock};
use crate::engine::Refusal;
use crate::sync::MutexGuard;
use crate::{Decision, EngineError, HoldId, Op, RuleLimit, Source};

/// The holds that share a shard with the one a call is about.
pub(super) struct HoldsLocked<'a>(MutexGuard<'a, Table<Reserved>>);

impl HoldsLocked<'_> {
    /// Makes room for one more hold on `parts`, here and with the cells.
    pub(super) fn make_room(
        &mut self,
        parts: &Parts<'_>,
        locked: &mut Locked<'_>,
        now: Micros,
    ) -> Result<(), EngineError> {
        self.0.sweep(Memory::SWEEP_WHEN_FULL / 16, |reserved| reserved.is_forgotten(now));
        let limits: usize = parts.iter().map(|part| part.limit.own_bytes()).sum();
        let cells: usize = parts.iter().map(|part| locked.hold_growth(part)).sum();
        let heap = limits + cells + Decision::heap_bytes_for(parts.len());
        let heap = heap + parts.len() * size_of::<HeldPart>();
        if !self.0.has_room_for(1, heap) {
            self.0.sweep(Memory::SWEEP_WHEN_FULL, |reserved| reserved.may_go(now));
            locked.ask_for(usize::MAX, now);
        }
        if self.0.has_room_for(1, heap) { Ok(()) } else { Err(EngineError::unavailable(Full)) }
    }

    pub(super) fn insert(&mut self, id: HoldId, reserved: Reserved) {
        self.0.insert(id.get(), reserved);
    }
}

impl Memory {
    /// Locks the place of a hold that `op` wants to make on any of the parts, if it does.
    pub(super) fn lock_hold_of(
        &self,
        op: Op,
        parts: &Parts<'_>,
    ) -> Result<Option<HoldsLocked<'_>>, EngineError> {
        let held = || parts.iter().filter(|part| part.is_set_aside(op)).map(|part| part.limit);
        let Some((id, ttl, _)) = op.hold().filter(|_| held().next().is_some()) else {
            return Ok(None);
        };
        check_ttl(ttl, held())?;
        let holds = self.lock_holds(id);
        if holds.0.get(id.get()).is_some() {
            return Err(Refusal::IdReused.into());
        }
        Ok(Some(holds))
    }

    pub(super) fn settle(&self, id: HoldId, cost: Option<Cost>) -> Result<Decision, EngineError> {
        self.with_hold(id, |reserved, parts, locked, now| {
            if let Some((settled, decision)) = &reserved.settled {
                let same = *settled == cost;
                return same.then(|| decision.clone()).ok_or(Refusal::AlreadySettled.into());
            }
            let op = if cost == Some(Cost::ZERO) { Op::Peek } else { Op::Settle { id, cost } };
            let places = places(locked, parts, op, now)?;
            let now = self.now();
            let mut decision = Decision::new(Source::Memory, SmallVec::new());
            for (part, place) in parts.iter().zip(places) {
                let budget = self.budget_of(place);
                let cell = locked.cell(part, place);
                let held = cell.and_then(|cell| cell.release(now, id.get(), budget));
                if held.is_none() && !part.looks_on() {
                    decision.details_mut().expired = true;
                }
                let charged_at_end = match (held, reserved.expiry) {
                    (None, Expiry::Charge) => part.cost,
                    _ => Cost::ZERO,
                };
                let due = cost.unwrap_or(part.cost).saturating_sub(charged_at_end);
                let mut turn = Micros::ZERO;
                if !due.is_zero() {
                    locked.write(part, place, |cell, budget| {
                        turn = cell.turn_after(now);
                        cell.charge(now, due, None, budget);
                    });
                }
                let after = Verdict { delay: turn, ..peek(locked, part, place, now) };
                decision.push(part.limit, after);
                locked.drop_if_recovered(part, place, now);
            }
            reserved.settled = Some((cost, decision.kept()));
            reserved.forget_at = now.saturating_add(HoldId::REMEMBERED);
            Ok(decision)
        })
    }

    pub(super) fn renew(&self, id: HoldId, ttl: Micros) -> Result<Decision, EngineError> {
        self.with_hold(id, |reserved, parts, locked, now| {
            check_ttl(ttl, reserved.parts.iter().map(|part| &part.limit))?;
            if reserved.settled.is_some() {
                return Err(Refusal::AlreadySettled.into());
            }
            let places = places(locked, parts, Op::Peek, now)?;
            let now = self.now();
            let mut decision = Decision::new(Source::Memory, SmallVec::new());
            let deadline = now.saturating_add(ttl);
            for (part, place) in parts.iter().zip(places) {
                let budget = self.budget_of(place);
                let cell = locked.cell(part, place);
                let renewed = cell.is_some_and(|cell| {
                    let held = cell.release(now, id.get(), budget);
                    let renewed = held.map(|held| Hold { deadline, ttl, ..held });
                    renewed.map(|hold| cell.hold(now, hold, budget)).is_some()
                });
                if !renewed && !part.looks_on() {
                    decision.details_mut().expired = true;
                }
                decision.push(part.limit, peek(locked, part, place, now));
            }
            // Whatever was renewed must be remembered for longer than it lasts.
            let forget_at = deadline.saturating_add(HoldId::REMEMBERED);
            reserved.forget_at = reserved.forget_at.max(forget_at);
            Ok(decision)
        })
    }

    /// Finds a hold that is not forgotten, and locks it and its cells.
    fn with_hold(
        &self,
        id: HoldId,
        change: impl FnOnce(
            &mut Reserved,
            &Parts<'_>,
            &mut Locked<'_>,
            Micros,
        ) -> Result<Decision, EngineError>,
    ) -> Result<Decision, EngineError> {
        let mut holds = self.lock_holds(id);
        let reserved = holds.0.get_mut(id.get()).ok_or(Refusal::UnknownHold)?;
        let held_parts = reserved.parts.clone();
        let parts = as_parts(&held_parts);
        let mut locked = Locked::new(self, &parts, None);
        let now = self.now();
        if reserved.is_forgotten(now) {
            return Err(Refusal::UnknownHold.into());
        }
        let mut decision = change(reserved, &parts, &mut locked, now)?;
        if reserved.is_entry && reserved.settled.is_some() {
            holds.0.remove(id.get());
        }
        let deciding = held_parts.iter().filter(|part| !part.limit.is_shadow());
        decision.details_mut().held = deciding.map(|part| part.limit.clone()).collect();
        Ok(decision)
    }

    fn lock_holds(&self, id: HoldId) -> HoldsLocked<'_> {
        HoldsLocked(lock(&self.holds[self.shard_of(id.low_bits())]))
    }
}

/// A holder may stay for a whole lease, however long that is.
pub(crate) fn check_ttl<'a>(
    ttl: Micros,
    limits: impl Iterator<Item = &'a Arc<RuleLimit>>,
) -> Result<(), EngineError> {
    let lease = limits.filter_map(|limit| limit.limit().lease()).max();
    if ttl == Micros::ZERO || ttl > HoldId::MAX_TTL.max(lease.unwrap_or_default()) {
        return Err(Refusal::HoldLength.into());
    }
    Ok(())
}

impl Reserved {
    /// Is its time over? A clock that stepped back makes no record last longer than it would have.
    pub(super) fn is_forgotten(&mut self, now: Micros) -> bool {
        if self.settled.is_some() {
            self.forget_at = self.forget_at.min(now.saturating_add(HoldId::REMEMBERED));
        }
        self.forget_at <= now
    }

    /// Can it be forgotten early, to make room? Whoever asks about it again will not be told how it
    /// ended, but nothing is admitted because of that.
    pub(super) fn may_go(&mut self, now: Micros) -> bool {
        self.settled.is_some() || self.is_forgotten(now)
    }
}

fn as_parts<'a>(held: &'a [HeldPart]) -> Parts<'a> {
    let whole = |held: &'a HeldPart| {
        let HeldPart { limit, fingerprint, cost } = held;
        Part { limit, fingerprint: *fingerprint, cost: *cost, who: None }
    };
    held.iter().map(whole).collect()
}

fn places(
    locked: &mut Locked<'_>,
    parts: &Parts<'_>,
    op: Op,
    now: Micros,
) -> Result<Vec<Place>, EngineError> {
    parts.iter().map(|part| locked.place(part, op, now)).collect()
}
