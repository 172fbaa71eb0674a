//! How far away the server is, and how many calls may be in flight because of that.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Clock, Micros, SystemClock};

/// The shortest round trip of about the last second. The shortest one, because it contains the
/// least time in queues: more calls in flight do not make a busy server faster.
pub(super) struct RoundTrip {
    /// Number of the present second.
    second: AtomicU64,
    /// In microseconds, of the present second and of the one before; [`UNKNOWN`] if there was none.
    present: AtomicU32,
    before: AtomicU32,
}

const UNKNOWN: u32 = u32::MAX;

impl Default for RoundTrip {
    fn default() -> Self {
        let [present, before] = [UNKNOWN; 2].map(AtomicU32::new);
        Self { second: AtomicU64::new(0), present, before }
    }
}

impl RoundTrip {
    /// Calls in flight per queue to a server nearby. With two, one is in flight while another is
    /// encoded or decoded, and of two concurrent callers neither waits. With one, batches are
    /// larger, which is better for a single hot key; with four they are smaller.
    const MIN_IN_FLIGHT: usize = 2;
    const MAX_IN_FLIGHT: usize = 16;
    /// One more call for each of these. A check waits so long for its turn, whatever the distance.
    /// Longer than a batch takes in the server, so that a busy server gets a few calls at most.
    const PER_CALL: Duration = Duration::from_micros(2_500);

    /// Records the time from sending a call to its reply.
    pub(super) fn record(&self, span: Duration) {
        let micros = u32::try_from(span.as_micros()).unwrap_or(UNKNOWN);
        let second = SystemClock.elapsed().get() / Micros::from_secs(1).get();
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.before.store(self.present.swap(micros, Ordering::Relaxed), Ordering::Relaxed);
        }
        self.present.fetch_min(micros, Ordering::Relaxed);
    }

    pub(super) fn max_in_flight(&self) -> usize {
        let known = [&self.present, &self.before].map(|span| span.load(Ordering::Relaxed));
        let shortest = known.into_iter().filter(|micros| *micros != UNKNOWN).min().unwrap_or(0);
        let extra = u128::from(shortest) / Self::PER_CALL.as_micros();
        let extra = usize::try_from(extra).unwrap_or(Self::MAX_IN_FLIGHT);
        (Self::MIN_IN_FLIGHT + extra).min(Self::MAX_IN_FLIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_decides_how_many_calls_are_in_flight() {
        let of = |millis: &[u64]| {
            let round_trip = RoundTrip::default();
            millis.iter().for_each(|ms| round_trip.record(Duration::from_millis(*ms)));
            round_trip.max_in_flight()
        };
        assert_eq!(of(&[]), 2);
        assert_eq!((of(&[0]), of(&[2]), of(&[3])), (2, 2, 3));
        assert_eq!((of(&[10]), of(&[20]), of(&[20, 90, 30])), (6, 10, 10));
        assert_eq!((of(&[90]), of(&[90, 1])), (16, 2));
    }
}
