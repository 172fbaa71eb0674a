//! Checks admissions against the bound of a limit, from the log only.
//!
//! A decision was made between the two instants at which its caller read the clock. An interval
//! counts only decisions that certainly lie inside it, so every reported excess is real.

use std::collections::BTreeMap;
use std::ops::Range;

use tidegate::Source;

use crate::log::{CallResult, LoggedCall, SOURCES};

/// The guaranteed bound of a limit, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bound {
    /// At most `limit` in every half-open interval of length `window`.
    Window { limit: u64, window: u64 },
    /// At most `burst + count * t / period` in every interval of length `t`, ends included.
    Bucket { burst: u64, count: u64, period: u64 },
}

impl Bound {
    /// The bound if the store has lost its state so many times.
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

    /// The bound of half the limit, which is what the fallback enforces.
    pub(crate) fn half(self) -> Self {
        let half = |count: u64| if count == 0 { 0 } else { (count / 2).max(1) };
        match self {
            Self::Window { limit, window } => Self::Window { limit: half(limit), window },
            // The rate stays a fraction: half of an odd count is not an integer.
            Self::Bucket { burst, count, period } => {
                Self::Bucket { burst: half(burst), count, period: 2 * period }
            }
        }
    }

    /// Sum of both bounds.
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

    /// Admissions allowed at one instant.
    pub(crate) fn at_once(self) -> u64 {
        match self {
            Self::Window { limit, .. } => limit,
            Self::Bucket { burst, .. } => burst,
        }
    }

    /// Admissions of the worst interval of any key: for a window those inside one, for a bucket
    /// those beyond its rate. At most [`at_once`](Self::at_once) if the bound holds.
    pub(crate) fn worst(
        self,
        log: &[LoggedCall],
        counts: impl Fn(Source) -> bool,
    ) -> WorstInterval {
        let mut by_key = BTreeMap::<u32, Vec<&LoggedCall>>::new();
        for entry in log {
            if matches!(entry.result, CallResult::Allow(source) if counts(source)) {
                by_key.entry(entry.key).or_default().push(entry);
            }
        }
        let worst = by_key.into_iter().map(|(key, admitted)| self.worst_of(key, admitted));
        worst.max_by_key(|worst| worst.admitted).unwrap_or_default()
    }

    fn worst_of(self, key: u32, mut admitted: Vec<&LoggedCall>) -> WorstInterval {
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
        let mut worst = WorstInterval { key, ..WorstInterval::default() };
        // By start, latest first: all calls added so far began after the start of the interval.
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
            // A call that ended before the start also began before it.
            let first = ends.partition_point(|end| *end < start);
            let max = sums.max(first..last) + rate * i128::from(start);
            let excess = u64::try_from(max.max(0).div_ceil_by(unit)).unwrap();
            if excess > worst.admitted {
                (worst.admitted, worst.at) = (excess, start);
            }
        }
        worst
    }
}

/// The worst interval of the worst key.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct WorstInterval {
    pub(crate) admitted: u64,
    pub(crate) key: u32,
    /// Start of the interval.
    pub(crate) at: u64,
}

/// Name for calls without a decision in [`by_source`].
pub(crate) const NO_SOURCE: &str = "none";

/// Number of decisions by source; calls without a decision last.
pub(crate) fn by_source(log: &[LoggedCall]) -> Vec<(&'static str, u64)> {
    let count = |source| log.iter().filter(|entry| entry.result.source() == source).count() as u64;
    let named = SOURCES.into_iter().map(|source| (source.name(), count(Some(source))));
    named.chain([(NO_SOURCE, count(None))]).filter(|(_, count)| *count > 0).collect()
}

/// The quantile in per mille; 0 for no values.
pub(crate) fn quantile(values: &mut [u64], per_mille: usize) -> u64 {
    values.sort_unstable();
    let place = (values.len() * per_mille).div_ceil(1000).max(1) - 1;
    values.get(place).copied().unwrap_or_default()
}

trait DivCeil {
    fn div_ceil_by(self, unit: Self) -> Self;
}

/// For non-negative values. A fraction of a permit beyond the bound counts as a whole one.
impl DivCeil for i128 {
    fn div_ceil_by(self, unit: Self) -> Self {
        (self + unit - 1) / unit
    }
}

/// Segment tree: adds to a suffix, returns the maximum of a range.
struct Sums {
    /// Maximum below each node, without the additions of its ancestors.
    max: Vec<i128>,
    added: Vec<i128>,
    leaves: usize,
}

impl Sums {
    fn new(values: &[i128]) -> Self {
        let leaves = values.len().next_power_of_two().max(1);
        let mut max = vec![LOWEST; 2 * leaves];
        max[leaves..leaves + values.len()].copy_from_slice(values);
        for node in (1..leaves).rev() {
            max[node] = max[2 * node].max(max[2 * node + 1]);
        }
        Self { max, added: vec![0; 2 * leaves], leaves }
    }

    /// Adds to all values from `place` on.
    fn add_from(&mut self, place: usize, amount: i128) {
        let mut node = place + self.leaves;
        self.add_to_node(node, amount);
        while node > 1 {
            if node.is_multiple_of(2) {
                self.add_to_node(node + 1, amount);
            }
            node /= 2;
            self.max[node] = self.max[2 * node].max(self.max[2 * node + 1]) + self.added[node];
        }
    }

    fn add_to_node(&mut self, node: usize, amount: i128) {
        self.max[node] += amount;
        self.added[node] += amount;
    }

    /// Maximum of a range; [`LOWEST`] if it is empty.
    fn max(&self, of: Range<usize>) -> i128 {
        self.max_below(1, 0..self.leaves, &of)
    }

    /// Maximum of the range among the leaves `has` below a node.
    fn max_below(&self, node: usize, has: Range<usize>, of: &Range<usize>) -> i128 {
        if has.end <= of.start || of.end <= has.start {
            return LOWEST;
        }
        if of.start <= has.start && has.end <= of.end {
            return self.max[node];
        }
        let middle = has.start.midpoint(has.end);
        let left = self.max_below(2 * node, has.start..middle, of);
        let right = self.max_below(2 * node + 1, middle..has.end, of);
        left.max(right) + self.added[node]
    }
}

/// Below every possible sum.
const LOWEST: i128 = i128::MIN / 4;

#[cfg(test)]
mod tests;
