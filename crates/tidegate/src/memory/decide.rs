//! Calls with charges: look at all, then write all or nothing.

use smallvec::SmallVec;
use tidegate_core::{Cost, Hold, Holds, Micros, Verdict};

use super::locked::{Locked, Part, Parts, Place, parts, peek};
use super::settle::HoldsLocked;
use super::table::Table;
use super::{Full, HeldPart, Memory, Once, Reserved};
use crate::engine::Refusal;
use crate::{Call, CallId, Decision, EngineError, HoldId, Op, Source};

type Places = SmallVec<[Place; 2]>;
type Verdicts = SmallVec<[Verdict; 2]>;

impl Memory {
    pub(super) fn run(&self, call: &Call<'_>) -> Result<Decision, EngineError> {
        let parts = parts(self, call.charges);
        let mut holds = self.lock_hold_of(call.op)?;
        let mut locked = Locked::new(self, &parts);
        // Read under the locks: a cell never sees time run backwards because a thread was slow.
        let now = self.clock.now();
        let once = call.once.map(|id| self.once(call, &parts, id));
        if let Some(answered) = once.as_ref().and_then(|once| once.find(&mut locked, now)) {
            return answered;
        }
        if let Some(holds) = &mut holds {
            holds.make_room(&parts, &mut locked, now)?;
        }
        if let Some(once) = &once {
            once.make_room(parts.len(), &mut locked, now)?;
        }
        let places: Places = parts
            .iter()
            .map(|part| locked.place(part, call.op, now))
            .collect::<Result<_, EngineError>>()?;

        let mut verdicts = self.look(&mut locked, &parts, &places, call.op, now);
        let allowed = verdicts.iter().all(|verdict| verdict.allowed);
        let mut decision = Decision::new(Source::Memory, SmallVec::new());
        let write = match call.op {
            Op::Check | Op::Hold { .. } => allowed,
            Op::Record | Op::Refund | Op::Reset => true,
            Op::Peek | Op::Settle { .. } | Op::Renew { .. } => false,
        };
        if write {
            if let (Op::Hold { id, .. }, Some(holds)) = (call.op, &mut holds) {
                remember_hold(holds, id, call.op, &parts, now);
                decision.hold = Some(id);
            }
            for (i, part) in parts.iter().enumerate() {
                let given = self.write(&mut locked, part, places[i], call.op, now);
                decision.refunded = decision.refunded.max(given);
                let after = peek(&mut locked, part, places[i], now);
                verdicts[i] = match call.op {
                    Op::Check | Op::Hold { .. } => Verdict {
                        remaining: after.remaining,
                        reset_after: after.reset_after,
                        ..verdicts[i]
                    },
                    _ => after,
                };
                locked.drop_if_recovered(part, places[i], now);
            }
        }
        decision.verdicts = self.per_charge(call, &parts, &verdicts);
        let nothing_asked = call.op == Op::Check && parts.iter().all(|part| part.cost.is_zero());
        if let Some(once) = once.filter(|_| write && !nothing_asked) {
            once.keep(&mut locked, now, &decision);
        }
        Ok(decision)
    }

    fn write(
        &self,
        locked: &mut Locked<'_>,
        part: &Part<'_>,
        place: Place,
        op: Op,
        now: Micros,
    ) -> Cost {
        match op {
            Op::Check | Op::Record if part.cost.is_zero() => {}
            Op::Check | Op::Record => locked.write(part, place, |cell, budget| {
                cell.charge(now, part.cost, part.who, budget);
            }),
            Op::Hold { id, ttl, expiry } => {
                let deadline = now.saturating_add(ttl);
                let hold = Hold { id: id.get(), cost: part.cost, deadline, ttl, expiry };
                locked.write(part, place, |cell, budget| cell.hold(now, hold, budget));
            }
            Op::Refund => {
                let (cell, budget) = (locked.cell(part, place), self.budget_of(place));
                return cell.map_or(Cost::ZERO, |cell| cell.refund(now, part.cost, budget));
            }
            // Others have consumption in a shared cell; it is not this key's to forget.
            Op::Reset if place == Place::Shared => {}
            Op::Reset => {
                if let Some(cell) = locked.cell(part, place) {
                    cell.clear(&self.budget);
                }
            }
            Op::Peek | Op::Settle { .. } | Op::Renew { .. } => {}
        }
        Cost::ZERO
    }

    fn look(
        &self,
        locked: &mut Locked<'_>,
        parts: &Parts<'_>,
        places: &Places,
        op: Op,
        now: Micros,
    ) -> Verdicts {
        let looks = parts.iter().zip(places).map(|(part, place)| {
            let cost = match op {
                Op::Check | Op::Peek | Op::Hold { .. } => {
                    locked.wanted(part, *place, parts, places)
                }
                _ => Cost::ZERO,
            };
            match locked.cell(part, *place) {
                Some(cell) => {
                    cell.bring_to(part.limit, now, self.budget_of(*place));
                    cell.look(now, cost)
                }
                None => part.limit.limit().look(None, Holds::NONE, &part.limit.moment(now), cost),
            }
        });
        looks.collect()
    }

    /// One verdict per charge: charges that were added up share theirs.
    fn per_charge(&self, call: &Call<'_>, parts: &Parts<'_>, verdicts: &Verdicts) -> Verdicts {
        if parts.len() == call.charges.len() {
            return verdicts.clone();
        }
        let verdict_of = |fingerprint| {
            let part = parts.iter().position(|part| part.fingerprint == fingerprint);
            verdicts[part.unwrap_or(0)]
        };
        let fingerprints = call.charges.iter().map(|c| self.fingerprint(c.limit, c.key));
        fingerprints.map(verdict_of).collect()
    }

    fn once(&self, call: &Call<'_>, parts: &Parts<'_>, id: CallId<'_>) -> OnceKey {
        let first = call.charges.first().map(|charge| (charge.limit.rule(), charge.key));
        let op = match call.op {
            // The id of a hold is drawn anew on every attempt.
            Op::Hold { ttl, expiry, .. } => (format!("hold {expiry:?}"), ttl),
            // A peek under an id tells what the check under it was answered, or would be.
            Op::Peek => (format!("{:?}", Op::Check), Micros::ZERO),
            op => (format!("{op:?}"), Micros::ZERO),
        };
        let charged: Vec<(u128, Cost)> = parts.iter().map(|p| (p.fingerprint, p.cost)).collect();
        OnceKey {
            beside: parts[0].fingerprint,
            name: self.fingerprints.of(("once", first, id)),
            request: self.fingerprints.of((op, charged)),
        }
    }
}

fn remember_hold(holds: &mut HoldsLocked<'_>, id: HoldId, op: Op, parts: &Parts<'_>, now: Micros) {
    let Op::Hold { ttl, expiry, .. } = op else { return };
    let parts = parts.iter().map(|part| HeldPart {
        limit: part.limit.clone(),
        fingerprint: part.fingerprint,
        cost: part.cost,
    });
    let forget_at = now.saturating_add(ttl).saturating_add(HoldId::REMEMBERED);
    let reserved = Reserved { parts: parts.collect(), expiry, settled: None, forget_at };
    holds.insert(id, reserved);
}

/// Where the record of an idempotent call lies, and what it must say.
struct OnceKey {
    /// The fingerprint whose shard it lies in: the first charge's.
    beside: u128,
    name: u128,
    request: u128,
}

impl OnceKey {
    fn table<'t>(&self, locked: &'t mut Locked<'_>) -> &'t mut Table<Once> {
        &mut locked.shard(self.beside).once
    }

    /// The answer given before, or the refusal of another request under the same id.
    fn find(&self, locked: &mut Locked<'_>, now: Micros) -> Option<Result<Decision, EngineError>> {
        let table = self.table(locked);
        let record = table.get(self.name)?;
        if record.expires <= now {
            table.remove(self.name);
            return None;
        }
        Some(if record.request == self.request {
            Ok(record.decision.clone())
        } else {
            Err(Refusal::IdReused.into())
        })
    }

    fn make_room(
        &self,
        verdicts: usize,
        locked: &mut Locked<'_>,
        now: Micros,
    ) -> Result<(), EngineError> {
        let heap = Decision::heap_bytes_for(verdicts);
        let table = self.table(locked);
        table.sweep(Memory::SWEEP_WHEN_FULL / 16, |record| record.expires <= now);
        if !table.has_room_for(1, heap) {
            locked.ask_for(usize::MAX, now);
        }
        let has_room = self.table(locked).has_room_for(1, heap);
        if has_room { Ok(()) } else { Err(EngineError::unavailable(Full)) }
    }

    fn keep(&self, locked: &mut Locked<'_>, now: Micros, decision: &Decision) {
        let expires = now.saturating_add(CallId::TTL);
        let record = Once { request: self.request, decision: decision.clone(), expires };
        self.table(locked).insert(self.name, record);
    }
}
