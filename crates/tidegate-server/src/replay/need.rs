//! How large a limit every key would have needed.
//!
//! A key's need is the least size at which it would never have been denied: the most that it has used at any
//! instant, its request of that instant included, if everything is charged. A smaller limit denies the request that
//! reaches it, and a larger one none, since up to then both have charged the same. The size is the burst or capacity
//! of a bucket, whose rate stays, and the count of a window.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;

use tidegate::{Algorithm, Cost, Key, Limit, Micros, RuleLimit};
use tidegate_core::{Holds, Packed, State};

/// What the keys under one limit would have needed.
#[derive(Debug)]
pub(super) struct Needs {
    limit: Arc<RuleLimit>,
    /// The same with as much room as can be counted exactly.
    roomy: Limit,
    hasher: RandomState,
    kept: Kept,
    /// Keys that came when there was no room for more.
    uncounted: u64,
    /// A log was shortened, so that some needs are less than told.
    is_upper_bound: bool,
}

/// What the needs of all keys of a policy may take.
#[derive(Debug)]
pub(super) struct Room {
    /// How many more keys.
    keys: usize,
    /// How many more bytes of logs.
    heap_bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { keys: Self::MAX_KEYS, heap_bytes: Self::MAX_HEAP }
    }
}

impl Room {
    const MAX_KEYS: usize = 1_800_000;
    const MAX_HEAP: usize = 64 << 20;
}

type Table<T> = HashMap<u64, (T, u64), BuildHasherDefault<AsItIs>>;

#[derive(Debug)]
enum Kept {
    /// As two numbers.
    Small(Table<[u64; 2]>),
    Large(Table<Option<State>>),
}

/// Stands for no state. A state has numbers of [`Packed::BITS`].
const UNUSED: [u64; 2] = [u64::MAX; 2];

/// What is asked of a limit's keys.
#[derive(Clone, Debug)]
pub(super) struct Distribution {
    pub(super) limit: Arc<RuleLimit>,
    pub(super) keys: usize,
    pub(super) uncounted: u64,
    pub(super) is_upper_bound: bool,
    pub(super) p50: u64,
    pub(super) p90: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
    /// The need at the percentile that was asked for.
    pub(super) wanted: u64,
    /// How many keys would have been denied at it.
    pub(super) keys_above: usize,
    /// The limit of that size; `None` if there is none so large.
    pub(super) suggested: Option<Limit>,
}

/// A share of all keys, in thousandths of a percent: more than none, and at most all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Percentile(u64);

impl Percentile {
    const ALL: Self = Self(100_000);
}

impl FromStr for Percentile {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str =
            "use a percentage above 0 and up to 100, like 99.9, with at most three decimals";
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |digits: &str| {
            (1..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
        };
        if !is_number(whole) || !is_number(part) {
            return Err(WRONG);
        }
        let thousandths: u64 = format!("{whole}{part:0<3}").parse().map_err(|_| WRONG)?;
        if thousandths == 0 || thousandths > Self::ALL.0 {
            Err(WRONG)
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

impl Needs {
    /// More than can be counted.
    pub(super) const BEYOND: u64 = u64::MAX;

    /// `None` for a limit that has no size to change: one that counts holders, or lets nothing pass.
    pub(super) fn new(limit: &Arc<RuleLimit>) -> Option<Self> {
        let roomy = roomy(limit.limit())?;
        let kept = match roomy.packs() {
            true => Kept::Small(Table::default()),
            false => Kept::Large(Table::default()),
        };
        let limit = limit.clone();
        let hasher = RandomState::new();
        Some(Self { limit, roomy, hasher, kept, uncounted: 0, is_upper_bound: false })
    }

    pub(super) fn charge(&mut self, key: Key<'_>, cost: Cost, now: Micros, room: &mut Room) {
        let hash = self.hasher.hash_one(key);
        let at = self.limit.moment(now);
        match &mut self.kept {
            Kept::Small(table) => {
                let Some((state, need)) = slot(table, hash, UNUSED, room) else {
                    self.uncounted += 1;
                    return;
                };
                let packed = Packed::new(*state);
                let Some((verdict, left)) = self.roomy.decide(packed, &at, cost) else { return };
                *state = left.map_or(UNUSED, Packed::numbers);
                let used = verdict.limit - verdict.remaining;
                *need = (*need).max(if verdict.allowed { used } else { Self::BEYOND });
            }
            Kept::Large(table) => {
                let Some((state, need)) = slot(table, hash, None, room) else {
                    self.uncounted += 1;
                    return;
                };
                let used = self
                    .roomy
                    .standing(state.as_ref(), Holds::NONE, &at)
                    .used
                    .saturating_add(cost.get());
                if used > self.roomy.capacity() {
                    *need = Self::BEYOND;
                    return;
                }
                let bytes = |state: &Option<State>| state.as_ref().map_or(0, State::heap_bytes);
                let before = bytes(state);
                self.roomy.charge(state, &at, cost, None);
                *need = (*need).max(used);
                if bytes(state) > room.heap_bytes + before {
                    self.is_upper_bound |= self.roomy.compact(state, &at);
                }
                room.heap_bytes = (room.heap_bytes + before).saturating_sub(bytes(state));
            }
        }
    }

    /// What all keys needed, and at this percentile of them; `None` if there are none.
    pub(super) fn distribution(&self, percentile: Percentile) -> Option<Distribution> {
        let mut needs: Vec<u64> = match &self.kept {
            Kept::Small(table) => table.values().map(|(_, need)| *need).collect(),
            Kept::Large(table) => table.values().map(|(_, need)| *need).collect(),
        };
        needs.sort_unstable();
        let at = |percentile: Percentile| needs.get(rank(percentile, needs.len())).copied();
        let wanted = at(percentile)?;
        Some(Distribution {
            limit: self.limit.clone(),
            keys: needs.len(),
            uncounted: self.uncounted,
            is_upper_bound: self.is_upper_bound,
            p50: at(Percentile(50_000))?,
            p90: at(Percentile(90_000))?,
            p99: at(Percentile(99_000))?,
            max: at(Percentile::ALL)?,
            wanted,
            keys_above: needs.len() - needs.partition_point(|need| *need <= wanted),
            suggested: sized(self.limit.limit(), wanted),
        })
    }
}

/// The place of a percentile among so many in order: the first at which so many percent are no larger.
fn rank(percentile: Percentile, count: usize) -> usize {
    let wanted = (count as u64).saturating_mul(percentile.0).div_ceil(Percentile::ALL.0);
    (wanted as usize).clamp(1, count.max(1)) - 1
}

/// The place of a key, new if there is room for it.
fn slot<'t, T>(
    table: &'t mut Table<T>,
    hash: u64,
    unused: T,
    room: &mut Room,
) -> Option<&'t mut (T, u64)> {
    match table.entry(hash) {
        Entry::Occupied(known) => Some(known.into_mut()),
        Entry::Vacant(_) if room.keys == 0 => None,
        Entry::Vacant(new) => {
            room.keys -= 1;
            Some(new.insert((unused, 0)))
        }
    }
}

/// The limit with as much room as there can be on the same tick, so that it counts the same.
fn roomy(limit: &Limit) -> Option<Limit> {
    if limit.lease().is_some() {
        return None;
    }
    let most =
        if limit.algorithm() == Algorithm::SlidingLog { Limit::MAX_LOG } else { (1 << 52) - 1 };
    let sizes =
        std::iter::successors(Some(most), |size| Some(size / 2)).take_while(|size| *size > 0);
    sizes.filter_map(|size| sized(limit, size)).find(|roomy| roomy.tick() == limit.tick())
}

/// The same limit in another size, by way of the notation: the one place where a limit shows all its parts.
pub(super) fn sized(limit: &Limit, size: u64) -> Option<Limit> {
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
            // A zone has a slash, too, but no number in front of it.
            (None, Some((count, span))) if count.bytes().all(|b| b.is_ascii_digit()) => {
                sized.push(format!("{size}/{span}"));
            }
            _ => sized.push(word.to_string()),
        }
    }
    sized.extend(option.map(|option| format!("{option} {size}")));
    sized.join(" ").parse().ok()
}

/// The keys are hashes already, under a random secret.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
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
    fn a_limit_of_another_size_is_otherwise_the_same() {
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
            assert_eq!(sized(&limit, size), Some(expected.parse().unwrap()), "{limit}");
            let roomy = roomy(&limit).unwrap();
            assert!(roomy.capacity() >= 1_000_000 && roomy.tick() == limit.tick(), "{limit}");
        }
        for limit in ["concurrency 5", "0/s"] {
            assert!(roomy(&limit.parse().unwrap()).is_none(), "{limit}");
        }
    }

    #[test]
    fn a_percentile_is_the_first_place_with_so_many_below() {
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
