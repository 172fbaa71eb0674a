//! Denials over time, in a bounded number of buckets.

use tidegate::Micros;

/// Counts per bucket. Buckets widen so that there are at most [`Timeline::MAX_BUCKETS`].
#[derive(Debug)]
pub(crate) struct Timeline {
    /// Index into [`WIDTHS`]; beyond its end, the last width is doubled with every step.
    step: usize,
    /// Number of the first bucket, counted from 1970.
    first: u64,
    buckets: Vec<TimelineBucket>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct TimelineBucket {
    pub(crate) requests: u64,
    pub(crate) denied: u64,
    /// Allowed requests that shadow limits would deny.
    pub(crate) would_deny: u64,
}

/// In seconds. Each is a multiple of the one before.
const WIDTHS: [u64; 14] =
    [1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800];

impl Timeline {
    pub(crate) const MAX_BUCKETS: usize = 72;

    pub(crate) fn new() -> Self {
        Self { step: 0, first: 0, buckets: Vec::new() }
    }

    /// Adds to the bucket of this time, which must not be before that of an earlier call.
    pub(crate) fn add(&mut self, at: Micros, counts: TimelineBucket) {
        let second = at.get() / 1_000_000;
        if self.buckets.is_empty() {
            self.first = second / self.seconds();
        }
        while second / self.seconds() - self.first >= Self::MAX_BUCKETS as u64 {
            self.widen();
        }
        let place = (second / self.seconds() - self.first) as usize;
        if place >= self.buckets.len() {
            self.buckets.resize(place + 1, TimelineBucket::default());
        }
        self.buckets[place].add(counts);
    }

    /// Length of a bucket.
    pub(crate) fn width(&self) -> Micros {
        Micros::from_secs(self.seconds())
    }

    /// Buckets in order, each with its start.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (Micros, TimelineBucket)> {
        let begin = |(i, bucket): (usize, &TimelineBucket)| {
            (Micros::from_secs((self.first + i as u64) * self.seconds()), *bucket)
        };
        self.buckets.iter().enumerate().map(begin)
    }

    fn seconds(&self) -> u64 {
        let last = WIDTHS.len() - 1;
        WIDTHS[self.step.min(last)] << self.step.saturating_sub(last)
    }

    fn widen(&mut self) {
        let (old, first) = (self.seconds(), self.first);
        self.step += 1;
        let factor = self.seconds() / old;
        self.first = first / factor;
        let mut wider: Vec<TimelineBucket> = Vec::new();
        for (i, bucket) in self.buckets.iter().enumerate() {
            let place = ((first + i as u64) / factor - self.first) as usize;
            wider.resize(place + 1, TimelineBucket::default());
            wider[place].add(*bucket);
        }
        self.buckets = wider;
    }
}

impl TimelineBucket {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.denied += other.denied;
        self.would_deny += other.would_deny;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_stay_few_and_lose_nothing() {
        const ONE: TimelineBucket = TimelineBucket { requests: 1, denied: 1, would_deny: 0 };
        for step in [1, 7, 61, 3_601, 1_000_000, 80_000_000] {
            let mut timeline = Timeline::new();
            for i in 0..100 {
                timeline.add(Micros::from_secs(1_700_000_000 + i * step), ONE);
                assert!(timeline.buckets.len() <= Timeline::MAX_BUCKETS, "{step}");
            }
            assert_eq!(timeline.buckets().map(|(_, b)| b.denied).sum::<u64>(), 100, "{step}");
            let (first, _) = timeline.buckets().next().unwrap();
            let width = timeline.width();
            assert!(first.get() <= 1_700_000_000_000_000);
            assert!(1_700_000_000_000_000 - first.get() < width.get());
            assert_eq!(first.get() % width.get(), 0);
        }
    }

    #[test]
    fn a_jump_to_the_end_of_time_loses_no_counts() {
        let mut timeline = Timeline::new();
        timeline.add(Micros::ZERO, TimelineBucket { requests: 2, ..TimelineBucket::default() });
        timeline.add(Micros::MAX, TimelineBucket { requests: 3, ..TimelineBucket::default() });
        assert_eq!(timeline.buckets().map(|(_, b)| b.requests).sum::<u64>(), 5);
    }
}
