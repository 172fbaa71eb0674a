//! Which keys have a first waiter that is short of permits.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The queues whose first waiter is short of permits, for checks of other keys: they read one
/// counter, and a second one while there are such queues. That is found by a hash of the first
/// limit and key, the line: unlike a fingerprint of all of them, it takes a few nanoseconds.
pub(super) struct WaiterFilter {
    count: AtomicUsize,
    /// Lines share counters.
    counters: Box<[AtomicU32]>,
}

impl WaiterFilter {
    const COUNTERS: usize = 1 << 10;

    /// Whether there is any line.
    #[inline(always)]
    pub(super) fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether there may be this line.
    pub(super) fn may_have(&self, line: u64) -> bool {
        self.counter(line).load(Ordering::Relaxed) > 0
    }

    /// Removes and adds a line. Called under the lock of the queues.
    pub(super) fn replace(&self, old: Option<u64>, new: Option<u64>) {
        if let Some(line) = new {
            self.counter(line).fetch_add(1, Ordering::Relaxed);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(line) = old {
            self.count.fetch_sub(1, Ordering::Relaxed);
            self.counter(line).fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "some of the bits")]
    fn counter(&self, line: u64) -> &AtomicU32 {
        &self.counters[line as usize % Self::COUNTERS]
    }
}

impl Default for WaiterFilter {
    fn default() -> Self {
        let counters = (0..Self::COUNTERS).map(|_| AtomicU32::new(0)).collect();
        Self { count: AtomicUsize::new(0), counters }
    }
}
