//! A number of bytes that may be used, and how many are.

use crate::sync::atomic::{AtomicUsize, Ordering};

/// Counts bytes against a cap. Whoever allocates asks first and counts what it was in the end.
#[derive(Debug)]
pub(crate) struct Budget {
    cap: usize,
    used: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(cap: usize) -> Self {
        Self { cap, used: AtomicUsize::new(0) }
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        self.used().saturating_add(bytes) <= self.cap
    }

    /// Counts that something of `before` bytes is now of `after` bytes.
    pub(crate) fn resized(&self, before: usize, after: usize) {
        if after >= before {
            self.used.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.used.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}
