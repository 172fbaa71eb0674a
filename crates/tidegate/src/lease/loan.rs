//! What the store has lent: a hold there, spent here.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Micros;

use super::subject::Subject;
use super::terms;
use crate::{Charge, HoldId};

/// A hold in the store that may be spent here.
pub(super) struct Loan {
    pub(super) id: HoldId,
    pub(super) granted: u64,
    pub(super) spent: u64,
    /// When it was asked for, by this process's own clock.
    pub(super) asked_at: Micros,
}

/// A loan that nobody spends from any more: what is due has to be told to the store.
pub(super) struct Ended {
    pub(super) subject: Arc<Subject>,
    pub(super) loan: Loan,
}

/// Those that have ended.
pub(super) type AllEnded = SmallVec<[Ended; 1]>;

/// What is lent to one key. What is spent comes from the first; the second takes its place.
pub(super) struct Loans {
    subject: Arc<Subject>,
    present: Option<Loan>,
    next: Option<Loan>,
    spent_at: Micros,
}

impl Loans {
    pub(super) fn new(charge: &Charge<'_>, now: Micros) -> Box<Self> {
        let subject = Arc::new(Subject::of(charge));
        Box::new(Self { subject, present: None, next: None, spent_at: now })
    }

    pub(super) fn subject(&self) -> &Arc<Subject> {
        &self.subject
    }

    /// The limit was made anew, and is the same.
    pub(super) fn goes_by(&mut self, charge: &Charge<'_>) {
        self.subject = Arc::new(Subject::of(charge));
    }

    /// Takes `cost` from the first, if it has so much, and says which that was.
    pub(super) fn spend(&mut self, cost: u64, now: Micros, ended: &mut AllEnded) -> Option<HoldId> {
        self.make_ready(cost, now, ended);
        let present = self.present.as_mut().filter(|loan| loan.left() >= cost)?;
        present.spent += cost;
        self.spent_at = now;
        Some(present.id)
    }

    /// Lets the next take the place of the present one, if that cannot pay or has lasted its time.
    fn make_ready(&mut self, cost: u64, now: Micros, ended: &mut AllEnded) {
        let is_over = |loan: &Loan| !loan.may_be_spent(now);
        if self.present.as_ref().is_some_and(is_over) || self.next.as_ref().is_some_and(is_over) {
            self.end_those(is_over, ended);
        }
        let pays = |loan: &Option<Loan>| loan.as_ref().is_some_and(|loan| loan.left() >= cost);
        let is_empty = self.present.as_ref().is_some_and(|loan| loan.left() == 0);
        if is_empty || !pays(&self.present) && pays(&self.next) {
            let present = self.present.take();
            self.has_ended(present, ended);
        }
    }

    /// Puts `cost` back to `id`; not if that has ended.
    pub(super) fn give_back(&mut self, id: HoldId, cost: u64) -> bool {
        let mut loans = [&mut self.present, &mut self.next].into_iter().flatten();
        let Some(loan) = loans.find(|loan| loan.id == id) else { return false };
        loan.spent = loan.spent.saturating_sub(cost);
        true
    }

    /// Takes one more, or gives it back if there is no place for it or its time is over.
    pub(super) fn put(&mut self, loan: Loan, now: Micros) -> Result<(), Loan> {
        let mut places = [&mut self.present, &mut self.next].into_iter();
        match places.find(|place| place.is_none()).filter(|_| loan.may_be_spent(now)) {
            Some(place) => *place = Some(loan),
            None => return Err(loan),
        }
        self.spent_at = now;
        Ok(())
    }

    /// Is it time to ask for one more: half of the only one is spent, or half of its time over?
    pub(super) fn needs_one_more(&self, now: Micros) -> bool {
        self.next.is_none() && self.present.as_ref().is_none_or(|loan| loan.is_half_gone(now))
    }

    /// Ends what has lasted its time, and all of it if nobody spends it.
    pub(super) fn tidy(&mut self, now: Micros, ended: &mut AllEnded) {
        let is_idle = now.saturating_sub(self.spent_at) >= terms::IDLE;
        self.end_those(|loan| is_idle || !loan.may_be_spent(now), ended);
    }

    /// Ends all.
    pub(super) fn end(&mut self, ended: &mut AllEnded) {
        self.end_those(|_| true, ended);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.present.is_none() && self.next.is_none()
    }

    /// Permits that are not spent.
    pub(super) fn left(&self) -> u64 {
        self.present.iter().chain(&self.next).map(Loan::left).sum()
    }

    fn end_those(&mut self, those: impl Fn(&Loan) -> bool, ended: &mut AllEnded) {
        let next = self.next.take_if(|loan| those(loan));
        let present = self.present.take_if(|loan| those(loan));
        self.has_ended(next, ended);
        self.has_ended(present, ended);
    }

    fn has_ended(&mut self, loan: Option<Loan>, ended: &mut AllEnded) {
        ended.extend(loan.map(|loan| Ended { subject: self.subject.clone(), loan }));
        if self.present.is_none() {
            self.present = self.next.take();
        }
    }
}

impl Loan {
    fn left(&self) -> u64 {
        self.granted.saturating_sub(self.spent)
    }

    /// Has the store, however fast its clock runs, not ended it yet, with time left to tell it what
    /// was spent?
    fn may_be_spent(&self, now: Micros) -> bool {
        now < self.asked_at.saturating_add(terms::SPENT_WITHIN)
    }

    fn is_half_gone(&self, now: Micros) -> bool {
        let half = terms::SPENT_WITHIN.get() / 2;
        self.spent.saturating_mul(2) >= self.granted
            || now.saturating_sub(self.asked_at).get() >= half
    }

    /// The store ends it by itself then, or a little later.
    pub(super) fn ends(&self) -> Micros {
        self.asked_at.saturating_add(terms::TTL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rule;
    use tidegate_core::Cost;

    fn loan(id: u128, granted: u64, asked_at: u64) -> Loan {
        Loan { id: id.into(), granted, spent: 0, asked_at: Micros::from_millis(asked_at) }
    }

    fn told(ended: &mut AllEnded) -> Vec<(u128, u64)> {
        ended.drain(..).map(|ended| (ended.loan.id.get(), ended.loan.spent)).collect()
    }

    #[test]
    fn the_second_follows_the_first_and_both_end_in_time() {
        let rule = Rule::new("r", ["10/s".parse().unwrap()]).unwrap();
        let limit = &rule.limits()[0];
        let charge = Charge { limit, key: "k".into(), cost: Cost::ONE, who: None };
        let at = Micros::from_millis;
        let mut ended = AllEnded::new();
        let mut loans = Loans::new(&charge, at(0));
        assert_eq!(loans.spend(1, at(0), &mut ended), None);
        assert!(loans.put(loan(1, 10, 0), at(1)).is_ok() && !loans.needs_one_more(at(1)));
        assert_eq!(loans.spend(6, at(2), &mut ended), Some(1.into()));
        assert!(loans.needs_one_more(at(2)));
        assert!(loans.put(loan(2, 20, 100), at(101)).is_ok() && !loans.needs_one_more(at(101)));
        assert!(loans.put(loan(3, 5, 100), at(101)).is_err(), "there is no place for a third");
        assert_eq!(loans.left(), 24);

        assert_eq!(loans.spend(5, at(102), &mut ended), Some(2.into()), "4 are too few");
        assert_eq!(told(&mut ended), [(1, 6)]);
        assert!(!loans.give_back(1.into(), 6), "it is told already");
        assert!(loans.give_back(2.into(), 5));
        assert_eq!((loans.left(), loans.spend(21, at(103), &mut ended)), (20, None));

        assert_eq!(loans.spend(1, at(1_599), &mut ended), Some(2.into()));
        assert_eq!(loans.spend(1, at(1_600), &mut ended), None, "its time is over");
        assert_eq!(told(&mut ended), [(2, 1)]);
        assert!(loans.put(loan(4, 10, 100), at(1_600)).is_err(), "this came too late");

        assert!(loans.put(loan(5, 10, 1_600), at(1_700)).is_ok());
        loans.tidy(at(1_949), &mut ended);
        assert!(!loans.is_empty());
        loans.tidy(at(1_950), &mut ended);
        assert_eq!((loans.is_empty(), told(&mut ended)), (true, vec![(5, 0)]));
    }
}
