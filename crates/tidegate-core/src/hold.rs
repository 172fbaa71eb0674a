//! Holds: permits that are set aside and not yet charged.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use crate::{Cost, Micros};

/// What becomes of a hold that nobody settled in time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Expiry {
    /// It is gone, as if it had never been: a reservation.
    Release,
    /// It is charged at its deadline, since the work may have been done: a lease.
    Charge,
}

/// Permits that one caller has set aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    /// Who holds them. Unique per state.
    pub id: u128,
    /// How many; at least 1.
    pub cost: Cost,
    /// Until when. A hold that would last beyond the end of time lasts for ever.
    pub deadline: Micros,
    /// For how long they were granted; a clock that stepped back prolongs no hold beyond it.
    pub ttl: Micros,
    /// What happens at the deadline.
    pub expiry: Expiry,
}

impl Hold {
    /// Is it over? A deadline at the end of time was cut short, and never comes.
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

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.by_deadline.is_empty()
    }

    /// The holds, the next to expire first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Hold> {
        self.by_deadline.iter()
    }

    /// All the permits held.
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

    /// Removes the hold of `id`, if it is there.
    pub fn remove(&mut self, id: u128) -> Option<Hold> {
        let place = self.by_deadline.iter().position(|hold| hold.id == id)?;
        let hold = self.by_deadline.remove(place);
        self.count_without(&hold);
        Some(hold)
    }

    /// Removes the holds that are released at their deadline. Those that are charged stay: what they
    /// stand for is being spent.
    pub fn release(&mut self) {
        let (stay, go) = self.by_deadline.drain(..).partition(|h| h.expiry == Expiry::Charge);
        self.by_deadline = stay;
        let released: Vec<Hold> = go;
        released.iter().for_each(|hold| self.count_without(hold));
    }

    /// Removes the holds that have ended, the first to end first.
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

    /// Was a hold granted after `now`? Then the clock has stepped back.
    pub(crate) fn ahead(&self, now: Micros) -> bool {
        !self.is_empty() && self.latest_grant > now
    }

    /// Lets no hold last longer from `now` than it was granted for.
    pub(crate) fn rebase(&mut self, now: Micros) {
        for hold in &mut self.by_deadline {
            hold.deadline = hold.deadline.min(now.saturating_add(hold.ttl));
        }
        self.by_deadline.sort_by_key(|hold| hold.deadline);
        self.latest_grant = now;
    }

    /// The holds as they are at `now`, the next to expire first.
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

    /// Bytes that the next hold will allocate on top.
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
    fn none_is_what_a_key_without_holds_has() {
        assert_eq!(Holds::NONE, &Holds::default());
        assert!(Holds::NONE.is_empty() && !Holds::NONE.any_charged());
        assert_eq!((Holds::NONE.held(), Holds::NONE.heap_bytes()), (0, 0));
    }

    #[test]
    fn growth_foretells_what_the_next_hold_allocates() {
        let mut holds = Holds::default();
        for id in 0..100 {
            let foretold = holds.heap_bytes() + holds.growth();
            holds.insert(hold(id, 5));
            assert_eq!(holds.heap_bytes(), foretold, "hold {id}");
        }
    }

    #[test]
    fn a_reset_releases_what_would_be_released_and_keeps_what_will_be_charged() {
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
