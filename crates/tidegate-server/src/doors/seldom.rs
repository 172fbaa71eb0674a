//! Log lines that strangers can cause, so that they cannot fill a disk with them.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{Clock, Micros, SystemClock};

/// Lets one line through now and then, and counts the others.
#[derive(Debug, Default)]
pub struct Seldom {
    /// When the next may pass, in microseconds.
    next: AtomicU64,
    kept_back: AtomicU64,
}

impl Seldom {
    /// How often a line may pass.
    pub const INTERVAL: Micros = Micros::from_secs(10);

    /// Nothing said yet.
    pub const fn new() -> Self {
        Self { next: AtomicU64::new(0), kept_back: AtomicU64::new(0) }
    }

    /// How many were kept back since the last one, if this one may pass.
    pub fn pass(&self) -> Option<u64> {
        self.pass_at(SystemClock.elapsed())
    }

    fn pass_at(&self, now: Micros) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let later = now.saturating_add(Self::INTERVAL).get();
        let order = Ordering::Relaxed;
        if now.get() < next || self.next.compare_exchange(next, later, order, order).is_err() {
            self.kept_back.fetch_add(1, order);
            return None;
        }
        Some(self.kept_back.swap(0, order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_passes_and_the_others_are_counted() {
        let seldom = Seldom::new();
        let at = |seconds| seldom.pass_at(Micros::from_secs(seconds));
        let passed = [at(5), at(5), at(14), at(15), at(20), at(60)];
        assert_eq!(passed, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
