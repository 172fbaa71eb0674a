//! What the loans of this process have cost the store without saving as much.
//!
//! Demand of the last moment does not say whether a key will be checked again. So loans that turn
//! out to be wasted are paid from a budget: a share of the checks that were sent to the store or
//! saved. Whatever the load, leases cost the store at most that share more than no leases.

use std::sync::atomic::{AtomicU64, Ordering};

use super::constants::LOAN_COST;

/// All in checks. Loans count as wasted until they end.
#[derive(Default)]
pub(crate) struct WasteAccount {
    sent: AtomicU64,
    saved: AtomicU64,
    wasted: AtomicU64,
}

impl WasteAccount {
    /// One part in this many of all checks may be wasted: 5 %.
    const SHARE: u64 = 20;
    /// Loans that may be open or wasted before enough is known.
    const FREE_LOANS: u64 = 64;

    /// A check was sent to the store.
    #[inline]
    pub(crate) fn add_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Pays for one more loan. False if too much has been wasted.
    pub(crate) fn take_loan(&self) -> bool {
        let [sent, saved] = [&self.sent, &self.saved].map(|count| count.load(Ordering::Relaxed));
        let budget = (sent.saturating_add(saved) / Self::SHARE).max(Self::FREE_LOANS * LOAN_COST);
        let paid = |wasted: u64| wasted.checked_add(LOAN_COST).filter(|wasted| *wasted <= budget);
        self.wasted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid).is_ok()
    }

    /// A loan has ended and has saved so many checks.
    pub(crate) fn end_loan(&self, saved: u64) {
        self.saved.fetch_add(saved, Ordering::Relaxed);
        self.repay(saved.min(LOAN_COST));
    }

    /// The store has denied a loan: there is no settlement, which is half of the cost.
    pub(crate) fn loan_denied(&self) {
        self.repay(LOAN_COST / 2);
    }

    fn repay(&self, checks: u64) {
        let repaid = |wasted: u64| Some(wasted.saturating_sub(checks));
        let _ = self.wasted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, repaid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_a_twentieth_of_all_checks_is_wasted_whatever_the_loans_save() {
        let account = WasteAccount::default();
        // An adversary: no loan saves anything.
        let mut loans = 0;
        for _ in 0..1_000_000 {
            account.add_sent();
            if account.take_loan() {
                loans += 1;
                account.end_loan(0);
            }
        }
        assert_eq!(loans, 1_000_000 / 20 / LOAN_COST);
        // One that saves its cost is free.
        for _ in 0..1_000 {
            account.add_sent();
            account.end_loan(LOAN_COST);
            assert!(account.take_loan());
        }
    }

    #[test]
    fn the_first_loans_need_no_experience() {
        let account = WasteAccount::default();
        let loans = (0..1_000).filter(|_| account.take_loan()).count() as u64;
        assert_eq!(loans, WasteAccount::FREE_LOANS);
    }
}
