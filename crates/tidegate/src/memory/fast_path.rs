//! Fast path: checks on packed states, which nearly all limits use, and on existing cells.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Micros, Packed, Verdict};

use super::cell::Space;
use super::packed_table::{LimitNumber, PackedEntry};
use super::shard::Shard;
use super::state::Memory;
use crate::fingerprint::{fingerprint, fingerprint_of};
use crate::sync::MutexGuard;
use crate::{Call, Charge, Decision, Key, Op, RuleLimit, Source};

impl Memory {
    /// Decides a call if the fast path covers it. `None` has changed nothing: for calls other than
    /// checks, for keys whose state another limit has written, and for new keys without a free
    /// slot.
    pub(super) fn try_fast(&self, call: &Call<'_>) -> Option<Decision> {
        match (call.op, call.charges, call.idempotency_key) {
            (Op::Check, [charge], None) => {
                Some(Decision::of_one(Source::Memory, self.try_packed(charge)?))
            }
            (Op::Check, charges @ [_, ..], None) if charges.len() <= MAX_FAST_CHARGES => {
                Some(Decision::new(Source::Memory, self.try_packed_many(charges)?))
            }
            _ => None,
        }
    }

    /// The charge of the most common call: a check of one limit, whose number is known, and of a
    /// key of one part.
    #[inline(always)]
    pub(super) fn plain_charge<'a>(&self, call: &Call<'a>) -> Option<PlainCharge<'a>> {
        let (Op::Check, [charge], None) = (call.op, call.charges, call.idempotency_key) else {
            return None;
        };
        let limit: &RuleLimit = charge.limit;
        let part = charge.key.only().filter(|part| part.len() <= Key::MAX_LEN)?;
        if charge.caller.is_some() || limit.is_shadow() {
            return None;
        }
        let number = self.registry.known(limit)?;
        let fingerprint = fingerprint_of(limit.tag(), part);
        Some(PlainCharge { limit, number, fingerprint, cost: charge.cost })
    }

    /// Fetches the home bucket of a charge, and does not wait for it.
    pub(super) fn prefetch(&self, charge: &PlainCharge<'_>) {
        let shard = self.shard(self.shard_of(charge.fingerprint));
        shard.packed_in(Space::of(charge.limit)).prefetch_home(charge.fingerprint);
    }

    /// The most common check: a plain bucket, of a key whose entry is in its home bucket.
    /// Everything else is left to the slower paths from the start: this function is short, so that
    /// a CPU can begin the next check while the memory of this one is fetched.
    #[inline(always)]
    pub(super) fn try_bucket_in_home_slot(&self, charge: &PlainCharge<'_>) -> Option<Verdict> {
        let &PlainCharge { limit, number, fingerprint, cost } = charge;
        let mut shard = self.shard(self.shard_of(fingerprint));
        // Read under the lock: an entry never sees time run backwards because a thread was slow.
        let now = self.now();
        let words = shard.packed(Space::of(limit)).words_at_home(fingerprint)?;
        let state = PackedEntry::state_of(*words, number)?;
        let (verdict, left) = limit.limit().decide_plainly(state, now, cost)?;
        if left != state {
            *words = PackedEntry { limit: number, state: left }.to_words();
        }
        Some(verdict)
    }

    fn try_packed(&self, charge: &Charge<'_>) -> Option<Verdict> {
        let Some(packed) = self.packed_charge(charge) else { return self.try_cell(charge) };
        let PackedCharge { limit, number, fingerprint, cost } = packed;
        let mut shard = self.shard(self.shard_of(fingerprint));
        let now = self.now();
        let table = shard.packed(Space::of(limit));
        let Some(index) = table.find(fingerprint) else {
            return self.insert_packed(&mut shard, packed, now);
        };
        let entry = table.at(index).filter(|entry| entry.limit == number)?;
        let (verdict, left) = limit.limit().decide(Some(entry.state), &limit.moment(now), cost)?;
        match left.filter(|_| verdict.reset_after > Micros::ZERO) {
            Some(state) if state == entry.state => {}
            Some(state) => table.set(index, PackedEntry { state, ..entry }),
            None => table.remove(index),
        }
        Some(verdict)
    }

    /// A limit whose state cannot be packed, on a key that has a cell under this very limit.
    fn try_cell(&self, charge: &Charge<'_>) -> Option<Verdict> {
        let &Charge { limit, key, cost, caller } = charge;
        let has_cells = !limit.limit().packs() && limit.limit().lease().is_none();
        if !has_cells || limit.is_shadow() || cost.is_zero() || !is_short(key, caller) {
            return None;
        }
        let fingerprint = fingerprint(limit.tag(), key);
        let mut shard = self.shard(self.shard_of(fingerprint));
        let now = self.now();
        let cell = shard.cells.get_mut(fingerprint.into())?;
        if !Arc::ptr_eq(cell.limit(), limit)
            || !self.budgets.state.has_room_for(cell.growth(caller))
        {
            return None;
        }
        cell.bring_to(limit, now, &self.budgets.state);
        let verdict = cell.look(limit, now, cost);
        if !verdict.allowed {
            return Some(verdict);
        }
        cell.charge(now, cost, caller, &self.budgets.state);
        let Verdict { remaining, reset_after, .. } = cell.look(limit, now, Cost::ZERO);
        Some(Verdict { remaining, reset_after, ..verdict })
    }

    /// Inserts the state of a new key.
    fn insert_packed(
        &self,
        shard: &mut Shard,
        charge: PackedCharge<'_>,
        now: Micros,
    ) -> Option<Verdict> {
        let PackedCharge { limit, number, fingerprint, cost } = charge;
        let space = Space::of(limit);
        let has_slot = shard.packed(space).has_slot() && self.is_spacious(space);
        if self.is_overflowing(space) || shard.has_cell(space, fingerprint) || !has_slot {
            return None;
        }
        let (verdict, left) = limit.limit().decide(None, &limit.moment(now), cost)?;
        if let Some(state) = left.filter(|_| verdict.reset_after > Micros::ZERO) {
            let entry = PackedEntry { limit: number, state };
            shard.insert_packed(limit, fingerprint, entry, &self.registry, now);
        }
        Some(verdict)
    }

    /// Evaluates all charges, then writes all or none.
    fn try_packed_many(&self, charges: &[Charge<'_>]) -> Option<SmallVec<[Verdict; 2]>> {
        let parts: SmallVec<[PackedCharge<'_>; 2]> =
            charges.iter().map(|charge| self.packed_charge(charge)).collect::<Option<_>>()?;
        // Charges on one state are summed, which the general path does.
        let is_first = |(i, part): (usize, &PackedCharge<'_>)| {
            parts.iter().position(|other| other.fingerprint == part.fingerprint) == Some(i)
        };
        if !parts.iter().enumerate().all(is_first) {
            return None;
        }
        let mut shards = self.shards_of(&parts);
        let now = self.now();
        let mut evaluated: SmallVec<[PackedVerdict; 2]> = SmallVec::new();
        for part in &parts {
            let shard = shard_of(&mut shards, self, part);
            // Several new keys may need slots of one shard.
            let space = Space::of(part.limit);
            let has_slots = shard.packed(space).growth(parts.len()) == 0 && self.is_spacious(space);
            evaluated.push(self.evaluate(part, shard, has_slots, now)?);
        }
        let allowed = evaluated.iter().all(|one| one.after.0.allowed);
        for (part, one) in parts.iter().zip(&evaluated) {
            let (verdict, left) = if allowed { one.after } else { one.before };
            let left = left.filter(|_| verdict.reset_after > Micros::ZERO);
            let shard = shard_of(&mut shards, self, part);
            let table = shard.packed(Space::of(part.limit));
            let entry = |state| PackedEntry { limit: part.number, state };
            match (table.find(part.fingerprint), left) {
                (_, left) if left == one.found => {}
                (Some(index), Some(state)) => table.set(index, entry(state)),
                (Some(index), None) => table.remove(index),
                (None, Some(state)) => {
                    let (limit, registry) = (part.limit, &self.registry);
                    shard.insert_packed(limit, part.fingerprint, entry(state), registry, now);
                }
                (None, None) => {}
            }
        }
        let verdict = |one: &PackedVerdict| match allowed {
            true => one.after.0,
            // Nothing was charged: the remaining permits are those before the call.
            false => Verdict {
                remaining: one.before.0.remaining,
                reset_after: one.before.0.reset_after,
                ..one.after.0
            },
        };
        Some(evaluated.iter().map(verdict).collect())
    }

    /// The verdict for a charge and the present state; `None` if the fast path does not cover it.
    fn evaluate(
        &self,
        part: &PackedCharge<'_>,
        shard: &Shard,
        has_slots: bool,
        now: Micros,
    ) -> Option<PackedVerdict> {
        let space = Space::of(part.limit);
        let table = shard.packed_in(space);
        let found = match table.find(part.fingerprint) {
            Some(index) => Some(table.at(index).filter(|entry| entry.limit == part.number)?.state),
            None if !has_slots || self.is_overflowing(space) => return None,
            None if shard.has_cell(space, part.fingerprint) => return None,
            None => None,
        };
        let (limit, at) = (part.limit.limit(), part.limit.moment(now));
        let before = limit.decide(found, &at, Cost::ZERO)?;
        Some(PackedVerdict { found, before, after: limit.decide(found, &at, part.cost)? })
    }

    /// Locks the shards of the charges, in the order of their numbers.
    fn shards_of(&self, parts: &[PackedCharge<'_>]) -> ShardGuards<'_> {
        let mut indices: SmallVec<[usize; 2]> =
            parts.iter().map(|part| self.shard_of(part.fingerprint)).collect();
        indices.sort_unstable();
        indices.dedup();
        indices.into_iter().map(|index| (index, self.shard(index))).collect()
    }

    fn packed_charge<'a>(&self, charge: &Charge<'a>) -> Option<PackedCharge<'a>> {
        let &Charge { limit, key, cost, caller } = charge;
        if limit.is_shadow() || !is_short(key, caller) {
            return None;
        }
        let number = self.registry.of(limit)?;
        Some(PackedCharge { limit, number, fingerprint: fingerprint(limit.tag(), key), cost })
    }
}

/// Whether key and caller are within the length bound.
fn is_short(key: Key<'_>, caller: Option<&str>) -> bool {
    key.is_valid() && caller.is_none_or(|caller| caller.len() <= Key::MAX_LEN)
}

/// Largest number of charges on the fast path.
const MAX_FAST_CHARGES: usize = 8;

/// A check that is most likely of a plain bucket, in its home slot.
#[derive(Clone, Copy)]
pub(super) struct PlainCharge<'a> {
    limit: &'a RuleLimit,
    number: LimitNumber,
    fingerprint: u64,
    cost: Cost,
}

/// A charge to a limit whose state is packed.
#[derive(Clone, Copy)]
struct PackedCharge<'a> {
    limit: &'a Arc<RuleLimit>,
    number: LimitNumber,
    fingerprint: u64,
    cost: Cost,
}

/// The verdicts for a cost of zero and for the cost, each with the state that results.
struct PackedVerdict {
    found: Option<Packed>,
    before: (Verdict, Option<Packed>),
    after: (Verdict, Option<Packed>),
}

type ShardGuards<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>;

fn shard_of<'l>(
    shards: &'l mut ShardGuards<'_>,
    memory: &Memory,
    part: &PackedCharge<'_>,
) -> &'l mut Shard {
    let index = memory.shard_of(part.fingerprint);
    let position = shards.iter().position(|(i, _)| *i == index).unwrap_or(0);
    &mut shards[position].1
}
