//! Holds: permits that are reserved and not yet charged.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use crate::many_holds::ManyHolds;
use crate::{Cost, Micros};

/// What happens to a hold that expires before it is settled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Expiry {
    /// It is released without a charge: a reservation.
    Release,
    /// It is charged at its deadline, because the work may have been done: a lease.
    Charge,
}

/// Permits held and not yet charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    /// Identifies the hold. Unique per state.
    pub id: u128,
    /// How many; at least 1.
    pub cost: Cost,
    /// When it expires. A hold with the deadline [`Micros::MAX`] never expires.
    pub deadline: Micros,
    /// For how long it was granted. A clock that steps back extends no hold beyond that.
    pub ttl: Micros,
    /// What happens at the deadline.
    pub expiry: Expiry,
}

impl Hold {
    /// Has it expired? A deadline of [`Micros::MAX`] was saturated and is never reached.
    pub(crate) fn has_ended(&self, now: Micros) -> bool {
        self.deadline <= now && !self.is_endless()
    }

    pub(crate) fn is_endless(&self) -> bool {
        self.deadline == Micros::MAX
    }

    /// The permits that are charged at the deadline.
    fn charged(&self) -> u64 {
        if self.expiry == Expiry::Charge { self.cost.get() } else { 0 }
    }
}

/// The holds on one state.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Holds {
    list: HoldList,
    held: u64,
    /// Permits that are charged at a deadline.
    charging: u128,
    /// No hold was granted after this instant.
    latest_grant: Micros,
}

/// Most keys have few holds, and then a list takes the least memory.
#[derive(Clone, PartialEq, Eq, Debug)]
enum HoldList {
    /// By deadline.
    Few(Vec<Hold>),
    Many(Box<ManyHolds>),
}

impl Default for HoldList {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Holds {
    /// No holds.
    pub const NONE: &'static Self =
        &Self { list: HoldList::Few(Vec::new()), held: 0, charging: 0, latest_grant: Micros::ZERO };

    /// Up to this many holds on one state, each ends exactly at its deadline. With more, deadlines
    /// are rounded up by at most 1/64 of the TTL, so that a decision visits at most some hundred
    /// different ones.
    pub const MAX_EXACT: usize = 512;

    /// Are there no holds?
    pub fn is_empty(&self) -> bool {
        match &self.list {
            HoldList::Few(few) => few.is_empty(),
            HoldList::Many(many) => many.len() == 0,
        }
    }

    /// The hold of `id`, if it exists.
    pub fn get(&self, id: u128) -> Option<&Hold> {
        match &self.list {
            HoldList::Few(few) => few.iter().find(|hold| hold.id == id),
            HoldList::Many(many) => many.get(id),
        }
    }

    /// The holds, the next to expire first; in the order of their ids if there are more than
    /// [`MAX_EXACT`](Self::MAX_EXACT).
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        let (few, many) = match &self.list {
            HoldList::Few(few) => (few.as_slice(), None),
            HoldList::Many(many) => ([].as_slice(), Some(many)),
        };
        few.iter().chain(many.into_iter().flat_map(|many| many.iter()))
    }

    /// The sum of all permits held.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Adds a hold.
    pub fn insert(&mut self, hold: Hold) {
        self.held = self.held.saturating_add(hold.cost.get());
        self.charging += u128::from(hold.charged());
        self.latest_grant = self.latest_grant.max(hold.deadline.saturating_sub(hold.ttl));
        match &mut self.list {
            HoldList::Few(few) if few.len() < Self::MAX_EXACT => {
                let place = few.partition_point(|h| h.deadline <= hold.deadline);
                few.insert(place, hold);
            }
            HoldList::Few(few) => {
                let mut many = ManyHolds::of(mem::take(few));
                many.insert(hold);
                self.list = HoldList::Many(Box::new(many));
            }
            HoldList::Many(many) => many.insert(hold),
        }
    }

    /// Removes the hold of `id`, if it exists.
    pub fn remove(&mut self, id: u128) -> Option<Hold> {
        let hold = match &mut self.list {
            HoldList::Few(few) => {
                let place = few.iter().position(|hold| hold.id == id)?;
                few.remove(place)
            }
            HoldList::Many(many) => many.remove(id)?,
        };
        self.count_without(&HoldEnd::of(&hold));
        self.simplify();
        Some(hold)
    }

    /// Removes the holds that are released at their deadline. Those that are charged stay: their
    /// permits are being spent.
    pub fn release(&mut self) {
        let all: Vec<Hold> = self.iter().copied().collect();
        let latest_grant = self.latest_grant;
        *self = Self { latest_grant, ..Self::default() };
        let stay = all.into_iter().filter(|hold| hold.expiry == Expiry::Charge);
        stay.for_each(|hold| self.insert(hold));
    }

    /// Removes the expired holds, the first to expire first.
    pub(crate) fn take_ended(&mut self, now: Micros) -> Vec<HoldEnd> {
        let ended: Vec<HoldEnd> = match &mut self.list {
            HoldList::Few(few) => {
                let ended = few.partition_point(|hold| hold.has_ended(now));
                few.drain(..ended).map(|hold| HoldEnd::of(&hold)).collect()
            }
            HoldList::Many(many) => many.take_ended(now),
        };
        ended.iter().for_each(|end| self.count_without(end));
        self.simplify();
        ended
    }

    fn count_without(&mut self, end: &HoldEnd) {
        self.held = self.held.saturating_sub(end.held);
        self.charging -= u128::from(end.charged);
    }

    /// Returns to a list if few holds are left.
    fn simplify(&mut self) {
        let HoldList::Many(many) = &self.list else { return };
        if many.len() <= Self::MAX_EXACT / 4 {
            let mut few: Vec<Hold> = many.iter().copied().collect();
            few.sort_by_key(|hold| hold.deadline);
            self.list = HoldList::Few(few);
        }
    }

    /// Will any of them be charged?
    pub(crate) fn any_charged(&self) -> bool {
        self.charging > 0
    }

    /// Was a hold granted after `now`? If so, the clock has stepped back.
    pub(crate) fn ahead(&self, now: Micros) -> bool {
        !self.is_empty() && self.latest_grant > now
    }

    /// Shortens every hold to at most its TTL from `now`.
    pub(crate) fn rebase(&mut self, now: Micros) {
        match &mut self.list {
            HoldList::Few(few) => {
                for hold in &mut *few {
                    hold.deadline = hold.deadline.min(now.saturating_add(hold.ttl));
                }
                few.sort_by_key(|hold| hold.deadline);
            }
            HoldList::Many(many) => many.rebase(now),
        }
        self.latest_grant = now;
    }

    /// The ends of the holds as of `now`.
    pub(crate) fn ends(&self, now: Micros) -> HoldEnds<'_> {
        let is_ahead = self.ahead(now);
        match &self.list {
            HoldList::Few(few) if !is_ahead => HoldEnds::Each(Cow::Borrowed(few)),
            HoldList::Many(many) if !is_ahead => HoldEnds::Summed(Cow::Borrowed(many.ends())),
            _ => {
                let mut copy = self.clone();
                copy.rebase(now);
                match copy.list {
                    HoldList::Few(few) => HoldEnds::Each(Cow::Owned(few)),
                    HoldList::Many(many) => HoldEnds::Summed(Cow::Owned(many.ends().to_vec())),
                }
            }
        }
    }

    /// Bytes on the heap, beyond the size of the value itself.
    pub fn heap_bytes(&self) -> usize {
        match &self.list {
            HoldList::Few(few) => few.capacity() * size_of::<Hold>(),
            HoldList::Many(many) => size_of::<ManyHolds>() + many.heap_bytes(),
        }
    }

    /// Additional bytes that the next hold will allocate, at most.
    pub fn growth(&self) -> usize {
        match &self.list {
            HoldList::Few(few) if few.len() < few.capacity() => 0,
            HoldList::Few(few) if few.len() < Self::MAX_EXACT => {
                few.capacity().max(4) * size_of::<Hold>()
            }
            HoldList::Few(_) => size_of::<ManyHolds>() + ManyHolds::FIRST_BYTES,
            HoldList::Many(many) => many.growth(),
        }
    }
}

/// Permits that are held until the same deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HoldEnd {
    pub(crate) deadline: Micros,
    pub(crate) held: u64,
    /// Those of them that are charged at the deadline.
    pub(crate) charged: u64,
    /// How many holds they are of.
    pub(crate) holds: usize,
}

impl HoldEnd {
    pub(crate) fn of(hold: &Hold) -> Self {
        let held = hold.cost.get();
        Self { deadline: hold.deadline, held, charged: hold.charged(), holds: 1 }
    }

    pub(crate) fn has_ended(&self, now: Micros) -> bool {
        self.deadline <= now && !self.is_endless()
    }

    pub(crate) fn is_endless(&self) -> bool {
        self.deadline == Micros::MAX
    }

    /// Adds what ends at the same deadline.
    pub(crate) fn add(&mut self, other: &Self) {
        self.held = self.held.saturating_add(other.held);
        self.charged = self.charged.saturating_add(other.charged);
        self.holds += other.holds;
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        self.held = self.held.saturating_sub(other.held);
        self.charged = self.charged.saturating_sub(other.charged);
        self.holds -= other.holds;
    }
}

/// The ends of all holds on a state, the next one first.
#[derive(Clone)]
pub(crate) enum HoldEnds<'a> {
    /// One for each hold.
    Each(Cow<'a, [Hold]>),
    /// Those of one deadline are one.
    Summed(Cow<'a, [HoldEnd]>),
}

impl HoldEnds<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Each(holds) => holds.len(),
            Self::Summed(ends) => ends.len(),
        }
    }

    pub(crate) fn get(&self, index: usize) -> Option<HoldEnd> {
        match self {
            Self::Each(holds) => holds.get(index).map(HoldEnd::of),
            Self::Summed(ends) => ends.get(index).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(id: u128, deadline: u64) -> Hold {
        let (cost, ttl) = (Cost::ONE, Micros::new(10));
        Hold { id, cost, deadline: Micros::new(deadline), ttl, expiry: Expiry::Release }
    }

    #[test]
    fn holds_end_by_deadline_and_then_in_the_order_they_were_granted() {
        let mut holds = Holds::default();
        for (id, deadline) in [(1, 50), (2, 20), (3, 50), (4, 20), (5, 10)] {
            holds.insert(hold(id, deadline));
        }
        let order: Vec<u128> = holds.iter().map(|hold| hold.id).collect();
        assert_eq!(order, [5, 2, 4, 1, 3]);
        let ended = holds.take_ended(Micros::new(20));
        let ended: Vec<u64> = ended.iter().map(|end| end.deadline.get()).collect();
        assert_eq!((ended.as_slice(), holds.held()), ([10, 20, 20].as_slice(), 2));
    }

    #[test]
    fn none_equals_the_default() {
        assert_eq!(Holds::NONE, &Holds::default());
        assert!(Holds::NONE.is_empty() && !Holds::NONE.any_charged());
        assert_eq!((Holds::NONE.held(), Holds::NONE.heap_bytes()), (0, 0));
    }

    #[test]
    fn growth_predicts_what_the_next_hold_allocates() {
        let mut holds = Holds::default();
        for id in 0..100 {
            let predicted = holds.heap_bytes() + holds.growth();
            holds.insert(hold(id, 5));
            assert_eq!(holds.heap_bytes(), predicted, "hold {id}");
        }
    }

    #[test]
    fn release_keeps_the_holds_that_are_charged_at_their_deadline() {
        let mut holds = Holds::default();
        holds.insert(hold(1, 20));
        holds.insert(Hold { expiry: Expiry::Charge, cost: Cost::MAX, ..hold(2, 10) });
        holds.insert(hold(3, 30));
        holds.release();
        assert_eq!((holds.iter().count(), holds.held()), (1, Cost::MAX.get()));
        assert!(holds.any_charged());
        assert!(holds.remove(2).is_some());
        assert!(!holds.any_charged() && holds.is_empty());
    }
}
