//! Smallest limit at which a key is never denied (`--suggest`).
//!
//! The size that a key needs is the most that it uses at any time if every request is charged, the
//! request at that time included. A smaller limit denies the request that reaches the maximum; this
//! size denies none, since up to then both have charged the same. The size is the burst or capacity
//! of a bucket, whose rate stays the same, or the count of a window.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;

use tidegate::{Algorithm, Cost, Key, Limit, Micros, RuleLimit};
use tidegate_core::{Holds, Packed, State};

/// Sizes that the keys of one limit need.
#[derive(Debug)]
pub(crate) struct SizeEstimates {
    limit: Arc<RuleLimit>,
    /// The limit with the largest capacity that counts exactly.
    largest: Limit,
    hasher: RandomState,
    keys: TrackedKeys,
    /// Requests of keys beyond the budget.
    uncounted: u64,
    /// A sliding log was compacted, so that some sizes are overestimated.
    is_upper_bound: bool,
}

/// Remaining memory for the size estimates of a policy.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    keys: usize,
    /// Bytes of sliding logs.
    heap_bytes: usize,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self { keys: Self::MAX_KEYS, heap_bytes: Self::MAX_HEAP }
    }
}

impl MemoryBudget {
    const MAX_KEYS: usize = 1_800_000;
    const MAX_HEAP: usize = 64 << 20;
}

type KeyTable<T> = HashMap<u64, (T, u64), BuildHasherDefault<PrehashedHasher>>;

/// State and needed size by key.
#[derive(Debug)]
enum TrackedKeys {
    /// States that pack into two numbers.
    Packed(KeyTable<[u64; 2]>),
    Unpacked(KeyTable<Option<State>>),
}

/// No state. The numbers of a state have at most [`Packed::BITS`] bits.
const UNUSED: [u64; 2] = [u64::MAX; 2];

/// Distribution of the needed sizes of one limit.
#[derive(Clone, Debug)]
pub(crate) struct SizeDistribution {
    pub(crate) limit: Arc<RuleLimit>,
    pub(crate) keys: usize,
    pub(crate) uncounted: u64,
    pub(crate) is_upper_bound: bool,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
    /// Size at the requested percentile.
    pub(crate) wanted: u64,
    /// Keys that are still denied at that size.
    pub(crate) keys_above: usize,
    /// The limit with that size; `None` if the size is out of range.
    pub(crate) suggested: Option<Limit>,
}

/// Percentage in thousandths of a percent, above 0 and at most 100 %.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Percentile(u64);

impl Percentile {
    const ALL: Self = Self(100_000);
}

impl FromStr for Percentile {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const INVALID: &str = "expected a percentage above 0 and at most 100 with at most three \
                               decimals, for example 99.9";
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |digits: &str| {
            (1..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
        };
        if !is_number(whole) || !is_number(part) {
            return Err(INVALID);
        }
        let thousandths: u64 = format!("{whole}{part:0<3}").parse().map_err(|_| INVALID)?;
        if thousandths == 0 || thousandths > Self::ALL.0 {
            Err(INVALID)
        } else {
            Ok(Self(thousandths))
        }
    }
}

impl fmt::Display for Percentile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.0 / 1_000, self.0 % 1_000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl SizeEstimates {
    /// Size of a key that exceeds the largest limit.
    pub(crate) const BEYOND: u64 = u64::MAX;

    /// `None` for a limit without a size to change: a concurrency limit, or one that denies all.
    pub(crate) fn new(limit: &Arc<RuleLimit>) -> Option<Self> {
        let largest = with_max_capacity(limit.limit())?;
        let keys = match largest.packs() {
            true => TrackedKeys::Packed(KeyTable::default()),
            false => TrackedKeys::Unpacked(KeyTable::default()),
        };
        let limit = limit.clone();
        let hasher = RandomState::new();
        Some(Self { limit, largest, hasher, keys, uncounted: 0, is_upper_bound: false })
    }

    pub(crate) fn charge(
        &mut self,
        key: Key<'_>,
        cost: Cost,
        now: Micros,
        budget: &mut MemoryBudget,
    ) {
        let hash = self.hasher.hash_one(key);
        let at = self.limit.moment(now);
        match &mut self.keys {
            TrackedKeys::Packed(table) => {
                let Some((state, size)) = entry(table, hash, UNUSED, budget) else {
                    self.uncounted += 1;
                    return;
                };
                let packed = Packed::new(*state);
                let Some((verdict, next)) = self.largest.decide(packed, &at, cost) else { return };
                *state = next.map_or(UNUSED, Packed::numbers);
                let used = verdict.limit - verdict.remaining;
                *size = (*size).max(if verdict.allowed { used } else { Self::BEYOND });
            }
            TrackedKeys::Unpacked(table) => {
                let Some((state, size)) = entry(table, hash, None, budget) else {
                    self.uncounted += 1;
                    return;
                };
                let used = self
                    .largest
                    .standing(state.as_ref(), Holds::NONE, &at)
                    .used
                    .saturating_add(cost.get());
                if used > self.largest.capacity() {
                    *size = Self::BEYOND;
                    return;
                }
                let bytes = |state: &Option<State>| state.as_ref().map_or(0, State::heap_bytes);
                let before = bytes(state);
                self.largest.charge(state, &at, cost, None);
                *size = (*size).max(used);
                if bytes(state) > budget.heap_bytes + before {
                    self.is_upper_bound |= self.largest.compact(state, &at);
                }
                budget.heap_bytes = (budget.heap_bytes + before).saturating_sub(bytes(state));
            }
        }
    }

    /// `None` if there are no keys.
    pub(crate) fn distribution(&self, percentile: Percentile) -> Option<SizeDistribution> {
        let mut sizes: Vec<u64> = match &self.keys {
            TrackedKeys::Packed(table) => table.values().map(|(_, size)| *size).collect(),
            TrackedKeys::Unpacked(table) => table.values().map(|(_, size)| *size).collect(),
        };
        sizes.sort_unstable();
        let at = |percentile: Percentile| sizes.get(rank(percentile, sizes.len())).copied();
        let wanted = at(percentile)?;
        Some(SizeDistribution {
            limit: self.limit.clone(),
            keys: sizes.len(),
            uncounted: self.uncounted,
            is_upper_bound: self.is_upper_bound,
            p50: at(Percentile(50_000))?,
            p90: at(Percentile(90_000))?,
            p99: at(Percentile(99_000))?,
            max: at(Percentile::ALL)?,
            wanted,
            keys_above: sizes.len() - sizes.partition_point(|size| *size <= wanted),
            suggested: with_size(self.limit.limit(), wanted),
        })
    }
}

/// Index of a percentile in a sorted list of `count` values (nearest rank).
fn rank(percentile: Percentile, count: usize) -> usize {
    let wanted = (count as u64).saturating_mul(percentile.0).div_ceil(Percentile::ALL.0);
    (wanted as usize).clamp(1, count.max(1)) - 1
}

/// The entry of a key; `None` if it is new and the budget is used up.
fn entry<'t, T>(
    table: &'t mut KeyTable<T>,
    hash: u64,
    unused: T,
    budget: &mut MemoryBudget,
) -> Option<&'t mut (T, u64)> {
    match table.entry(hash) {
        Entry::Occupied(known) => Some(known.into_mut()),
        Entry::Vacant(_) if budget.keys == 0 => None,
        Entry::Vacant(new) => {
            budget.keys -= 1;
            Some(new.insert((unused, 0)))
        }
    }
}

/// The limit with the largest capacity that keeps the tick, so that it counts the same.
fn with_max_capacity(limit: &Limit) -> Option<Limit> {
    if limit.lease().is_some() {
        return None;
    }
    let max =
        if limit.algorithm() == Algorithm::SlidingLog { Limit::MAX_LOG } else { (1 << 52) - 1 };
    let sizes =
        std::iter::successors(Some(max), |size| Some(size / 2)).take_while(|size| *size > 0);
    sizes.filter_map(|size| with_size(limit, size)).find(|larger| larger.tick() == limit.tick())
}

/// The limit with another size. It is built from the notation, which has all parts of a limit.
pub(crate) fn with_size(limit: &Limit, size: u64) -> Option<Limit> {
    let option = match limit.algorithm() {
        Algorithm::TokenBucket => Some("burst"),
        Algorithm::LeakyBucket => Some("capacity"),
        _ => None,
    };
    let text = limit.to_string();
    let mut words = text.split(' ');
    let mut sized: Vec<String> = Vec::new();
    while let Some(word) = words.next() {
        match (option, word.split_once('/')) {
            (Some(option), _) if word == option => {
                words.next();
            }
            // A time zone also has a slash, but no number before it.
            (None, Some((count, span))) if count.bytes().all(|b| b.is_ascii_digit()) => {
                sized.push(format!("{size}/{span}"));
            }
            _ => sized.push(word.to_string()),
        }
    }
    sized.extend(option.map(|option| format!("{option} {size}")));
    sized.join(" ").parse().ok()
}

/// The keys are hashes with a random secret already.
#[derive(Default)]
struct PrehashedHasher(u64);

impl Hasher for PrehashedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_with_another_size_is_otherwise_the_same() {
        for (limit, size, expected) in [
            ("100/s", 7, "100/s burst 7"),
            ("100/s burst 20", 100, "100/s"),
            ("token-bucket 10/s burst 50 every 1s", 70, "10/s burst 70 every 1s"),
            ("leaky-bucket 10/s capacity 30 queue", 8, "leaky-bucket 10/s capacity 8 queue"),
            ("leaky-bucket 10/s", 12, "leaky-bucket 10/s capacity 12"),
            ("fixed-window 1000/d tz Asia/Shanghai", 5, "fixed-window 5/d tz Asia/Shanghai"),
            ("fixed-window 100/60s first-hit", 5, "fixed-window 5/60s first-hit"),
            ("sliding-log 5/1m", 6, "sliding-log 6/1m"),
            ("sliding-window 240/1h precision 1m", 3, "sliding-window 3/1h precision 1m"),
            ("sliding-window 240/1h approximate", 3, "sliding-window 3/1h approximate"),
        ] {
            let limit: Limit = limit.parse().unwrap();
            assert_eq!(with_size(&limit, size), Some(expected.parse().unwrap()), "{limit}");
            let largest = with_max_capacity(&limit).unwrap();
            assert!(largest.capacity() >= 1_000_000 && largest.tick() == limit.tick(), "{limit}");
        }
        for limit in ["concurrency 5", "0/s"] {
            assert!(with_max_capacity(&limit.parse().unwrap()).is_none(), "{limit}");
        }
    }

    #[test]
    fn a_percentile_is_the_nearest_rank() {
        for (percentile, count, place) in [
            ("50", 4, 1),
            ("50", 5, 2),
            ("99", 100, 98),
            ("99.9", 1_000, 998),
            ("99.9", 10, 9),
            ("99.999", 100_000, 99_998),
            ("100", 7, 6),
        ] {
            assert_eq!(rank(percentile.parse().unwrap(), count), place, "{percentile} of {count}");
        }
        for text in ["", "0", "-1", "100.001", "101", "99.9999", "99,9", "1e1", ".", "9."] {
            assert!(text.parse::<Percentile>().is_err(), "{text}");
        }
    }
}
