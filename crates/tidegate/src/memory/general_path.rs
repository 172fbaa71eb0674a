//! General path: every call with charges. Evaluates all, then writes all or none.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Hold, Holds, Micros, Verdict};

use super::cell::CellLocation;
use super::flexible_costs::FlexibleCosts;
use super::id_table::IdTable;
use super::locked_shards::{CellCharge, CellCharges, LockedShards, cell_charges, peek};
use super::records::{HeldCell, IdempotencyEntry, StoredDecision, StoredHold};
use super::rule_records::RuleNumber;
use super::settle::LockedHolds;
use super::state::Memory;
use crate::engine::Refusal;
use crate::fingerprint::fingerprint;
use crate::sync::atomic::Ordering;
use crate::sync::try_lock;
use crate::{Call, Decision, EngineError, HoldId, HoldSpec, IdempotencyKey, Op, RuleLimit, Source};

type CellLocations = SmallVec<[CellLocation; 2]>;

impl Memory {
    pub(super) fn decide_general_locked(&self, call: &Call<'_>) -> Result<Decision, EngineError> {
        let instances = self.instances_of_limits(call)?;
        let mut parts = cell_charges(call.charges);
        use_instances(&mut parts, &instances);
        let idempotency = call.idempotency_key.map(|id| self.idempotency_lookup(call, id));
        let mut holds = self.lock_hold_of(call.op, &parts)?;
        let shard_key = idempotency.as_ref().map(|idempotency| idempotency.shard_key);
        let mut locked = LockedShards::new(self, &parts, shard_key);
        let early = self.now();
        if let Some(idempotency) = &idempotency {
            let earlier = self.earlier_decision(idempotency, call, &parts, &mut locked, early);
            if let Some(earlier) = earlier {
                return earlier;
            }
            if call.op != Op::Peek {
                idempotency.make_room(self, call.op, parts.len(), &mut locked, early)?;
            }
        }
        if let Some(holds) = &mut holds {
            holds.make_room(self, call.op, &parts, &mut locked, early)?;
        }
        let locations: CellLocations = parts
            .iter()
            .map(|part| locked.locate(part, call.op, early))
            .collect::<Result<_, EngineError>>()?;
        // Read when everything is locked, overflow buckets included: a cell never sees time run
        // backwards because a thread was slow.
        let now = if locked.has_overflow() { self.now() } else { early };

        let flexible = FlexibleCosts::new(call, &parts);
        let mut look =
            |parts: &CellCharges<'_>| self.look(&mut locked, parts, &locations, call.op, now);
        let (granted, mut verdicts) = match &flexible {
            Some(costs) => costs.grant(&mut parts, look),
            None => (None, look(&parts)),
        };
        let allowed = parts.iter().zip(&verdicts).all(|(part, v)| v.allowed || part.is_shadow());
        let mut decision = Decision::new(Source::Memory, SmallVec::new());
        let write = writes(call.op, allowed);
        if write {
            // A shadow limit that would deny the call is not charged.
            let taken: SmallVec<[bool; 2]> =
                verdicts.iter().map(|verdict| verdict.allowed || !call.op.takes()).collect();
            if let Some(holds) = &mut holds {
                let held = parts.iter().zip(&taken);
                let held = held.filter(|(part, taken)| **taken && call.op.records(part.limit));
                let wanted = |part: &CellCharge<'_>| Some(flexible.as_ref()?.wanted(part));
                let held = held.map(|(part, _)| (part, wanted(part).unwrap_or(part.cost)));
                if let Some(hold) = store_hold(holds, call.op, held, now) {
                    let details = decision.details_mut();
                    (details.hold, details.granted) = (Some(hold), granted);
                }
            }
            for (i, part) in parts.iter().enumerate().filter(|(i, _)| taken[*i]) {
                let (after, refunded) =
                    self.write_part(&mut locked, part, locations[i], call.op, now);
                if refunded > decision.refunded() {
                    decision.details_mut().refunded = refunded;
                }
                verdicts[i] = after_write(call.op, verdicts[i], after);
            }
        }
        self.per_charge(call, &parts, &verdicts, &mut decision);
        let costs_nothing = call.op == Op::Check && parts.iter().all(|part| part.cost.is_zero());
        if let Some(idempotency) = idempotency.filter(|_| write && !costs_nothing) {
            idempotency.store(&mut locked, now, &decision);
        }
        Ok(decision)
    }

    /// The engine's instances of the limits that come with the call. A peek stores nothing and
    /// needs none.
    fn instances_of_limits(
        &self,
        call: &Call<'_>,
    ) -> Result<SmallVec<[Arc<RuleLimit>; 1]>, EngineError> {
        if call.op == Op::Peek {
            return Ok(SmallVec::new());
        }
        let limits = call.charges.iter().map(|charge| charge.limit);
        let per_call = limits.filter(|limit| limit.is_adhoc());
        per_call.map(|limit| self.instance_of(limit, self.now())).collect()
    }

    /// Counts ids that were forgotten at this age.
    fn count_evicted_ids(&self, retention: Micros, now: Micros) {
        if retention < IdempotencyKey::TTL {
            self.id_retention.store(retention.get(), Ordering::Relaxed);
            self.budgets.ids.count_overflow(now);
        }
    }

    /// Forgets the oldest ids of some shard that is not locked, of one rule or of all. The age of
    /// the youngest of them.
    fn evict_ids(&self, only: Option<RuleNumber>, now: Micros) -> Option<Micros> {
        let shards = self.shards.len();
        let first = self.evicted_shard.load(Ordering::Relaxed);
        (0..shards).map(|i| (first + i) % shards).find_map(|index| {
            let age = try_lock(&self.shards[index].0)?.ids.evict(now, only)?;
            self.evicted_shard.store(index, Ordering::Relaxed);
            Some(age)
        })
    }

    /// Applies the operation to one cell: the verdict after it, and the permits given back.
    fn write_part(
        &self,
        locked: &mut LockedShards<'_>,
        part: &CellCharge<'_>,
        location: CellLocation,
        op: Op<'_>,
        now: Micros,
    ) -> (Verdict, Cost) {
        if let Some(cell) = locked.cell(part, location) {
            let activates = op == Op::Reset || op.takes() && !part.cost.is_zero();
            let budget = self.budget_of(part.space(), location);
            cell.prepare_write(part.limit, now, activates, budget);
        }
        let refunded = self.write(locked, part, location, op, now);
        let after = match locked.cell(part, location) {
            Some(cell) => cell.look(part.limit, now, Cost::ZERO),
            None => peek(locked, part, location, now),
        };
        locked.drop_if_recovered(part, location, now);
        (after, refunded)
    }

    fn write(
        &self,
        locked: &mut LockedShards<'_>,
        part: &CellCharge<'_>,
        location: CellLocation,
        op: Op<'_>,
        now: Micros,
    ) -> Cost {
        if let Op::Hold(spec) = op
            && spec.holds(part.limit)
        {
            let HoldSpec { id, ttl, .. } = spec;
            let (deadline, expiry) = (now.saturating_add(ttl), spec.expiry_of(part.limit));
            let hold = Hold { id: id.get(), cost: part.cost, deadline, ttl, expiry };
            locked.write(part, location, |cell, budget| cell.hold(now, hold, budget));
            return Cost::ZERO;
        }
        match op {
            Op::Check | Op::Hold(_) | Op::Record if part.cost.is_zero() => {}
            Op::Check | Op::Hold(_) | Op::Record => {
                locked.write(part, location, |cell, budget| {
                    cell.charge(now, part.cost, part.caller, budget);
                });
            }
            // A shared cell has consumption of other keys, which this key must not give back or
            // clear.
            Op::Refund | Op::Reset if location == CellLocation::Shared => {}
            Op::Refund => {
                let budget = self.budget_of(part.space(), location);
                let cell = locked.cell(part, location);
                return cell.map_or(Cost::ZERO, |cell| cell.refund(now, part.cost, budget));
            }
            Op::Reset => {
                let budget = self.budget_of(part.space(), location);
                if let Some(cell) = locked.cell(part, location) {
                    cell.clear(now, budget);
                }
            }
            Op::Peek | Op::Settle { .. } | Op::Renew { .. } | Op::Extend { .. } => {}
        }
        Cost::ZERO
    }

    fn look(
        &self,
        locked: &mut LockedShards<'_>,
        parts: &CellCharges<'_>,
        locations: &CellLocations,
        op: Op<'_>,
        now: Micros,
    ) -> SmallVec<[Verdict; 2]> {
        let verdicts = parts.iter().zip(locations).map(|(part, location)| {
            let cost = match op.takes() || op == Op::Peek {
                true => locked.cost_in_cell(part, *location, parts, locations),
                false => Cost::ZERO,
            };
            match locked.cell(part, *location) {
                Some(cell) => {
                    cell.prepare(part.limit, now, self.budget_of(part.space(), *location));
                    cell.look(part.limit, now, cost)
                }
                None => part.limit.limit().look(None, Holds::NONE, &part.limit.moment(now), cost),
            }
        });
        verdicts.collect()
    }

    /// One verdict per charge: charges that were summed share one verdict.
    fn per_charge(
        &self,
        call: &Call<'_>,
        parts: &CellCharges<'_>,
        verdicts: &SmallVec<[Verdict; 2]>,
        decision: &mut Decision,
    ) {
        for (i, charge) in call.charges.iter().enumerate() {
            let index = if parts.len() == call.charges.len() {
                Some(i)
            } else {
                let fingerprint = fingerprint(charge.limit.tag(), charge.key);
                parts.iter().position(|part| part.fingerprint == fingerprint)
            };
            decision.push(charge.limit, verdicts[index.unwrap_or(0)]);
        }
    }

    /// The earlier decision under this id. That of a hold counts as long as the hold is active:
    /// after that, its permits are gone.
    fn earlier_decision(
        &self,
        idempotency: &IdempotencyLookup,
        call: &Call<'_>,
        parts: &CellCharges<'_>,
        locked: &mut LockedShards<'_>,
        now: Micros,
    ) -> Option<Result<Decision, EngineError>> {
        let earlier = idempotency.find(locked, now)?;
        if let (Op::Hold(_), Ok(Some(id))) = (call.op, earlier.as_ref().map(|d| d.hold())) {
            let enforced = parts.iter().filter(|part| !part.is_shadow());
            let mut held = enforced.filter(|part| part.is_held_by(call.op));
            let is_active = held.all(|part| {
                let location = locked.locate(part, Op::Peek, now).unwrap_or(CellLocation::Own);
                locked.cell(part, location).is_some_and(|cell| cell.has_active_hold(id.get(), now))
            });
            if !is_active {
                idempotency.forget(locked);
                return None;
            }
        }
        Some(earlier)
    }

    fn idempotency_lookup(&self, call: &Call<'_>, id: IdempotencyKey<'_>) -> IdempotencyLookup {
        let op = match call.op {
            // The id of a hold is random in every attempt. What a quantity costs is compared below.
            Op::Hold(hold) => Op::Hold(HoldSpec { id: HoldId::from(0), quantity: None, ..hold }),
            // A peek with an id returns the decision of the check with that id.
            Op::Peek => Op::Check,
            op => op,
        };
        // The request, not the limits it was charged to: the limit of a rule may have changed.
        let requested = call.charges.iter().filter(|charge| charge.limit.is_first());
        let requested = requested.map(|charge| {
            let quantity = call.op.quantity().map(|quantity| {
                let per_unit = quantity.per_unit(charge.limit.state(), charge.key);
                (quantity.min, quantity.want, per_unit.parts())
            });
            (charge.limit.rule(), charge.key, charge.cost, quantity)
        });
        let requested: Vec<_> = requested.collect();
        let first = call.charges.first().map(|charge| (charge.limit.rule(), charge.key));
        let rule = RuleNumber::of(first.map_or("", |(rule, _)| rule));
        IdempotencyLookup {
            shard_key: self.fingerprints.short(("idempotency", first)),
            name: self.fingerprints.of(("idempotency", first, id)),
            request: rule.in_low_bits_of(self.fingerprints.short((op, requested))),
            rule,
        }
    }
}

/// Replaces the limits that come with the call by the engine's instances.
fn use_instances<'a>(parts: &mut CellCharges<'a>, instances: &'a [Arc<RuleLimit>]) {
    for part in parts.iter_mut().filter(|part| part.limit.is_adhoc()) {
        let instance = instances.iter().find(|instance| ***instance == **part.limit);
        part.limit = instance.unwrap_or(part.limit);
    }
}

/// The verdict of a part that was written: what it takes is decided before.
fn after_write(op: Op<'_>, before: Verdict, after: Verdict) -> Verdict {
    let Verdict { remaining, reset_after, .. } = after;
    if op.takes() { Verdict { remaining, reset_after, ..before } } else { after }
}

/// Whether an operation changes states.
fn writes(op: Op<'_>, allowed: bool) -> bool {
    match op {
        Op::Check | Op::Hold(_) => allowed,
        Op::Record | Op::Refund | Op::Reset => true,
        Op::Peek | Op::Settle { .. } | Op::Renew { .. } | Op::Extend { .. } => false,
    }
}

/// Stores a hold and returns its id. An entry whose `concurrency` limits are all full shadow limits
/// holds nothing.
fn store_hold<'a, 'p: 'a>(
    holds: &mut LockedHolds<'_>,
    op: Op<'_>,
    parts: impl Iterator<Item = (&'a CellCharge<'p>, Cost)>,
    now: Micros,
) -> Option<HoldId> {
    let Op::Hold(spec) = op else { return None };
    let HoldSpec { id, ttl, .. } = spec;
    let cell = |(part, first_cost): (&CellCharge<'p>, Cost)| HeldCell {
        limit: part.limit.clone(),
        fingerprint: part.fingerprint,
        first_cost,
        cost: part.cost,
        expiry: spec.holds(part.limit).then(|| spec.expiry_of(part.limit)),
        actual: Cost::ZERO,
        charged: Cost::ZERO,
    };
    let cells: SmallVec<[HeldCell; 1]> = parts.map(cell).collect();
    let is_per_request = op.is_per_request();
    if cells.is_empty() && is_per_request {
        return None;
    }
    let forget_at = now.saturating_add(ttl).saturating_add(HoldId::RETENTION);
    let (settled, rule) = (None, holds.rule);
    holds.insert(id, StoredHold { cells, is_per_request, settled, forget_at, rule });
    Some(id)
}

/// Where the record of an idempotent call is stored, and what it must match.
struct IdempotencyLookup {
    /// The fingerprint that chooses the shard: that of the first rule and key.
    shard_key: u64,
    name: u128,
    request: u64,
    rule: RuleNumber,
}

impl IdempotencyLookup {
    /// Entries visited when one is stored.
    const SWEEP_ON_INSERT: usize = 4;
    /// This part of what ids use is made free when the oldest have to go.
    const LEFT_TO_OTHERS: usize = 64;

    fn table<'t>(&self, locked: &'t mut LockedShards<'_>) -> &'t mut IdTable {
        &mut locked.shard(self.shard_key).ids
    }

    /// The earlier decision, or the refusal of another request with the same id.
    fn find(
        &self,
        locked: &mut LockedShards<'_>,
        now: Micros,
    ) -> Option<Result<Decision, EngineError>> {
        let table = self.table(locked);
        let record = table.get_mut(self.name)?;
        if record.has_expired(now) {
            table.remove(self.name);
            return None;
        }
        Some(if record.request == self.request {
            Ok(record.decision.decision().into_repeated())
        } else {
            Err(Refusal::IdReused.into())
        })
    }

    fn forget(&self, locked: &mut LockedShards<'_>) {
        self.table(locked).remove(self.name);
    }

    /// Makes room for the result of a call. Without room, the oldest ids are forgotten before their
    /// time: those of this shard and, if they are too young, those of any other. If the rule has
    /// its share, they are its own.
    fn make_room(
        &self,
        memory: &Memory,
        op: Op<'_>,
        verdicts: usize,
        locked: &mut LockedShards<'_>,
        now: Micros,
    ) -> Result<(), EngineError> {
        let is_small = verdicts == 1 && matches!(op, Op::Check | Op::Record);
        let heap = if is_small { 0 } else { StoredDecision::full_bytes(verdicts) };
        self.table(locked).remove_expired(Self::SWEEP_ON_INSERT, now);
        let budget = &memory.budgets.ids;
        let (used, records) = (budget.used(), budget.records(self.rule));
        loop {
            let bytes = self.table(locked).growth() + heap;
            let has_bytes = budget.has_room_since(used, bytes);
            if has_bytes && budget.has_share_since(records, self.rule) {
                break;
            }
            let only = has_bytes.then_some(self.rule);
            if only.is_some() {
                self.table(locked).pass_over_others(now, self.rule);
            }
            let evicted = self.table(locked).evict(now, only);
            let evicted = evicted.or_else(|| locked.evict_ids(only, now));
            let Some(retention) = evicted.or_else(|| memory.evict_ids(only, now)) else {
                memory.id_retention.store(IdTable::MIN_RETENTION.get(), Ordering::Relaxed);
                return Err(budget.refuse(now));
            };
            memory.count_evicted_ids(retention, now);
        }
        // A little is left to others, which may be unable to lock the shards that have old ids.
        if budget.room() < budget.used() / Self::LEFT_TO_OTHERS
            && let Some(retention) = self.table(locked).evict(now, None)
        {
            memory.count_evicted_ids(retention, now);
        }
        Ok(())
    }

    fn store(&self, locked: &mut LockedShards<'_>, now: Micros, decision: &Decision) {
        let expires = now.saturating_add(IdempotencyKey::TTL);
        let &Self { name, request, .. } = self;
        let decision = StoredDecision::new(decision);
        self.table(locked).insert(IdempotencyEntry { name, request, expires, decision });
    }
}
