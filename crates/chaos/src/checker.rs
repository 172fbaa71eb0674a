//! Judges what was admitted, from the raw log alone.
//!
//! A decision fell somewhere between the two instants at which its caller read the clock. An interval is
//! charged only with those that lie inside it for certain, so whatever is found is an excess.

use std::collections::BTreeMap;
use std::ops::Range;

use tidegate::Source;

use crate::log::{Entry, SOURCES, Said};

/// The bound that a limit promises, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bound {
    /// At most `limit` in every half-open interval of length `window`.
    Window { limit: u64, window: u64 },
    /// At most `burst + count * t / period` in every interval of length `t`, ends included.
    Bucket { burst: u64, count: u64, period: u64 },
}

impl Bound {
    /// What it allows when the store has forgotten everything so many times.
    pub(crate) fn after(self, forgotten: u64) -> Self {
        match self {
            Self::Window { limit, window } => {
                Self::Window { limit: limit * (1 + forgotten), window }
            }
            Self::Bucket { burst, count, period } => {
                Self::Bucket { burst: burst * (1 + forgotten), count, period }
            }
        }
    }

    /// What half of the limit allows, which is what a process grants alone.
    pub(crate) fn half(self) -> Self {
        let half = |count: u64| if count == 0 { 0 } else { (count / 2).max(1) };
        match self {
            Self::Window { limit, window } => Self::Window { limit: half(limit), window },
            // The rate as a fraction, since half of an odd count is none.
            Self::Bucket { burst, count, period } => {
                Self::Bucket { burst: half(burst), count, period: 2 * period }
            }
        }
    }

    /// What both allow together.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Window { limit, window }, Self::Window { limit: more, window: same }) => {
                assert_eq!(window, same, "windows of one length");
                Self::Window { limit: limit + more, window }
            }
            (
                Self::Bucket { burst, count, period },
                Self::Bucket { burst: b, count: c, period: p },
            ) => {
                Self::Bucket { burst: burst + b, count: count * p + c * period, period: period * p }
            }
            _ => panic!("bounds of one kind"),
        }
    }

    /// What it allows at once.
    pub(crate) fn at_once(self) -> u64 {
        match self {
            Self::Window { limit, .. } => limit,
            Self::Bucket { burst, .. } => burst,
        }
    }

    /// The most that one key was admitted at once, in its worst interval: for a window what lies inside
    /// one, for a bucket what is beyond its rate. At most [`at_once`](Self::at_once), if it holds.
    pub(crate) fn worst(self, log: &[Entry], counts: impl Fn(Source) -> bool) -> Worst {
        let mut by_key = BTreeMap::<u32, Vec<&Entry>>::new();
        for entry in log {
            if matches!(entry.said, Said::Allow(source) if counts(source)) {
                by_key.entry(entry.key).or_default().push(entry);
            }
        }
        let worst = by_key.into_iter().map(|(key, admitted)| self.worst_of(key, admitted));
        worst.max_by_key(|worst| worst.admitted).unwrap_or_default()
    }

    fn worst_of(self, key: u32, mut admitted: Vec<&Entry>) -> Worst {
        let mut ends: Vec<u64> = admitted.iter().map(|entry| entry.ended).collect();
        ends.sort_unstable();
        ends.dedup();
        // In permits per `unit`, so that nothing is divided before the end.
        let (unit, rate) = match self {
            Self::Window { .. } => (1, 0),
            Self::Bucket { count, period, .. } => (i128::from(period), i128::from(count)),
        };
        let level = |end: &u64| -rate * i128::from(*end);
        let mut sums = Sums::new(&ends.iter().map(level).collect::<Vec<_>>());
        let mut worst = Worst { key, ..Worst::default() };
        // From the last that began: all that are in it by then began after the start of the interval.
        admitted.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.begun));
        let mut rest = &admitted[..];
        while let Some(start) = rest.first().map(|entry| entry.begun) {
            let same = rest.iter().take_while(|entry| entry.begun == start).count();
            for entry in &rest[..same] {
                let place = ends.partition_point(|end| *end < entry.ended);
                sums.add_from(place, i128::from(entry.cost) * unit);
            }
            rest = &rest[same..];
            let last = match self {
                Self::Window { window, .. } => ends.partition_point(|end| *end < start + window),
                Self::Bucket { .. } => ends.len(),
            };
            // What ended before cannot have begun after.
            let first = ends.partition_point(|end| *end < start);
            let most = sums.most(first..last) + rate * i128::from(start);
            let excess = u64::try_from(most.max(0).div_ceil_by(unit)).unwrap();
            if excess > worst.admitted {
                (worst.admitted, worst.at) = (excess, start);
            }
        }
        worst
    }
}

/// The worst interval of the worst key.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Worst {
    pub(crate) admitted: u64,
    pub(crate) key: u32,
    /// When it began.
    pub(crate) at: u64,
}

/// How many decisions each source made, those without any last.
pub(crate) fn by_source(log: &[Entry]) -> Vec<(&'static str, u64)> {
    let count = |source| log.iter().filter(|entry| entry.said.source() == source).count() as u64;
    let named = SOURCES.into_iter().map(|source| (source.name(), count(Some(source))));
    named.chain([("nobody", count(None))]).filter(|(_, count)| *count > 0).collect()
}

/// The value below which so many of a thousand lie. Zero of nothing.
pub(crate) fn quantile(values: &mut [u64], per_mille: usize) -> u64 {
    values.sort_unstable();
    let place = (values.len() * per_mille).div_ceil(1000).max(1) - 1;
    values.get(place).copied().unwrap_or_default()
}

trait DivCeil {
    fn div_ceil_by(self, unit: Self) -> Self;
}

/// Of what is not negative. A part of a permit beyond the bound is a permit beyond it.
impl DivCeil for i128 {
    fn div_ceil_by(self, unit: Self) -> Self {
        (self + unit - 1) / unit
    }
}

/// Numbers in a row: some are raised together, and the largest of a part is asked for.
struct Sums {
    /// A tree: the largest below each node, without what its ancestors were raised by.
    most: Vec<i128>,
    raised: Vec<i128>,
    leaves: usize,
}

impl Sums {
    fn new(values: &[i128]) -> Self {
        let leaves = values.len().next_power_of_two().max(1);
        let mut most = vec![LOWEST; 2 * leaves];
        most[leaves..leaves + values.len()].copy_from_slice(values);
        for node in (1..leaves).rev() {
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
        Self { most, raised: vec![0; 2 * leaves], leaves }
    }

    /// Raises all from `place` on.
    fn add_from(&mut self, place: usize, amount: i128) {
        let mut node = place + self.leaves;
        self.raise(node, amount);
        while node > 1 {
            if node.is_multiple_of(2) {
                self.raise(node + 1, amount);
            }
            node /= 2;
            self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.raised[node];
        }
    }

    fn raise(&mut self, node: usize, amount: i128) {
        self.most[node] += amount;
        self.raised[node] += amount;
    }

    /// The largest of these; hardly anything if there are none.
    fn most(&self, of: Range<usize>) -> i128 {
        self.most_below(1, 0..self.leaves, &of)
    }

    /// The same among what lies below a node, which has these.
    fn most_below(&self, node: usize, has: Range<usize>, of: &Range<usize>) -> i128 {
        if has.end <= of.start || of.end <= has.start {
            return LOWEST;
        }
        if of.start <= has.start && has.end <= of.end {
            return self.most[node];
        }
        let middle = has.start.midpoint(has.end);
        let left = self.most_below(2 * node, has.start..middle, of);
        let right = self.most_below(2 * node + 1, middle..has.end, of);
        left.max(right) + self.raised[node]
    }
}

/// Less than whatever can be counted.
const LOWEST: i128 = i128::MIN / 4;

#[cfg(test)]
mod tests;
