//! Calls with charges: look at all, then write all or nothing.

use smallvec::SmallVec;
use tidegate_core::{Cost, Hold, Holds, Micros, Verdict};

use super::locked::{Locked, Part, Parts, Place, parts, peek};
use super::settle::HoldsLocked;
use super::table::Table;
use super::{Full, HeldPart, Memory, Once, Reserved};
use crate::engine::Refusal;
use crate::fingerprint::fingerprint;
use crate::{Call, CallId, Decision, EngineError, HoldId, Op, Source};

type Places = SmallVec<[Place; 2]>;
type Verdicts = SmallVec<[Verdict; 2]>;

impl Memory {
    pub(super) fn run(&self, call: &Call<'_>) -> Result<Decision, EngineError> {
        let parts = parts(call.charges);
        let once = call.once.map(|id| self.once(call, id));
        let mut holds = self.lock_hold_of(call.op, &parts)?;
        let mut locked = Locked::new(self, &parts, once.as_ref().map(|once| once.beside));
        let early = self.now();
        if let Some(once) = &once {
            if let Some(answered) = self.answered(once, call, &parts, &mut locked, early) {
                return answered;
            }
            if call.op != Op::Peek {
                once.make_room(parts.len(), &mut locked, early)?;
            }
        }
        if let Some(holds) = &mut holds {
            let held = parts.iter().filter(|part| part.is_set_aside(call.op)).copied();
            holds.make_room(&held.collect(), &mut locked, early)?;
        }
        let places: Places = parts
            .iter()
            .map(|part| locked.place(part, call.op, early))
            .collect::<Result<_, EngineError>>()?;
        // Read when everything is locked, the overflow buckets too: a cell never sees time run
        // backwards because a thread was slow.
        let now = if locked.has_overflow() { self.now() } else { early };

        let mut verdicts = self.look(&mut locked, &parts, &places, call.op, now);
        let allowed = parts.iter().zip(&verdicts).all(|(part, v)| v.allowed || part.looks_on());
        let mut decision = Decision::new(Source::Memory, SmallVec::new());
        let write = match call.op {
            Op::Check | Op::Hold { .. } | Op::Enter { .. } => allowed,
            Op::Visit { .. } | Op::Lend { .. } => allowed,
            Op::Record | Op::Refund | Op::Reset => true,
            Op::Peek | Op::Settle { .. } | Op::Renew { .. } => false,
        };
        if write {
            // A limit that looks on and would not allow it is left alone.
            let taken: SmallVec<[bool; 2]> =
                verdicts.iter().map(|verdict| verdict.allowed || !call.op.takes()).collect();
            if let Some(holds) = &mut holds {
                let held = parts.iter().zip(&taken);
                let held = held.filter(|(part, taken)| **taken && part.is_set_aside(call.op));
                let hold = remember_hold(holds, call.op, held.map(|(part, _)| part), now);
                if hold.is_some() {
                    decision.details_mut().hold = hold;
                }
            }
            for (i, part) in parts.iter().enumerate().filter(|(i, _)| taken[*i]) {
                if let Some(cell) = locked.cell(part, places[i]) {
                    cell.bring_to(part.limit, now, self.budget_of(places[i]));
                }
                let given = self.write(&mut locked, part, places[i], call.op, now);
                if given > decision.refunded() {
                    decision.details_mut().refunded = given;
                }
                let after = peek(&mut locked, part, places[i], now);
                let Verdict { remaining, reset_after, .. } = after;
                verdicts[i] = match call.op.takes() {
                    true => Verdict { remaining, reset_after, ..verdicts[i] },
                    false => after,
                };
                locked.drop_if_recovered(part, places[i], now);
            }
        }
        self.per_charge(call, &parts, &verdicts, &mut decision);
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
        if let Some((id, ttl, expiry)) = op.hold().filter(|_| part.is_set_aside(op)) {
            let deadline = now.saturating_add(ttl);
            let hold = Hold { id: id.get(), cost: part.cost, deadline, ttl, expiry };
            locked.write(part, place, |cell, budget| cell.hold(now, hold, budget));
            return Cost::ZERO;
        }
        match op {
            Op::Check | Op::Enter { .. } | Op::Record if part.cost.is_zero() => {}
            Op::Check | Op::Enter { .. } | Op::Record => {
                locked.write(part, place, |cell, budget| {
                    cell.charge(now, part.cost, part.who, budget);
                });
            }
            // Others have consumption in a shared cell; it is not this key's to give back or forget.
            Op::Refund | Op::Reset if place == Place::Shared => {}
            Op::Refund => {
                let (cell, budget) = (locked.cell(part, place), self.budget_of(place));
                return cell.map_or(Cost::ZERO, |cell| cell.refund(now, part.cost, budget));
            }
            Op::Reset => {
                if let Some(cell) = locked.cell(part, place) {
                    cell.clear(now, &self.budget);
                }
            }
            Op::Hold { .. } | Op::Visit { .. } | Op::Lend { .. } => {}
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
            let cost = match op.takes() || op == Op::Peek {
                true => locked.wanted(part, *place, parts, places),
                false => Cost::ZERO,
            };
            match locked.cell(part, *place) {
                Some(cell) => cell.seen_by(part.limit, now, self.budget_of(*place)).look(now, cost),
                None => part.limit.limit().look(None, Holds::NONE, &part.limit.moment(now), cost),
            }
        });
        looks.collect()
    }

    /// One verdict per charge: charges that were added up share theirs.
    fn per_charge(
        &self,
        call: &Call<'_>,
        parts: &Parts<'_>,
        verdicts: &Verdicts,
        decision: &mut Decision,
    ) {
        for (i, charge) in call.charges.iter().enumerate() {
            let place = if parts.len() == call.charges.len() {
                Some(i)
            } else {
                let fingerprint = fingerprint(charge.limit.tag(), charge.key);
                parts.iter().position(|part| part.fingerprint == fingerprint)
            };
            decision.push(charge.limit, verdicts[place.unwrap_or(0)]);
        }
    }

    /// The answer given before under this id. That of a hold counts as long as the hold lasts:
    /// after that it would promise what is not there.
    fn answered(
        &self,
        once: &OnceKey,
        call: &Call<'_>,
        parts: &Parts<'_>,
        locked: &mut Locked<'_>,
        now: Micros,
    ) -> Option<Result<Decision, EngineError>> {
        let answered = once.find(locked, now)?;
        if let (Op::Hold { .. }, Ok(Some(id))) = (call.op, answered.as_ref().map(|d| d.hold())) {
            let mut deciding = parts.iter().filter(|part| !part.looks_on());
            let lasts = deciding.all(|part| {
                let place = locked.place(part, Op::Peek, now).unwrap_or(Place::Own);
                locked.cell(part, place).is_some_and(|cell| cell.holds_still(id.get(), now))
            });
            if !lasts {
                once.forget(locked);
                return None;
            }
        }
        Some(answered)
    }

    fn once(&self, call: &Call<'_>, id: CallId<'_>) -> OnceKey {
        let op = match call.op {
            // The id of a hold is drawn anew on every attempt.
            Op::Hold { ttl, expiry, .. } => Op::Hold { id: HoldId::from(0), ttl, expiry },
            // A peek under an id tells what the check under it was answered, or would be.
            Op::Peek => Op::Check,
            op => op,
        };
        // What was asked, not what it was charged to: a rule may have got another limit meanwhile.
        let asked = call.charges.iter().filter(|charge| charge.limit.is_first());
        let asked: Vec<_> =
            asked.map(|charge| (charge.limit.rule(), charge.key, charge.cost)).collect();
        let first = call.charges.first().map(|charge| (charge.limit.rule(), charge.key));
        OnceKey {
            beside: self.fingerprints.short(("once", first)),
            name: self.fingerprints.of(("once", first, id)),
            request: self.fingerprints.of((op, asked)),
        }
    }
}

/// Remembers what is being set aside, and returns the name it goes by. Whoever enters where all that
/// count holders only look on and have no place left holds nothing.
fn remember_hold<'a, 'p: 'a>(
    holds: &mut HoldsLocked<'_>,
    op: Op,
    parts: impl Iterator<Item = &'a Part<'p>>,
    now: Micros,
) -> Option<HoldId> {
    let (id, ttl, expiry) = op.hold()?;
    let part = |part: &Part<'p>| HeldPart {
        limit: part.limit.clone(),
        fingerprint: part.fingerprint,
        cost: part.cost,
    };
    let parts: Vec<HeldPart> = parts.map(part).collect();
    let is_entry = op.is_of_a_request();
    if parts.is_empty() && is_entry {
        return None;
    }
    let forget_at = now.saturating_add(ttl).saturating_add(HoldId::REMEMBERED);
    holds.insert(id, Reserved { parts, expiry, is_entry, settled: None, forget_at });
    Some(id)
}

/// Where the record of an idempotent call lies, and what it must say.
struct OnceKey {
    /// The fingerprint whose shard it lies in: that of the first rule and key.
    beside: u64,
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
        let record = table.get_mut(self.name)?;
        if record.has_expired(now) {
            table.remove(self.name);
            return None;
        }
        Some(if record.request == self.request {
            Ok(record.decision.clone().again())
        } else {
            Err(Refusal::IdReused.into())
        })
    }

    fn forget(&self, locked: &mut Locked<'_>) {
        self.table(locked).remove(self.name);
    }

    fn make_room(
        &self,
        verdicts: usize,
        locked: &mut Locked<'_>,
        now: Micros,
    ) -> Result<(), EngineError> {
        let heap = Decision::heap_bytes_for(verdicts);
        let table = self.table(locked);
        table.sweep(Memory::SWEEP_WHEN_FULL / 16, |record| record.has_expired(now));
        if !table.has_room_for(1, heap) {
            locked.ask_for(usize::MAX, now);
        }
        let has_room = self.table(locked).has_room_for(1, heap);
        if has_room { Ok(()) } else { Err(EngineError::unavailable(Full)) }
    }

    fn keep(&self, locked: &mut Locked<'_>, now: Micros, decision: &Decision) {
        let expires = now.saturating_add(CallId::TTL);
        let record = Once { request: self.request, decision: decision.kept(), expires };
        self.table(locked).insert(self.name, record);
    }
}

impl Once {
    /// A clock that stepped back makes no record last longer than it would have.
    pub(super) fn has_expired(&mut self, now: Micros) -> bool {
        self.expires = self.expires.min(now.saturating_add(CallId::TTL));
        self.expires <= now
    }
}
