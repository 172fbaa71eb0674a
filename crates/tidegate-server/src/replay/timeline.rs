//! How much was denied when, in a few buckets whatever the length of the log.

use tidegate::Micros;

/// Counts per span of time. The span grows so that there are never more than [`Timeline::BUCKETS`].
#[derive(Debug)]
pub(super) struct Timeline {
    /// The place in [`WIDTHS`], or beyond: then the last one is doubled.
    step: usize,
    /// The number of the first bucket, counted from 1970.
    first: u64,
    buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Bucket {
    pub(super) requests: u64,
    pub(super) denied: u64,
    /// Would be denied if the limits that look on decided.
    pub(super) would_deny: u64,
}

/// In seconds. Each is a multiple of the one before.
const WIDTHS: [u64; 14] =
    [1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800];

impl Timeline {
    pub(super) const BUCKETS: usize = 72;

    pub(super) fn new() -> Self {
        Self { step: 0, first: 0, buckets: Vec::new() }
    }

    /// Adds to the bucket of this instant, which is no earlier than any before.
    pub(super) fn add(&mut self, at: Micros, what: Bucket) {
        let second = at.get() / 1_000_000;
        if self.buckets.is_empty() {
            self.first = second / self.seconds();
        }
        while second / self.seconds() - self.first >= Self::BUCKETS as u64 {
            self.widen();
        }
        let place = (second / self.seconds() - self.first) as usize;
        if place >= self.buckets.len() {
            self.buckets.resize(place + 1, Bucket::default());
        }
        self.buckets[place].add(what);
    }

    /// The length of a bucket.
    pub(super) fn width(&self) -> Micros {
        Micros::from_secs(self.seconds())
    }

    /// The buckets in order, each with its beginning.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (Micros, Bucket)> {
        let begin = |(i, bucket): (usize, &Bucket)| {
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
        let mut wider: Vec<Bucket> = Vec::new();
        for (i, bucket) in self.buckets.iter().enumerate() {
            let place = ((first + i as u64) / factor - self.first) as usize;
            wider.resize(place + 1, Bucket::default());
            wider[place].add(*bucket);
        }
        self.buckets = wider;
    }
}

impl Bucket {
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
        const ONE: Bucket = Bucket { requests: 1, denied: 1, would_deny: 0 };
        for step in [1, 7, 61, 3_601, 1_000_000, 80_000_000] {
            let mut timeline = Timeline::new();
            for i in 0..100 {
                timeline.add(Micros::from_secs(1_700_000_000 + i * step), ONE);
                assert!(timeline.buckets.len() <= Timeline::BUCKETS, "{step}");
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
    fn a_leap_to_the_end_of_time_is_one_more_bucket() {
        let mut timeline = Timeline::new();
        timeline.add(Micros::ZERO, Bucket { requests: 2, ..Bucket::default() });
        timeline.add(Micros::MAX, Bucket { requests: 3, ..Bucket::default() });
        assert_eq!(timeline.buckets().map(|(_, b)| b.requests).sum::<u64>(), 5);
    }
}
