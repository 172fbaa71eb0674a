//! Fixed-size table of accounts by fingerprint, four per set.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::Micros;

use super::account::{Account, StoreWork};

/// The table. An account with a loan stays; of the others, the one used least recently is replaced.
pub(crate) struct Accounts {
    sets: Box<[Mutex<AccountSet>]>,
}

/// The accounts that a fingerprint can occupy.
type AccountSet = [Option<Account>; 4];

impl Accounts {
    const SETS: usize = 1 << 11;

    pub(crate) fn new() -> Self {
        Self { sets: (0..Self::SETS).map(|_| Mutex::default()).collect() }
    }

    /// Applies `change` to an account, if it exists.
    #[inline]
    pub(crate) fn with<T>(
        &self,
        fingerprint: u64,
        change: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        let mut set = self.lock(fingerprint);
        let account = set.iter_mut().flatten().find(|a| a.fingerprint == fingerprint)?;
        Some(change(account))
    }

    /// Applies `change` to an account, which is created if there is room.
    pub(crate) fn with_new<T>(
        &self,
        fingerprint: u64,
        now: Micros,
        change: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        let mut set = self.lock(fingerprint);
        let is_own = |slot: &&mut Option<Account>| {
            slot.as_ref().is_some_and(|account| account.fingerprint == fingerprint)
        };
        let slot = match set.iter_mut().find(is_own) {
            Some(slot) => slot,
            None => {
                let idle = |slot: &&mut Option<Account>| {
                    slot.as_ref().is_none_or(|account| !account.is_busy())
                };
                let seen = |slot: &&mut Option<Account>| slot.as_ref().map(|account| account.seen);
                let slot = set.iter_mut().filter(idle).min_by_key(seen)?;
                *slot = Some(Account::new(fingerprint, now));
                slot
            }
        };
        slot.as_mut().map(change)
    }

    /// Applies `change` to every account with a loan, and returns how many still have one.
    pub(crate) fn each(&self, mut change: impl FnMut(&mut Account)) -> usize {
        let mut busy = 0;
        for set in &self.sets {
            let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
            for account in set.iter_mut().flatten().filter(|account| account.is_busy()) {
                change(account);
                busy += usize::from(account.is_busy());
            }
        }
        busy
    }

    /// Ends all loans and drops their limits and keys.
    pub(crate) fn close(&self) -> StoreWork {
        let mut work = StoreWork::default();
        self.each(|account| account.close(&mut work));
        work
    }

    /// Permits borrowed and not spent, by rule.
    pub(crate) fn outstanding(&self) -> BTreeMap<String, u64> {
        let mut by_rule = BTreeMap::new();
        self.each(|account| {
            let remaining = account.remaining();
            if let Some(rule) = account.rule() {
                match by_rule.get_mut(rule) {
                    Some(sum) => *sum += remaining,
                    None => _ = by_rule.insert(rule.to_string(), remaining),
                }
            }
        });
        by_rule
    }

    /// Bytes used by the table and the loans.
    pub(crate) fn bytes(&self) -> usize {
        let mut heap = 0;
        self.each(|account| heap += account.heap_bytes());
        self.sets.len() * size_of::<Mutex<AccountSet>>() + heap
    }

    #[inline]
    fn lock(&self, fingerprint: u64) -> MutexGuard<'_, AccountSet> {
        let index = ((fingerprint >> 32) * self.sets.len() as u64) >> 32;
        // A poisoned lock is ignored: continuing is better than blocking every request.
        self.sets[index as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
