//! Loans: permits held in the store and spent in this process.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Micros;

use super::constants;
use crate::engine::OwnedCharge;
use crate::{Charge, HoldId};

/// A hold in the store that this process may spend.
pub(crate) struct Loan {
    pub(crate) id: HoldId,
    pub(crate) granted: u64,
    pub(crate) spent: u64,
    /// When the loan was requested, by the clock of this process.
    pub(crate) requested_at: Micros,
    pub(crate) saved: SavedChecks,
}

/// Checks that the store was not sent because of a loan. Equal checks of one flight are one entry
/// of a batch, so that at most one is counted in half of a round trip. To a distant store several
/// batches are in flight, so this time has a maximum.
pub(crate) struct SavedChecks {
    pub(crate) count: u64,
    counted_at: Micros,
    half_trip: Micros,
}

impl SavedChecks {
    /// With the time that the store took to reply.
    pub(crate) fn new(round_trip: Micros) -> Self {
        // A loan of automatic size can save twice its cost in its time, however far the store is.
        let max = constants::DEMAND_WINDOW.get() / (2 * constants::LOAN_COST);
        let half_trip = Micros::new((round_trip.get() / 2).min(max));
        Self { count: 0, counted_at: Micros::ZERO, half_trip }
    }

    #[inline]
    fn add(&mut self, now: Micros) {
        if self.count == 0 || now.saturating_sub(self.counted_at) >= self.half_trip {
            self.count += 1;
            self.counted_at = now;
        }
    }
}

/// A loan that is no longer spent: the store has to be sent the amount spent.
pub(crate) struct EndedLoan {
    pub(crate) charge: Arc<OwnedCharge>,
    pub(crate) loan: Loan,
}

pub(crate) type EndedLoans = SmallVec<[EndedLoan; 1]>;

/// The loans of one key. Permits are spent from `present`; `next` follows it.
pub(crate) struct Loans {
    charge: Arc<OwnedCharge>,
    present: Option<Loan>,
    next: Option<Loan>,
    spent_at: Micros,
}

impl Loans {
    pub(crate) fn new(charge: &Charge<'_>, now: Micros) -> Box<Self> {
        let charge = Arc::new(OwnedCharge::of(charge));
        Box::new(Self { charge, present: None, next: None, spent_at: now })
    }

    pub(crate) fn charge(&self) -> &Arc<OwnedCharge> {
        &self.charge
    }

    /// Replaces the limit by a new instance of the same limit.
    pub(crate) fn renew_limit(&mut self, charge: &Charge<'_>) {
        self.charge = Arc::new(OwnedCharge::of(charge));
    }

    /// Spends `cost` from the present loan, if enough is left, and returns its id.
    pub(crate) fn spend(
        &mut self,
        cost: u64,
        now: Micros,
        ended: &mut EndedLoans,
    ) -> Option<HoldId> {
        self.make_ready(cost, now, ended);
        let present = self.present.as_mut().filter(|loan| loan.remaining() >= cost)?;
        present.spent += cost;
        present.saved.add(now);
        self.spent_at = now;
        Some(present.id)
    }

    /// Makes `next` the present loan, if the present one is too small or has expired.
    fn make_ready(&mut self, cost: u64, now: Micros, ended: &mut EndedLoans) {
        let is_expired = |loan: &Loan| !loan.may_be_spent(now);
        if self.present.as_ref().is_some_and(is_expired)
            || self.next.as_ref().is_some_and(is_expired)
        {
            self.end_matching(is_expired, ended);
        }
        let pays = |loan: &Option<Loan>| loan.as_ref().is_some_and(|loan| loan.remaining() >= cost);
        let is_empty = self.present.as_ref().is_some_and(|loan| loan.remaining() == 0);
        if is_empty || !pays(&self.present) && pays(&self.next) {
            let present = self.present.take();
            self.push_ended(present, ended);
        }
    }

    /// Undoes a spend of `cost` from `id`; `false` if that loan has ended.
    pub(crate) fn unspend(&mut self, id: HoldId, cost: u64) -> bool {
        let mut loans = [&mut self.present, &mut self.next].into_iter().flatten();
        let Some(loan) = loans.find(|loan| loan.id == id) else { return false };
        loan.spent = loan.spent.saturating_sub(cost);
        true
    }

    /// Adds a loan, or returns it if there is no room or it has expired.
    pub(crate) fn put(&mut self, loan: Loan, now: Micros) -> Result<(), Loan> {
        let mut slots = [&mut self.present, &mut self.next].into_iter();
        match slots.find(|slot| slot.is_none()).filter(|_| loan.may_be_spent(now)) {
            Some(slot) => *slot = Some(loan),
            None => return Err(loan),
        }
        self.spent_at = now;
        Ok(())
    }

    /// Whether to request another loan: half of the only one is spent, or half of its time has
    /// passed.
    pub(crate) fn needs_one_more(&self, now: Micros) -> bool {
        self.next.is_none() && self.present.as_ref().is_none_or(|loan| loan.is_half_gone(now))
    }

    /// Ends loans that have expired, and all of them if the key is idle.
    pub(crate) fn sweep(&mut self, now: Micros, ended: &mut EndedLoans) {
        let is_idle = now.saturating_sub(self.spent_at) >= constants::IDLE_AFTER;
        self.end_matching(|loan| is_idle || !loan.may_be_spent(now), ended);
    }

    pub(crate) fn end(&mut self, ended: &mut EndedLoans) {
        self.end_matching(|_| true, ended);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.present.is_none() && self.next.is_none()
    }

    /// Permits not spent.
    pub(crate) fn remaining(&self) -> u64 {
        self.present.iter().chain(&self.next).map(Loan::remaining).sum()
    }

    fn end_matching(&mut self, matching: impl Fn(&Loan) -> bool, ended: &mut EndedLoans) {
        let next = self.next.take_if(|loan| matching(loan));
        let present = self.present.take_if(|loan| matching(loan));
        self.push_ended(next, ended);
        self.push_ended(present, ended);
    }

    fn push_ended(&mut self, loan: Option<Loan>, ended: &mut EndedLoans) {
        ended.extend(loan.map(|loan| EndedLoan { charge: self.charge.clone(), loan }));
        if self.present.is_none() {
            self.present = self.next.take();
        }
    }
}

impl Loan {
    fn remaining(&self) -> u64 {
        self.granted.saturating_sub(self.spent)
    }

    /// Whether the store has certainly not ended the loan, with time left to settle it.
    fn may_be_spent(&self, now: Micros) -> bool {
        now < self.requested_at.saturating_add(constants::SPEND_WINDOW)
    }

    fn is_half_gone(&self, now: Micros) -> bool {
        let half = constants::SPEND_WINDOW.get() / 2;
        self.spent.saturating_mul(2) >= self.granted
            || now.saturating_sub(self.requested_at).get() >= half
    }

    /// When the store ends the loan by itself, or a little later.
    pub(crate) fn expires(&self) -> Micros {
        self.requested_at.saturating_add(constants::TTL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rule;
    use tidegate_core::Cost;

    fn loan(id: u128, granted: u64, requested_at: u64) -> Loan {
        let (requested_at, saved) =
            (Micros::from_millis(requested_at), SavedChecks::new(Micros::ZERO));
        Loan { id: id.into(), granted, spent: 0, requested_at, saved }
    }

    fn drain(ended: &mut EndedLoans) -> Vec<(u128, u64)> {
        ended.drain(..).map(|ended| (ended.loan.id.get(), ended.loan.spent)).collect()
    }

    #[test]
    fn checks_of_one_flight_are_saved_as_one() {
        let at = Micros::from_millis;
        let mut saved = SavedChecks::new(at(10));
        for millis in [100, 100, 102, 104, 105, 106, 109, 110, 200] {
            saved.add(at(millis));
        }
        assert_eq!(saved.count, 4, "at 100, 105, 110 and 200 ms");
    }

    #[test]
    fn the_second_loan_follows_the_first_and_both_end_in_time() {
        let rule = Rule::new("r", ["10/s".parse().unwrap()]).unwrap();
        let limit = &rule.limits()[0];
        let charge = Charge { limit, key: "k".into(), cost: Cost::ONE, caller: None };
        let at = Micros::from_millis;
        let mut ended = EndedLoans::new();
        let mut loans = Loans::new(&charge, at(0));
        assert_eq!(loans.spend(1, at(0), &mut ended), None);
        assert!(loans.put(loan(1, 10, 0), at(1)).is_ok() && !loans.needs_one_more(at(1)));
        assert_eq!(loans.spend(6, at(2), &mut ended), Some(1.into()));
        assert!(loans.needs_one_more(at(2)));
        assert!(loans.put(loan(2, 20, 100), at(101)).is_ok() && !loans.needs_one_more(at(101)));
        assert!(loans.put(loan(3, 5, 100), at(101)).is_err(), "no room for a third");
        assert_eq!(loans.remaining(), 24);

        assert_eq!(loans.spend(5, at(102), &mut ended), Some(2.into()), "4 are too few");
        assert_eq!(drain(&mut ended), [(1, 6)]);
        assert!(!loans.unspend(1.into(), 6), "it is settled already");
        assert!(loans.unspend(2.into(), 5));
        assert_eq!((loans.remaining(), loans.spend(21, at(103), &mut ended)), (20, None));

        assert_eq!(loans.spend(1, at(1_599), &mut ended), Some(2.into()));
        assert_eq!(loans.spend(1, at(1_600), &mut ended), None, "it has expired");
        assert_eq!(drain(&mut ended), [(2, 1)]);
        assert!(loans.put(loan(4, 10, 100), at(1_600)).is_err(), "it arrived too late");

        assert!(loans.put(loan(5, 10, 1_600), at(1_700)).is_ok());
        loans.sweep(at(1_949), &mut ended);
        assert!(!loans.is_empty());
        loans.sweep(at(1_950), &mut ended);
        assert_eq!((loans.is_empty(), drain(&mut ended)), (true, vec![(5, 0)]));
    }
}
