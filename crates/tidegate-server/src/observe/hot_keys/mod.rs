//! The keys with the most recent calls: a heavy-hitter sketch. Imports: nothing.
//!
//! The sketch has counters for 512 keys, in sets of 16, each set behind its own lock. A randomly
//! seeded hash assigns a key to a set. A key without a counter replaces the smallest counter of its
//! set with the probability that it is the heavier of the two. So a flood of keys that each come
//! once hardly displaces keys that come often.
//!
//! The cost is small on a busy server too. Above about 8,000 calls a second only one call in 2, 4,
//! 8.. is counted, with that weight. A call that finds its set locked is not counted.

mod sampling;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError, TryLockError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::{Key, Micros, Outcome};

use self::sampling::{SamplingRate, random};
use crate::text::escape::{TruncatedText, push_key};

/// A hot key.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, Debug)]
pub struct HotKey {
    /// The name of the rule.
    pub rule: String,
    /// The key for display: control characters escaped, parts joined by `|`, cut to 128 bytes.
    pub key: String,
    /// Recent allowed calls, estimated, with a half-life of 30 s.
    pub allowed: u64,
    /// Recent denied calls, estimated, with a half-life of 30 s.
    pub denied: u64,
    /// State under its most restrictive limit, of the first ten keys; null if unknown: several key
    /// parts, a truncated key, a deleted rule, or a slow store.
    pub state: Option<HotKeyState>,
}

/// Permits of a key under its most restrictive limit.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct HotKeyState {
    /// Permits that remain.
    pub remaining: u64,
    /// The most permits that fit at once.
    pub limit: u64,
    /// Milliseconds until all permits are available again.
    pub reset_after_ms: u64,
}

/// A bounded sketch of the keys with the most calls.
#[derive(Debug)]
pub struct HotKeys {
    hasher: RandomState,
    sets: Box<[Mutex<CounterSet>]>,
    sampling: SamplingRate,
}

impl HotKeys {
    /// The maximum number of keys with a counter.
    pub const CAPACITY: usize = SETS * WAYS;
    /// After this span a call counts half.
    pub const HALF_LIFE: Micros = Micros::from_secs(30);

    /// Counts a call for a key. It never blocks.
    pub fn record(&self, rule: &str, key: Key<'_>, outcome: Outcome, now: Micros) {
        let Some(weight) = self.sampling.weight(now) else { return };
        let hash = self.hasher.hash_one((rule, key));
        let mut set = match self.sets[hash as usize % SETS].try_lock() {
            Ok(set) => set,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        set.decay(now);
        // A hash of zero marks a free slot.
        if let Some(counter) = set.counter(hash.max(1), weight, rule, key) {
            match outcome {
                Outcome::Allow => counter.allowed += weight,
                Outcome::RetryAfter(_) | Outcome::Never => counter.denied += weight,
            }
        }
    }

    /// The `n` keys with the most recent calls, most first.
    pub fn top(&self, n: usize, now: Micros) -> Vec<HotKey> {
        let mut hot = Vec::with_capacity(Self::CAPACITY);
        for set in &self.sets {
            let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
            set.decay(now);
            hot.extend(set.counters.iter().filter_map(HotKey::in_use));
        }
        let calls = |hot: &HotKey| hot.allowed + hot.denied;
        hot.sort_by(|a, b| {
            calls(b).cmp(&calls(a)).then_with(|| (&a.rule, &a.key).cmp(&(&b.rule, &b.key)))
        });
        hot.truncate(n);
        hot
    }
}

impl Default for HotKeys {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
            sampling: SamplingRate::default(),
        }
    }
}

const SETS: usize = 32;
const WAYS: usize = 16;

#[derive(Default, Debug)]
struct CounterSet {
    /// The number of half-lives since the epoch, as of the last decay.
    age: u64,
    /// The hashes of the keys; zero marks a free slot.
    hashes: [u64; WAYS],
    /// The calls of each slot, including those of the keys that had it before.
    weights: [u64; WAYS],
    counters: [HotKey; WAYS],
}

impl CounterSet {
    /// The counter of this key, which adds `weight` to its slot. `None` if the key has no counter
    /// and does not win one.
    fn counter(&mut self, hash: u64, weight: u64, rule: &str, key: Key<'_>) -> Option<&mut HotKey> {
        let known = self.hashes.iter().position(|other| *other == hash);
        let slot = match known {
            Some(slot) => slot,
            None => {
                let (slot, least) =
                    self.weights.iter().copied().enumerate().min_by_key(|(_, weight)| *weight)?;
                if random() % (least + weight) >= weight {
                    return None;
                }
                self.hashes[slot] = hash;
                self.counters[slot].replace(rule, key);
                slot
            }
        };
        self.weights[slot] += weight;
        Some(&mut self.counters[slot])
    }

    /// Halves the counts for every half-life that has passed.
    fn decay(&mut self, now: Micros) {
        let age = now.get() / HotKeys::HALF_LIFE.get();
        // At a boundary two threads may see times that differ slightly; the later one is kept.
        // A clock that was set back further is accepted, but counts are not restored.
        if age == self.age || age + 1 == self.age {
            return;
        }
        let halvings = u32::try_from(age.saturating_sub(self.age)).unwrap_or(u32::MAX);
        self.age = age;
        let halved = |count: u64| count.checked_shr(halvings).unwrap_or(0);
        for slot in 0..WAYS {
            self.weights[slot] = halved(self.weights[slot]);
            let counter = &mut self.counters[slot];
            counter.allowed = halved(counter.allowed);
            counter.denied = halved(counter.denied);
            if self.weights[slot] == 0 {
                self.hashes[slot] = 0;
                counter.clear();
            }
        }
    }
}

/// The maximum length of a rule's name, as in [`tidegate::Rule`].
const MAX_RULE_LEN: usize = 64;

impl HotKey {
    /// Assigns the counter to another key. It reuses the strings, so it seldom allocates.
    fn replace(&mut self, rule: &str, key: Key<'_>) {
        self.clear();
        TruncatedText::new(&mut self.rule, MAX_RULE_LEN).push_escaped(rule.as_bytes());
        push_key(&mut self.key, key);
    }

    fn clear(&mut self) {
        self.rule.clear();
        self.key.clear();
        (self.allowed, self.denied) = (0, 0);
    }

    fn in_use(&self) -> Option<Self> {
        (self.allowed + self.denied > 0).then(|| self.clone())
    }
}

#[cfg(test)]
mod tests;
