//! A histogram of durations; an observation costs two relaxed additions. And the lines of any
//! histogram.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::exposition::MetricFamily;

/// The upper bounds of the buckets in nanoseconds, and as text in seconds. They range from a
/// decision in memory to a very slow store.
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

/// Longer durations count as this one, an hour, so that the sum does not overflow.
const MAX_NANOS: u64 = 3_600_000_000_000;

#[derive(Default, Debug)]
pub(crate) struct Histogram {
    /// Observations between the previous bound and this one; the last bucket has no bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

impl Histogram {
    pub(crate) fn observe(&self, duration: Duration, times: u64) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(MAX_NANOS).min(MAX_NANOS);
        // A bound is included in its bucket.
        let bucket = BOUNDS.partition_point(|(bound, _)| *bound < nanos);
        self.buckets[bucket].fetch_add(times, Ordering::Relaxed);
        self.sum_nanos.fetch_add(nanos.saturating_mul(times), Ordering::Relaxed);
    }

    /// The number of observations in each bucket.
    pub(crate) fn counts(&self) -> BucketCounts {
        BucketCounts(self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed)))
    }

    pub(crate) fn render(&self, family: &mut MetricFamily<'_>, label: (&str, &str)) {
        let bounds = BOUNDS.iter().map(|(_, text)| *text);
        let sum = self.sum_nanos.load(Ordering::Relaxed);
        let seconds = format!("{}.{:09}", sum / 1_000_000_000, sum % 1_000_000_000);
        render_buckets(family, &[label], bounds, &self.counts().0, &seconds);
    }
}

/// The lines of one histogram. The last bucket has no bound. The count is the sum of the buckets,
/// so that the two agree under concurrent observations.
pub(super) fn render_buckets<'b>(
    family: &mut MetricFamily<'_>,
    labels: &[(&str, &str)],
    bounds: impl Iterator<Item = &'b str>,
    buckets: &[u64],
    sum: &str,
) {
    let mut count = 0;
    for (bound, bucket) in bounds.chain(["+Inf"]).zip(buckets) {
        count += bucket;
        family.sample("_bucket", &[labels, &[("le", bound)]].concat(), count);
    }
    family.sample("_sum", labels, sum);
    family.sample("_count", labels, count);
}

/// The number of durations in each bucket.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct BucketCounts(pub(crate) [u64; Self::BUCKETS]);

impl BucketCounts {
    /// The number of buckets; the last one has no bound.
    pub(crate) const BUCKETS: usize = BOUNDS.len() + 1;

    pub(crate) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }

    /// The percentile in nanoseconds, interpolated within its bucket. A duration beyond all bounds
    /// counts as the last bound. `None` if there are no durations.
    pub(crate) fn percentile(&self, percent: u64) -> Option<u64> {
        let count: u64 = self.0.iter().sum();
        if count == 0 {
            return None;
        }
        let rank = count.saturating_mul(percent).div_ceil(100).max(1);
        let (mut before, mut from) = (0, 0);
        for ((bound, _), bucket) in BOUNDS.iter().zip(self.0) {
            if before + bucket >= rank {
                let part = u128::from(bound - from) * u128::from(rank - before);
                return u64::try_from(part / u128::from(bucket)).ok().map(|part| from + part);
            }
            (before, from) = (before + bucket, *bound);
        }
        Some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_within_its_bucket() {
        let of = |spans: &[(u64, u64)]| {
            let histogram = Histogram::default();
            for (micros, times) in spans {
                histogram.observe(Duration::from_micros(*micros), *times);
            }
            [50, 99, 100].map(|percent| histogram.counts().percentile(percent))
        };
        assert_eq!(of(&[]), [None; 3]);
        assert_eq!(of(&[(3, 100)]), [Some(2_500), Some(4_950), Some(5_000)]);
        assert_eq!(of(&[(20, 1)]), [Some(25_000); 3]);
        let [half, most, all] = of(&[(3, 98), (200, 1), (2_000, 1)]);
        assert!(half.unwrap() <= 5_000, "{half:?}");
        assert_eq!((most, all), (Some(250_000), Some(2_500_000)));
        assert_eq!(of(&[(9_000_000, 3)]), [Some(1_000_000_000); 3], "beyond all bounds");
    }

    #[test]
    fn bounds_increase_and_equal_their_text() {
        assert!(BOUNDS.is_sorted_by(|a, b| a.0 < b.0));
        for (nanos, text) in BOUNDS {
            let written: f64 = text.parse().unwrap();
            assert!((written * 1e9 - nanos as f64).abs() < 1e-3, "{text}");
        }
    }
}
