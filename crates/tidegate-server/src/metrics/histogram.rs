//! A histogram of durations: two relaxed additions for each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::exposition::Family;

/// The upper bounds of the buckets in nanoseconds, and as they are written in seconds. From a
/// decision in memory to a store that hardly answers.
const BOUNDS: [(u64, &str); 17] = [
    (5_000, "0.000005"),
    (10_000, "0.00001"),
    (25_000, "0.000025"),
    (50_000, "0.00005"),
    (100_000, "0.0001"),
    (250_000, "0.00025"),
    (500_000, "0.0005"),
    (1_000_000, "0.001"),
    (2_500_000, "0.0025"),
    (5_000_000, "0.005"),
    (10_000_000, "0.01"),
    (25_000_000, "0.025"),
    (50_000_000, "0.05"),
    (100_000_000, "0.1"),
    (250_000_000, "0.25"),
    (500_000_000, "0.5"),
    (1_000_000_000, "1"),
];

/// The longest duration that is summed up as it is: an hour. A longer one counts as this, so the
/// sum lasts.
const MAX_NANOS: u64 = 3_600_000_000_000;

#[derive(Default, Debug)]
pub(super) struct Histogram {
    /// How many fell between the bound before and this one; the last has no bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

impl Histogram {
    pub(super) fn observe(&self, duration: Duration, times: u64) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(MAX_NANOS).min(MAX_NANOS);
        // A bound belongs to its bucket.
        let bucket = BOUNDS.partition_point(|(bound, _)| *bound < nanos);
        self.buckets[bucket].fetch_add(times, Ordering::Relaxed);
        self.sum_nanos.fetch_add(nanos.saturating_mul(times), Ordering::Relaxed);
    }

    pub(super) fn render(&self, family: &mut Family<'_>, label: (&str, &str)) {
        let bounds = BOUNDS.iter().map(|(_, text)| *text).chain(["+Inf"]);
        // The count is taken from the buckets, so the two agree however many come in meanwhile.
        let mut count = 0;
        for (bound, bucket) in bounds.zip(&self.buckets) {
            count += bucket.load(Ordering::Relaxed);
            family.sample("_bucket", &[label, ("le", bound)], count);
        }
        let sum = self.sum_nanos.load(Ordering::Relaxed);
        let seconds = format_args!("{}.{:09}", sum / 1_000_000_000, sum % 1_000_000_000);
        family.sample("_sum", &[label], seconds);
        family.sample("_count", &[label], count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_rise_and_are_written_as_they_are() {
        assert!(BOUNDS.is_sorted_by(|a, b| a.0 < b.0));
        for (nanos, text) in BOUNDS {
            let written: f64 = text.parse().unwrap();
            assert!((written * 1e9 - nanos as f64).abs() < 1e-3, "{text}");
        }
    }
}
