//! Settlements of a limiter that were not confirmed.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Settlements that are retried at the same time by one limiter, some 10 MiB. Only holds of the
/// store are retried, and a store that fails makes no more of them.
const MAX_RETRIED: usize = 8_192;

/// Counts settlements that were not confirmed.
#[derive(Default)]
pub(super) struct SettlementCounts {
    retried: AtomicUsize,
    /// Given up since the start.
    given_up: AtomicU64,
}

impl SettlementCounts {
    pub(super) fn give_up(&self) {
        self.given_up.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    /// `None` if too many are retried already.
    pub(super) fn begin_retries(&self) -> Option<RetriedSettlement<'_>> {
        let retried = RetriedSettlement(&self.retried);
        (self.retried.fetch_add(1, Ordering::Relaxed) < MAX_RETRIED).then_some(retried)
    }
}

/// A settlement that is counted as retried.
pub(super) struct RetriedSettlement<'a>(&'a AtomicUsize);

impl Drop for RetriedSettlement<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
