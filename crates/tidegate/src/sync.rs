//! Locks and atomics: those of the standard library or, under `--cfg shuttle`, those of `shuttle`,
//! which tests many interleavings.
//!
//! Only values created in every run may use them: a static outlives the runs of a test.

use std::sync::{PoisonError, TryLockError};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, atomic};

/// Locks, ignoring poison: no code under these locks is known to panic, and continuing is better
/// than denying every request.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], without waiting.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
