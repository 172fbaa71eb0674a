//! Which states were seen with holds.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// States that have holds, as far as replies have told. A script that finds holds which were not
/// named has to be called again, so it pays to remember them; and a key that is named in vain is one
/// more that must lie where the others do while a Cluster moves a slot, so it pays to forget them.
///
/// Each state has one place, which others share: what is lost costs a second call, and nothing else.
pub(crate) struct Seen {
    hasher: RandomState,
    places: Box<[AtomicU64]>,
}

impl Seen {
    const PLACES: usize = 4_096;

    pub(crate) fn new() -> Self {
        let places = (0..Self::PLACES).map(|_| AtomicU64::new(0)).collect();
        Self { hasher: RandomState::new(), places }
    }

    pub(crate) fn has(&self, state: &str) -> bool {
        let (place, mark) = self.place(state);
        place.load(Ordering::Relaxed) == mark
    }

    pub(crate) fn remember(&self, state: &str) {
        let (place, mark) = self.place(state);
        place.store(mark, Ordering::Relaxed);
    }

    pub(crate) fn forget(&self, state: &str) {
        let (place, mark) = self.place(state);
        // Another state's mark stays.
        let _ = place.compare_exchange(mark, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    #[expect(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
    fn place(&self, state: &str) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(state);
        // 0 is a place that is free.
        (&self.places[hash as usize % Self::PLACES], hash | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_known_until_it_is_forgotten() {
        let seen = Seen::new();
        assert!(!seen.has("a"));
        seen.remember("a");
        assert!(seen.has("a") && !seen.has("b"));
        seen.forget("b");
        assert!(seen.has("a"));
        seen.forget("a");
        assert!(!seen.has("a"));
    }
}
