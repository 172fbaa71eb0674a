//! The accounts by fingerprint: so many and no more, each in one of four places.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::Micros;

use super::account::{Account, Chores};

/// Where the accounts are. One that has something borrowed stays; of the others, the one that was
/// asked about last.
pub(super) struct Book {
    sets: Box<[Mutex<Set>]>,
}

/// Where a fingerprint may lie.
type Set = [Option<Account>; 4];

impl Book {
    const SETS: usize = 1 << 11;

    pub(super) fn new() -> Self {
        Self { sets: (0..Self::SETS).map(|_| Mutex::default()).collect() }
    }

    /// Does this with an account, if there is one.
    #[inline]
    pub(super) fn with<T>(
        &self,
        fingerprint: u64,
        change: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        let mut set = self.lock(fingerprint);
        let account = set.iter_mut().flatten().find(|a| a.fingerprint == fingerprint)?;
        Some(change(account))
    }

    /// The same with an account that is made if need be and if there is room.
    pub(super) fn with_new<T>(
        &self,
        fingerprint: u64,
        now: Micros,
        change: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        let mut set = self.lock(fingerprint);
        let is_own = |place: &&mut Option<Account>| {
            place.as_ref().is_some_and(|account| account.fingerprint == fingerprint)
        };
        let place = match set.iter_mut().find(is_own) {
            Some(place) => place,
            None => {
                let idle = |place: &&mut Option<Account>| {
                    place.as_ref().is_none_or(|account| !account.is_busy())
                };
                let seen =
                    |place: &&mut Option<Account>| place.as_ref().map(|account| account.seen);
                let place = set.iter_mut().filter(idle).min_by_key(seen)?;
                *place = Some(Account::new(fingerprint, now));
                place
            }
        };
        place.as_mut().map(change)
    }

    /// Does this with every account that has something borrowed, and says how many those were.
    pub(super) fn each(&self, mut change: impl FnMut(&mut Account)) -> usize {
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

    /// Gives everything back, and forgets whom it was for.
    pub(super) fn close(&self) -> Chores {
        let mut chores = Chores::default();
        self.each(|account| account.close(&mut chores));
        chores
    }

    /// Permits that are borrowed and not spent, by rule.
    pub(super) fn outstanding(&self) -> BTreeMap<String, u64> {
        let mut by_rule = BTreeMap::new();
        self.each(|account| {
            let left = account.left();
            if let Some(rule) = account.rule() {
                match by_rule.get_mut(rule) {
                    Some(sum) => *sum += left,
                    None => _ = by_rule.insert(rule.to_string(), left),
                }
            }
        });
        by_rule
    }

    /// Bytes that are used.
    pub(super) fn bytes(&self) -> usize {
        let mut heap = 0;
        self.each(|account| heap += account.heap_bytes());
        self.sets.len() * size_of::<Mutex<Set>>() + heap
    }

    #[inline]
    fn lock(&self, fingerprint: u64) -> MutexGuard<'_, Set> {
        let place = ((fingerprint >> 32) * self.sets.len() as u64) >> 32;
        // Nothing in here panics, as far as we know; if it does, going on is better than waiting.
        self.sets[place as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
