//! Checks that are quickly done: by limits whose states are two numbers, nearly all there are, and by others
//! of keys that have a cell.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Micros, Packed, Verdict};

use super::small::{Entry, LimitNumber};
use super::{Memory, Shard};
use crate::fingerprint::{fingerprint, fingerprint_of};
use crate::sync::MutexGuard;
use crate::{Call, Charge, Decision, Key, Op, RuleLimit, Source};

impl Memory {
    /// Slots looked at, in passing, when a new key comes: more than one, so that sweeping outruns
    /// inserting.
    pub(super) const SWEEP_IN_PASSING: usize = 8;

    /// Decides a call if that is quickly done. `None` leaves everything as it is: for calls that
    /// do more than check, for keys whose state another limit has written, and for those that have none yet
    /// and no slot for it.
    #[inline]
    pub(super) fn quick(&self, call: &Call<'_>) -> Option<Decision> {
        match (call.op, call.charges, call.once) {
            (Op::Check, [charge], None) => {
                let verdict = self.quick_one(charge)?;
                Some(Decision::of_one(Source::Memory, verdict))
            }
            (Op::Check, charges @ [_, ..], None) if charges.len() <= MOST => {
                Some(Decision::new(Source::Memory, self.quick_several(charges)?))
            }
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn quick_one(&self, charge: &Charge<'_>) -> Option<Verdict> {
        match self.quickest(charge) {
            Some(verdict) => Some(verdict),
            None => self.quick_with_care(charge),
        }
    }

    /// What most checks are: of a key that has an entry where it belongs, by a plain bucket. Whatever is
    /// different is left to others, from the beginning: there is little to do here, and a processor begins the
    /// next check while the memory of this one is fetched.
    #[inline(always)]
    fn quickest(&self, charge: &Charge<'_>) -> Option<Verdict> {
        let limit: &RuleLimit = charge.limit;
        let part = charge.key.only().filter(|part| part.len() <= Key::MAX_LEN)?;
        if charge.who.is_some() || limit.is_shadow() {
            return None;
        }
        let number = self.numbers.known(limit)?;
        let fingerprint = fingerprint_of(limit.tag(), part);
        let mut shard = self.shard(self.shard_of(fingerprint));
        // Read under lock: an entry never sees time run backwards because a thread was slow.
        let now = self.now();
        let words = shard.small.words_at_home(fingerprint)?;
        let state = Entry::state_of(*words, number)?;
        let (verdict, left) = limit.limit().decide_plainly(state, now, charge.cost)?;
        if left != state {
            *words = Entry { limit: number, state: left }.to_words();
        }
        Some(verdict)
    }

    #[inline(never)]
    fn quick_with_care(&self, charge: &Charge<'_>) -> Option<Verdict> {
        let Some(quick) = self.small_one(charge) else { return self.quick_cell(charge) };
        let Quick { limit, number, fingerprint, cost } = quick;
        let mut shard = self.shard(self.shard_of(fingerprint));
        let now = self.now();
        let Some(spot) = shard.small.find(fingerprint) else {
            return self.quick_new(&mut shard, quick, now);
        };
        let entry = shard.small.at(spot).filter(|entry| entry.limit == number)?;
        let (verdict, left) = limit.limit().decide(Some(entry.state), &limit.moment(now), cost)?;
        match left.filter(|_| verdict.reset_after > Micros::ZERO) {
            Some(state) if state == entry.state => {}
            Some(state) => shard.small.set(spot, Entry { state, ..entry }),
            None => shard.small.remove(spot),
        }
        Some(verdict)
    }

    /// By a limit that keeps more than two numbers, of a key that has a cell under this very limit.
    fn quick_cell(&self, charge: &Charge<'_>) -> Option<Verdict> {
        let &Charge { limit, key, cost, who } = charge;
        let has_cells = !limit.limit().packs() && limit.limit().lease().is_none();
        if !has_cells || limit.is_shadow() || cost.is_zero() || !is_short(key, who) {
            return None;
        }
        let fingerprint = fingerprint(limit.tag(), key);
        let mut shard = self.shard(self.shard_of(fingerprint));
        let now = self.now();
        let cell = shard.cells.get_mut(fingerprint.into())?;
        if !Arc::ptr_eq(cell.limit(), limit) || !self.budget.has_room_for(cell.growth(who)) {
            return None;
        }
        cell.bring_to(limit, now, &self.budget);
        let verdict = cell.look(now, cost);
        if !verdict.allowed {
            return Some(verdict);
        }
        cell.charge(now, cost, who, &self.budget);
        let Verdict { remaining, reset_after, .. } = cell.look(now, Cost::ZERO);
        Some(Verdict { remaining, reset_after, ..verdict })
    }

    /// The first of a key.
    fn quick_new(&self, shard: &mut Shard, quick: Quick<'_>, now: Micros) -> Option<Verdict> {
        let Quick { limit, number, fingerprint, cost } = quick;
        if self.is_overflowing() || shard.has_cell(fingerprint) || !shard.small.has_slot() {
            return None;
        }
        let (verdict, left) = limit.limit().decide(None, &limit.moment(now), cost)?;
        if let Some(state) = left.filter(|_| verdict.reset_after > Micros::ZERO) {
            shard.sweep_small(self, Self::SWEEP_IN_PASSING, now, Some((number, limit)));
            shard.small.insert(fingerprint, Entry { limit: number, state });
        }
        Some(verdict)
    }

    /// Looks at all, then writes all or nothing.
    fn quick_several(&self, charges: &[Charge<'_>]) -> Option<SmallVec<[Verdict; 2]>> {
        let parts: SmallVec<[Quick<'_>; 2]> =
            charges.iter().map(|charge| self.small_one(charge)).collect::<Option<_>>()?;
        // Those of one state are added up, which is for others to do.
        let is_first = |(i, part): (usize, &Quick<'_>)| {
            parts.iter().position(|other| other.fingerprint == part.fingerprint) == Some(i)
        };
        if !parts.iter().enumerate().all(is_first) {
            return None;
        }
        let mut shards = self.shards_of(&parts);
        let now = self.now();
        let mut looks: SmallVec<[Look; 2]> = SmallVec::new();
        for part in &parts {
            let shard = shard_of(&mut shards, self, part);
            // Each of several new keys may want a slot of one shard.
            let has_slots = shard.small.growth(parts.len()) == 0;
            looks.push(self.look_at(part, shard, has_slots, now)?);
        }
        let allowed = looks.iter().all(|look| look.after.0.allowed);
        for (part, look) in parts.iter().zip(&looks) {
            let (verdict, left) = if allowed { look.after } else { look.before };
            let left = left.filter(|_| verdict.reset_after > Micros::ZERO);
            let shard = shard_of(&mut shards, self, part);
            match (shard.small.find(part.fingerprint), left) {
                (_, left) if left == look.found => {}
                (Some(spot), Some(state)) => {
                    shard.small.set(spot, Entry { limit: part.number, state });
                }
                (Some(spot), None) => shard.small.remove(spot),
                (None, Some(state)) => {
                    let known = Some((part.number, &**part.limit));
                    shard.sweep_small(self, Self::SWEEP_IN_PASSING, now, known);
                    shard.small.insert(part.fingerprint, Entry { limit: part.number, state });
                }
                (None, None) => {}
            }
        }
        let verdict = |look: &Look| match allowed {
            true => look.after.0,
            // Nothing was charged: what remains is what there was.
            false => Verdict {
                remaining: look.before.0.remaining,
                reset_after: look.before.0.reset_after,
                ..look.after.0
            },
        };
        Some(looks.iter().map(verdict).collect())
    }

    /// What the limit of a part would say, and what there is now; `None` if it is not that simple.
    fn look_at(
        &self,
        part: &Quick<'_>,
        shard: &Shard,
        has_slots: bool,
        now: Micros,
    ) -> Option<Look> {
        let found = match shard.small.find(part.fingerprint) {
            Some(spot) => {
                Some(shard.small.at(spot).filter(|entry| entry.limit == part.number)?.state)
            }
            None if !has_slots || self.is_overflowing() || shard.has_cell(part.fingerprint) => {
                return None;
            }
            None => None,
        };
        let (limit, at) = (part.limit.limit(), part.limit.moment(now));
        let before = limit.decide(found, &at, Cost::ZERO)?;
        Some(Look { found, before, after: limit.decide(found, &at, part.cost)? })
    }

    /// Locks the shards of the parts in the order of their numbers.
    fn shards_of(&self, parts: &[Quick<'_>]) -> Shards<'_> {
        let mut indices: SmallVec<[usize; 2]> =
            parts.iter().map(|part| self.shard_of(part.fingerprint)).collect();
        indices.sort_unstable();
        indices.dedup();
        indices.into_iter().map(|index| (index, self.shard(index))).collect()
    }

    fn small_one<'a>(&self, charge: &Charge<'a>) -> Option<Quick<'a>> {
        let &Charge { limit, key, cost, who } = charge;
        if limit.is_shadow() || !is_short(key, who) {
            return None;
        }
        let number = self.numbers.of(limit)?;
        Some(Quick { limit, number, fingerprint: fingerprint(limit.tag(), key), cost })
    }
}

/// Is neither of them too long to be served?
fn is_short(key: Key<'_>, who: Option<&str>) -> bool {
    key.is_valid() && who.is_none_or(|who| who.len() <= Key::MAX_LEN)
}

/// The most charges that are decided quickly.
const MOST: usize = 8;

/// A charge to a limit that keeps two numbers.
#[derive(Clone, Copy)]
struct Quick<'a> {
    limit: &'a Arc<RuleLimit>,
    number: LimitNumber,
    fingerprint: u64,
    cost: Cost,
}

/// What a limit says about nothing and about the cost, each with the state that it leaves behind.
struct Look {
    found: Option<Packed>,
    before: (Verdict, Option<Packed>),
    after: (Verdict, Option<Packed>),
}

type Shards<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>;

fn shard_of<'l>(shards: &'l mut Shards<'_>, memory: &Memory, part: &Quick<'_>) -> &'l mut Shard {
    let index = memory.shard_of(part.fingerprint);
    let place = shards.iter().position(|(i, _)| *i == index).unwrap_or(0);
    &mut shards[place].1
}

impl Shard {
    /// Looks at the next `steps` small entries and drops those that have nothing more to say.
    /// Most are under the limit that is `known`.
    pub(super) fn sweep_small(
        &mut self,
        memory: &Memory,
        steps: usize,
        now: Micros,
        known: Option<(LimitNumber, &RuleLimit)>,
    ) {
        let recovered = |limit: &RuleLimit, entry: Entry| {
            let at = limit.moment(now);
            let look = limit.limit().decide(Some(entry.state), &at, Cost::ZERO);
            look.is_some_and(|(verdict, _)| verdict.reset_after == Micros::ZERO)
        };
        self.small.sweep(steps, |entry| match known {
            Some((number, limit)) if number == entry.limit => recovered(limit, entry),
            _ => memory.numbers.limit(entry.limit).is_some_and(|limit| recovered(&limit, entry)),
        });
    }
}
