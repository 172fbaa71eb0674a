//! Holds: permits that are reserved and not yet charged.

use alloc::borrow::Cow;
use alloc::vec::Vec;

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
}

/// The holds on one state, by deadline.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Holds {
    by_deadline: Vec<Hold>,
    held: u64,
    /// How many of them are charged at their deadline.
    charging: usize,
    /// No hold was granted after this instant.
    latest_grant: Micros,
}

impl Holds {
    /// No holds.
    pub const NONE: &'static Self =
        &Self { by_deadline: Vec::new(), held: 0, charging: 0, latest_grant: Micros::ZERO };

    /// Are there no holds?
    pub fn is_empty(&self) -> bool {
        self.by_deadline.is_empty()
    }

    /// The holds, the next to expire first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Hold> {
        self.by_deadline.iter()
    }

    /// The sum of all permits held.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Adds a hold.
    pub fn insert(&mut self, hold: Hold) {
        let place = self.by_deadline.partition_point(|h| h.deadline <= hold.deadline);
        self.held = self.held.saturating_add(hold.cost.get());
        self.charging += usize::from(hold.expiry == Expiry::Charge);
        self.latest_grant = self.latest_grant.max(hold.deadline.saturating_sub(hold.ttl));
        self.by_deadline.insert(place, hold);
    }

    /// Removes the hold of `id`, if it exists.
    pub fn remove(&mut self, id: u128) -> Option<Hold> {
        let place = self.by_deadline.iter().position(|hold| hold.id == id)?;
        let hold = self.by_deadline.remove(place);
        self.count_without(&hold);
        Some(hold)
    }

    /// Removes the holds that are released at their deadline. Those that are charged stay: their
    /// permits are being spent.
    pub fn release(&mut self) {
        let (stay, go) = self.by_deadline.drain(..).partition(|h| h.expiry == Expiry::Charge);
        self.by_deadline = stay;
        let released: Vec<Hold> = go;
        released.iter().for_each(|hold| self.count_without(hold));
    }

    /// Removes the expired holds, the first to expire first.
    pub(crate) fn take_ended(&mut self, now: Micros) -> Vec<Hold> {
        let ended = self.by_deadline.partition_point(|hold| hold.has_ended(now));
        let ended: Vec<Hold> = self.by_deadline.drain(..ended).collect();
        ended.iter().for_each(|hold| self.count_without(hold));
        ended
    }

    fn count_without(&mut self, hold: &Hold) {
        self.held = self.held.saturating_sub(hold.cost.get());
        self.charging -= usize::from(hold.expiry == Expiry::Charge);
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
        for hold in &mut self.by_deadline {
            hold.deadline = hold.deadline.min(now.saturating_add(hold.ttl));
        }
        self.by_deadline.sort_by_key(|hold| hold.deadline);
        self.latest_grant = now;
    }

    /// The holds at `now`, the next to expire first.
    pub(crate) fn rebased(&self, now: Micros) -> Cow<'_, [Hold]> {
        if !self.ahead(now) {
            return Cow::Borrowed(&self.by_deadline);
        }
        let mut copy = self.clone();
        copy.rebase(now);
        Cow::Owned(copy.by_deadline)
    }

    /// Bytes on the heap, beyond the size of the value itself.
    pub fn heap_bytes(&self) -> usize {
        self.by_deadline.capacity() * size_of::<Hold>()
    }

    /// Additional bytes that the next hold will allocate.
    pub fn growth(&self) -> usize {
        let full = self.by_deadline.len() == self.by_deadline.capacity();
        if full { self.by_deadline.capacity().max(4) * size_of::<Hold>() } else { 0 }
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
        let ended: Vec<u128> = holds.take_ended(Micros::new(20)).iter().map(|h| h.id).collect();
        assert_eq!((ended.as_slice(), holds.held()), ([5, 2, 4].as_slice(), 2));
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
        assert_eq!((holds.iter().len(), holds.held()), (1, Cost::MAX.get()));
        assert!(holds.any_charged());
        assert!(holds.remove(2).is_some());
        assert!(!holds.any_charged() && holds.is_empty());
    }
}
