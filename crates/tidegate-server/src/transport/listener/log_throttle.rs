//! Rate limit for log lines that remote clients can cause, so that they cannot fill a disk.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{Clock, Micros, SystemClock};

/// Allows one line per [`LogThrottle::INTERVAL`], and counts the suppressed ones.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    /// Time of the next allowed line, in microseconds.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl LogThrottle {
    /// Time between two lines.
    pub(crate) const INTERVAL: Micros = Micros::from_secs(10);

    /// A throttle that allows the first line.
    pub(crate) const fn new() -> Self {
        Self { next: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// If this line is allowed: the number of lines suppressed since the last one.
    pub(crate) fn allow(&self) -> Option<u64> {
        self.allow_at(SystemClock.elapsed())
    }

    fn allow_at(&self, now: Micros) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let later = now.saturating_add(Self::INTERVAL).get();
        let order = Ordering::Relaxed;
        if now.get() < next || self.next.compare_exchange(next, later, order, order).is_err() {
            self.suppressed.fetch_add(1, order);
            return None;
        }
        Some(self.suppressed.swap(0, order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_allowed_and_the_others_are_counted() {
        let throttle = LogThrottle::new();
        let at = |seconds| throttle.allow_at(Micros::from_secs(seconds));
        let allowed = [at(5), at(5), at(14), at(15), at(20), at(60)];
        assert_eq!(allowed, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
