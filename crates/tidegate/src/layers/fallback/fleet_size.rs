//! How many processes share a store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use tidegate_core::{Fraction, Micros};

/// The number of processes that share a store, by which a [`Fallback`](crate::Fallback) divides
/// limits: the largest number of the last minute, as of the last [`record`](Self::record). So it
/// stays as it is while the store is unavailable.
#[derive(Default, Debug)]
pub struct FleetSize {
    /// 0 if it is not known.
    largest: AtomicU32,
    /// Numbers of the last minute and their times; each is larger than those after it.
    recent: Mutex<VecDeque<(Micros, u32)>>,
}

impl FleetSize {
    const SPAN: Micros = Micros::from_secs(60);

    /// Records the number of processes, this one included, that the store knows at `now`, by a
    /// clock that never steps; 0 changes nothing.
    pub fn record(&self, now: Micros, processes: u32) {
        if processes == 0 {
            return;
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        while recent.front().is_some_and(|(at, _)| now.saturating_sub(*at) > Self::SPAN) {
            recent.pop_front();
        }
        while recent.back().is_some_and(|(_, earlier)| *earlier <= processes) {
            recent.pop_back();
        }
        recent.push_back((now, processes));
        let largest = recent.front().map_or(processes, |(_, largest)| *largest);
        self.largest.store(largest, Ordering::Relaxed);
    }

    /// The number by which limits are divided; `None` if none was recorded.
    pub fn processes(&self) -> Option<u32> {
        Some(self.largest.load(Ordering::Relaxed)).filter(|processes| *processes > 0)
    }

    /// The part of a limit that this process grants: one of as many equal parts, and at most `max`.
    pub(super) fn share(&self, max: Fraction) -> Fraction {
        let equal = self.processes().and_then(|processes| {
            Fraction::from_millionths((1_000_000 / u64::from(processes)).max(1))
        });
        equal.map_or(max, |equal| max.min(equal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_of_the_last_minute_divides_limits() {
        let fleet = FleetSize::default();
        assert_eq!((fleet.processes(), fleet.share(Fraction::HALF)), (None, Fraction::HALF));
        for (second, processes, expected) in [
            (0, 1, 1),
            (10, 4, 4),
            (20, 3, 4),
            (30, 2, 4),
            (70, 2, 4),
            (71, 2, 3),
            (81, 1, 2),
            (82, 0, 2),
            // The store was unavailable for an hour.
            (3_700, 8, 8),
            (3_761, 7, 7),
        ] {
            fleet.record(Micros::from_secs(second), processes);
            assert_eq!(fleet.processes(), Some(expected), "after {second} s");
        }
    }

    #[test]
    fn each_process_has_an_equal_share_and_at_most_its_own() {
        let millionths = |n| Fraction::from_millionths(n).unwrap();
        for (processes, max, expected) in [
            (1, 500_000, 500_000),
            (2, 500_000, 500_000),
            (3, 500_000, 333_333),
            (20, 500_000, 50_000),
            (20, 10_000, 10_000),
            (2, 1_000_000, 500_000),
            (u32::MAX, 500_000, 1),
        ] {
            let fleet = FleetSize::default();
            fleet.record(Micros::ZERO, processes);
            assert_eq!(fleet.share(millionths(max)), millionths(expected), "{processes}");
        }
    }
}
