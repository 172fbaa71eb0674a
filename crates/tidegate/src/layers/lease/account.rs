//! Loans and demand of one key under one limit; when to borrow.
//!
//! Nothing in this file waits, reads the time or calls the store.

use std::sync::Arc;

use tidegate_core::{Cost, Micros, Verdict, Wait};

use super::constants;
use super::demand::Demand;
use super::loan::{EndedLoan, EndedLoans, Loan, Loans};
use crate::engine::OwnedCharge;
use crate::{Charge, HoldId, LeaseSize, RuleLimit};

/// One key under one limit. Most accounts have no loan, only a measured demand.
pub(crate) struct Account {
    pub(crate) fingerprint: u64,
    /// Time of the last check of the key.
    pub(crate) seen: Micros,
    demand: Demand,
    /// The store's last verdict, which excludes borrowed permits.
    last_verdict: LastVerdict,
    /// Until then nothing is borrowed.
    strict_until: Micros,
    /// Deadline of the loan request in flight; zero if there is none.
    requested_until: Micros,
    /// How often the demand that a loan needs has been doubled, because loans saved too little.
    backoff: u32,
    loans: Option<Box<Loans>>,
}

#[derive(Clone, Copy)]
struct LastVerdict {
    at: Micros,
    remaining: u64,
    reset_after: Micros,
}

/// Background calls to the store that follow from an operation.
#[derive(Default)]
pub(crate) struct StoreWork {
    pub(crate) ended: EndedLoans,
    pub(crate) request: Option<LoanRequest>,
}

pub(crate) struct LoanRequest {
    pub(crate) charge: Arc<OwnedCharge>,
    pub(crate) size: Cost,
}

impl Account {
    pub(crate) fn new(fingerprint: u64, now: Micros) -> Self {
        Self {
            fingerprint,
            seen: now,
            demand: Demand::new(now),
            last_verdict: LastVerdict { at: now, remaining: 0, reset_after: Micros::ZERO },
            strict_until: Micros::ZERO,
            requested_until: Micros::ZERO,
            backoff: 0,
            loans: None,
        }
    }

    /// Whether a loan exists or is requested.
    pub(crate) fn is_busy(&self) -> bool {
        self.loans.is_some()
    }

    /// Spends the cost from a loan, if enough is left. Returns the id of the loan with the verdict.
    pub(crate) fn spend(
        &mut self,
        charge: &Charge<'_>,
        now: Micros,
        work: &mut StoreWork,
    ) -> Option<(HoldId, Verdict)> {
        if !self.is_under(charge, work) {
            return None;
        }
        let loans = self.loans.as_mut()?;
        let known = work.ended.len();
        let spent = loans.spend(charge.cost.get(), now, &mut work.ended);
        let needs_more = loans.needs_one_more(now);
        self.learn(&work.ended[known..]);
        let id = spent?;
        self.seen = now;
        self.demand.count(charge.cost.get(), now);
        if needs_more {
            self.request_loan(charge, now, work);
        }
        Some((id, self.verdict(charge.limit, now)))
    }

    /// Undoes a spend from the loan `id`, unless that loan has ended: then the store has been sent
    /// the amount already.
    pub(crate) fn unspend(&mut self, id: HoldId, cost: Cost) {
        let loans = self.loans.as_mut();
        if loans.is_some_and(|loans| loans.unspend(id, cost.get())) {
            self.demand.uncount(cost.get());
        }
    }

    /// Updates the account by the store's verdict on a check.
    pub(crate) fn update(
        &mut self,
        charge: &Charge<'_>,
        verdict: &Verdict,
        charged: bool,
        now: Micros,
        work: &mut StoreWork,
    ) {
        self.seen = now;
        if !self.is_under(charge, work) {
            return;
        }
        self.record_verdict(verdict, now);
        if charged {
            self.demand.count(charge.cost.get(), now);
            self.request_loan(charge, now, work);
        } else if !verdict.allowed {
            self.strict_until = now.saturating_add(constants::STRICT_AFTER_DENIAL);
            // The denied cost might fit without the loans of this process. They end, so that the
            // next verdict is exact.
            let remaining = self.remaining();
            if remaining > 0 && remaining.saturating_add(verdict.remaining) >= charge.cost.get() {
                self.end(work);
            }
        }
    }

    fn record_verdict(&mut self, verdict: &Verdict, now: Micros) {
        let Verdict { remaining, reset_after, .. } = *verdict;
        self.last_verdict = LastVerdict { at: now, remaining, reset_after };
    }

    /// Adds a loan; `verdict` is the store's after lending.
    pub(crate) fn add_loan(
        &mut self,
        owned: &Arc<OwnedCharge>,
        loan: Loan,
        verdict: &Verdict,
        now: Micros,
        work: &mut StoreWork,
    ) {
        let loans = self.loans.as_mut().filter(|loans| Arc::ptr_eq(loans.charge(), owned));
        let refused = match loans {
            Some(loans) => {
                self.requested_until = Micros::ZERO;
                loans.put(loan, now).err()
            }
            // Requested under another limit.
            None => Some(loan),
        };
        match refused {
            Some(loan) => work.ended.push(EndedLoan { charge: owned.clone(), loan }),
            None => self.record_verdict(verdict, now),
        }
    }

    /// The process has wasted too many loans to request this one.
    pub(crate) fn loan_postponed(&mut self, now: Micros) {
        self.requested_until = Micros::ZERO;
        self.strict_until = now.saturating_add(constants::STRICT_AFTER_DENIAL);
        self.loans.take_if(|loans| loans.is_empty());
    }

    /// The store has lent nothing: a limit denied it, or the store did not reply.
    pub(crate) fn loan_failed(&mut self, verdict: Option<&Verdict>, now: Micros) {
        self.requested_until = Micros::ZERO;
        let pause = match verdict {
            Some(verdict) => {
                self.record_verdict(verdict, now);
                constants::STRICT_AFTER_DENIAL
            }
            None => constants::STRICT_AFTER_NO_REPLY,
        };
        self.strict_until = now.saturating_add(pause);
        self.loans.take_if(|loans| loans.is_empty());
    }

    /// Ends loans that are due, and all of them if the key is idle.
    pub(crate) fn sweep(&mut self, now: Micros, work: &mut StoreWork) {
        let Some(loans) = &mut self.loans else { return };
        let known = work.ended.len();
        loans.sweep(now, &mut work.ended);
        if loans.is_empty() && now >= self.requested_until {
            self.loans = None;
        }
        self.learn(&work.ended[known..]);
    }

    /// Loans that ended by themselves show whether this key is worth another.
    #[inline]
    fn learn(&mut self, ended: &[EndedLoan]) {
        for EndedLoan { loan, .. } in ended {
            self.backoff = match loan.saved.count < constants::LOAN_COST {
                true => (self.backoff + 1).min(constants::MAX_BACKOFF),
                false => self.backoff.saturating_sub(1),
            };
        }
    }

    pub(crate) fn end(&mut self, work: &mut StoreWork) {
        if let Some(loans) = &mut self.loans {
            loans.end(&mut work.ended);
        }
    }

    /// Ends all loans and drops the limit and key: a loan that arrives later is given back.
    pub(crate) fn close(&mut self, work: &mut StoreWork) {
        self.end(work);
        self.loans = None;
        self.requested_until = Micros::ZERO;
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let bytes = |loans: &Loans| size_of::<Loans>() + loans.charge().bytes();
        self.loans.as_deref().map_or(0, bytes)
    }

    /// Permits borrowed and not spent.
    pub(crate) fn remaining(&self) -> u64 {
        self.loans.as_ref().map_or(0, |loans| loans.remaining())
    }

    /// The rule of the loans.
    pub(crate) fn rule(&self) -> Option<&str> {
        self.loans.as_ref().map(|loans| loans.charge().limit().rule())
    }

    /// Whether the loans are under the limit of this charge. A changed limit ends the loans. A
    /// charge with an older limit is a call that was in flight during the change; it does not use
    /// the loans.
    #[inline]
    fn is_under(&mut self, charge: &Charge<'_>, work: &mut StoreWork) -> bool {
        match &self.loans {
            Some(loans) if !Arc::ptr_eq(loans.charge().limit(), charge.limit) => {
                self.switch_limit(charge, work)
            }
            _ => true,
        }
    }

    fn switch_limit(&mut self, charge: &Charge<'_>, work: &mut StoreWork) -> bool {
        let Some(loans) = &mut self.loans else { return true };
        let (own, limit) = (loans.charge().limit(), charge.limit);
        let same = own.limit() == limit.limit() && own.lease_size() == limit.lease_size();
        let is_newer = limit.is_newer_than(own);
        if same && is_newer && !limit.is_per_call() {
            loans.renew_limit(charge);
            // The request in flight is for the old limit.
            self.requested_until = Micros::ZERO;
        }
        if !same && is_newer {
            self.close(work);
            self.last_verdict.remaining = 0;
        }
        same
    }

    /// Decides whether to borrow more, and how much.
    fn request_loan(&mut self, charge: &Charge<'_>, now: Micros, work: &mut StoreWork) {
        if now < self.requested_until || now < self.strict_until {
            return;
        }
        if self.loans.as_ref().is_some_and(|loans| !loans.needs_one_more(now)) {
            return;
        }
        let Some(lease_size) = charge.limit.lease_size() else { return };
        let spent = self.demand.per_window(now);
        let (wanted, min) = match lease_size {
            LeaseSize::Auto => {
                let checks = constants::LOAN_COST << self.backoff;
                (spent, charge.cost.get().saturating_mul(checks))
            }
            LeaseSize::Of(_) if spent < constants::MIN_DEMAND << self.backoff => return,
            LeaseSize::Of(size) => {
                (u64::from(size.get()), constants::MIN_LOAN.min(size.get().into()))
            }
        };
        // All loans of this process together stay a fraction of the remaining permits.
        let remaining = self.remaining();
        let rest = self.last_verdict.remaining.saturating_add(remaining)
            / constants::MAX_SHARE_OF_REMAINING;
        let size = wanted.min(rest.saturating_sub(remaining));
        if size < min.max(charge.cost.get().saturating_mul(2)) {
            return;
        }
        let Ok(size) = Cost::new(size.min(Cost::MAX.get())) else { return };
        let loans = self.loans.get_or_insert_with(|| Loans::new(charge, now));
        self.requested_until = now.saturating_add(constants::TTL);
        work.request = Some(LoanRequest { charge: loans.charge().clone(), size });
    }

    /// The estimated verdict of a charge paid from a loan: the store's last remaining permits plus
    /// those left of the loans.
    fn verdict(&self, limit: &RuleLimit, now: Micros) -> Verdict {
        let passed = now.saturating_sub(self.last_verdict.at);
        let limit = limit.limit().capacity();
        Verdict {
            allowed: true,
            retry_after: Wait::NONE,
            delay: Micros::ZERO,
            limit,
            remaining: self.last_verdict.remaining.saturating_add(self.remaining()).min(limit),
            reset_after: self.last_verdict.reset_after.saturating_sub(passed),
        }
    }
}
