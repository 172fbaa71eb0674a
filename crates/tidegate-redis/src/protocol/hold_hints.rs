//! Remembers which states had holds recently.

use std::sync::atomic::{AtomicU64, Ordering};

/// States with holds, by their hash, according to the latest replies. A script that finds holds
/// whose key was not named must be called again, so remembering them saves calls. A key that is
/// named without need must be on the same node as the others while a Cluster migrates a slot, so
/// they are forgotten.
///
/// A hash table without collision handling: a lost entry costs a second call, and nothing else.
pub(crate) struct HoldHints {
    table: Box<[AtomicU64]>,
    asked: AtomicU64,
}

impl HoldHints {
    const SLOTS: usize = 4_096;

    pub(crate) fn new() -> Self {
        let table = (0..Self::SLOTS).map(|_| AtomicU64::new(0)).collect();
        Self { table, asked: AtomicU64::new(0) }
    }

    pub(crate) fn has(&self, hash: u64) -> bool {
        self.entry(hash).load(Ordering::Relaxed) == mark(hash)
    }

    /// As [`has`](Self::has), but forgets one of 16 times: for hints that no reply takes back.
    pub(crate) fn has_for_now(&self, hash: u64) -> bool {
        let has = self.has(hash);
        if has && self.asked.fetch_add(1, Ordering::Relaxed) % 16 == 15 {
            self.forget(hash);
        }
        has
    }

    pub(crate) fn remember(&self, hash: u64) {
        self.entry(hash).store(mark(hash), Ordering::Relaxed);
    }

    pub(crate) fn forget(&self, hash: u64) {
        // Keeps the mark of another state.
        let relaxed = Ordering::Relaxed;
        let _ = self.entry(hash).compare_exchange(mark(hash), 0, relaxed, relaxed);
    }

    #[expect(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
    fn entry(&self, hash: u64) -> &AtomicU64 {
        &self.table[hash as usize % Self::SLOTS]
    }
}

/// 0 is a free entry.
fn mark(hash: u64) -> u64 {
    hash | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_remembered_until_it_is_forgotten() {
        let hints = HoldHints::new();
        assert!(!hints.has(7));
        hints.remember(7);
        assert!(hints.has(7) && !hints.has(8));
        hints.forget(8);
        assert!(hints.has(7));
        hints.forget(7);
        assert!(!hints.has(7));
    }
}
