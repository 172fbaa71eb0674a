//! Open-addressing table of packed states, which nearly all limits use.

use std::sync::Arc;

use tidegate_core::Packed;

use super::budget::Budget;
use super::prefetch::prefetch;

/// Packed states by fingerprint, with the number of their limit.
///
/// A key is stored in its home bucket or, if that was full, in a later one: one cache miss for
/// most. Each bucket counts the keys that were placed beyond it, so that a search ends at the first
/// bucket with none.
#[derive(Debug)]
pub(crate) struct PackedTable {
    buckets: Box<[PackedBucket]>,
    len: usize,
    cursor: usize,
    budget: Arc<Budget>,
}

/// The state of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PackedEntry {
    /// Number of the limit that wrote the state.
    pub(crate) limit: LimitNumber,
    pub(crate) state: Packed,
}

/// The number of a limit in an engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LimitNumber(u32);

impl LimitNumber {
    /// Each of the two numbers of a state has spare bits.
    const BITS: u32 = 2 * SPARE_BITS;
    pub(crate) const COUNT: u32 = 1 << Self::BITS;

    pub(crate) fn new(number: u32) -> Option<Self> {
        (number < Self::COUNT).then_some(Self(number))
    }

    #[inline(always)]
    pub(crate) fn from_low_bits(number: u32) -> Self {
        Self(number % Self::COUNT)
    }

    pub(crate) fn get(self) -> u32 {
        self.0
    }

    /// The number in the spare bits of the two words.
    #[inline(always)]
    fn marks(self) -> [u64; 2] {
        let number = u64::from(self.0);
        [number << Packed::BITS, number >> SPARE_BITS << Packed::BITS]
    }
}

const SPARE_BITS: u32 = 64 - Packed::BITS;

/// Two cache lines, which are fetched together: the fingerprints of five keys and their states.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct PackedBucket {
    /// 0 for an empty slot.
    fingerprints: [u64; PackedBucket::SLOTS],
    /// Keys that found this bucket full on the way from their home bucket.
    overflowed: u64,
    states: [[u64; 2]; PackedBucket::SLOTS],
}

impl PackedBucket {
    const SLOTS: usize = 5;
    const EMPTY: Self =
        Self { fingerprints: [0; Self::SLOTS], overflowed: 0, states: [[0; 2]; Self::SLOTS] };

    /// The slot with this fingerprint.
    #[inline(always)]
    fn slot_of(&self, fingerprint: u64) -> Option<usize> {
        let slot = index_of(&self.fingerprints, fingerprint);
        (slot < Self::SLOTS).then_some(slot)
    }
}

/// Index of `wanted`, or the number of slots. Branch-free: a CPU that need not predict continues
/// with what follows while the memory is fetched.
#[inline(always)]
fn index_of(fingerprints: &[u64; PackedBucket::SLOTS], wanted: u64) -> usize {
    let mut index = PackedBucket::SLOTS;
    for (i, found) in fingerprints.iter().enumerate() {
        index = if *found == wanted { i } else { index };
    }
    index
}

/// Bucket and slot of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryIndex {
    bucket: usize,
    slot: usize,
}

impl PackedEntry {
    #[inline(always)]
    pub(crate) fn to_words(self) -> [u64; 2] {
        let ([a, b], [low, high]) = (self.state.numbers(), self.limit.marks());
        [a | low, b | high]
    }

    #[expect(clippy::cast_possible_truncation, reason = "of a number that has 22 bits")]
    fn from_words(words: [u64; 2]) -> Option<Self> {
        let [low, high] = words.map(|word| word >> Packed::BITS);
        let limit = LimitNumber((high << SPARE_BITS | low) as u32);
        Some(Self { limit, state: Self::state_of(words, limit)? })
    }

    /// The state in these words, if it belongs to this limit.
    #[inline(always)]
    pub(crate) fn state_of(words: [u64; 2], limit: LimitNumber) -> Option<Packed> {
        let marks = limit.marks();
        Packed::new([words[0] ^ marks[0], words[1] ^ marks[1]])
    }
}

impl PackedTable {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self { buckets: Box::default(), len: 0, cursor: 0, budget: budget.clone() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<PackedBucket>()
    }

    /// Finds a key. The index is valid until the next insertion or removal.
    #[inline(always)]
    pub(crate) fn find(&self, fingerprint: u64) -> Option<EntryIndex> {
        let fingerprint = nonzero(fingerprint);
        let home = self.home(fingerprint);
        let bucket = self.buckets.get(home)?;
        match bucket.slot_of(fingerprint) {
            Some(slot) => Some(EntryIndex { bucket: home, slot }),
            None if bucket.overflowed == 0 => None,
            None => self.find_after(home, fingerprint),
        }
    }

    #[inline(never)]
    fn find_after(&self, home: usize, fingerprint: u64) -> Option<EntryIndex> {
        let mut index = self.after(home);
        while index != home {
            let bucket = self.buckets.get(index)?;
            match bucket.slot_of(fingerprint) {
                Some(slot) => return Some(EntryIndex { bucket: index, slot }),
                None if bucket.overflowed == 0 => return None,
                None => index = self.after(index),
            }
        }
        None
    }

    /// The words of a key in its home bucket.
    #[inline(always)]
    pub(crate) fn words_at_home(&mut self, fingerprint: u64) -> Option<&mut [u64; 2]> {
        let fingerprint = nonzero(fingerprint);
        let home = self.home(fingerprint);
        let bucket = self.buckets.get_mut(home)?;
        bucket.states.get_mut(index_of(&bucket.fingerprints, fingerprint))
    }

    /// Fetches the home bucket of a key into the cache, without waiting for it.
    #[inline(always)]
    pub(crate) fn prefetch_home(&self, fingerprint: u64) {
        if let Some(bucket) = self.buckets.get(self.home(nonzero(fingerprint))) {
            prefetch(&bucket.fingerprints);
            prefetch(&bucket.states[PackedBucket::SLOTS - 1]);
        }
    }

    /// The entry at an index.
    #[inline(always)]
    pub(crate) fn at(&self, index: EntryIndex) -> Option<PackedEntry> {
        PackedEntry::from_words(*self.buckets.get(index.bucket)?.states.get(index.slot)?)
    }

    /// Replaces the state of the same key.
    #[inline(always)]
    pub(crate) fn set(&mut self, index: EntryIndex, entry: PackedEntry) {
        let bucket = self.buckets.get_mut(index.bucket);
        if let Some(state) = bucket.and_then(|bucket| bucket.states.get_mut(index.slot)) {
            *state = entry.to_words();
        }
    }

    /// Whether there is a slot for one more key.
    pub(crate) fn has_slot(&self) -> bool {
        Self::fits(self.len + 1, self.buckets.len())
    }

    /// Bytes that `count` more keys will allocate.
    pub(crate) fn growth(&self, count: usize) -> usize {
        let buckets = self.buckets_for(self.len + count);
        buckets.saturating_sub(self.buckets.len()) * size_of::<PackedBucket>()
    }

    /// Inserts a key that is not there yet.
    pub(crate) fn insert(&mut self, fingerprint: u64, entry: PackedEntry) {
        if !self.has_slot() {
            self.resize(self.buckets_for(self.len + 1));
        }
        self.put(nonzero(fingerprint), entry.to_words());
        self.len += 1;
    }

    /// Removes and returns the entry of a key.
    pub(crate) fn take(&mut self, fingerprint: u64) -> Option<PackedEntry> {
        let index = self.find(fingerprint)?;
        let entry = self.at(index);
        self.remove(index);
        entry
    }

    /// Removes the entry at an index. Other entries do not move.
    pub(crate) fn remove(&mut self, index: EntryIndex) {
        let bucket = self.buckets.get_mut(index.bucket);
        let slot = bucket.and_then(|bucket| bucket.fingerprints.get_mut(index.slot));
        let fingerprint = slot.map_or(0, std::mem::take);
        if fingerprint == 0 {
            return;
        }
        let mut bucket = self.home(fingerprint);
        while bucket != index.bucket {
            self.buckets[bucket].overflowed -= 1;
            bucket = self.after(bucket);
        }
        self.len -= 1;
    }

    /// Visits the next `steps` slots, removes entries that are `done`, and shrinks the table if it
    /// is mostly empty.
    pub(crate) fn sweep(&mut self, steps: usize, mut done: impl FnMut(PackedEntry) -> bool) {
        let slots = self.buckets.len() * PackedBucket::SLOTS;
        for _ in 0..steps.min(slots) {
            if self.cursor >= slots {
                self.cursor = 0;
            }
            let index = EntryIndex {
                bucket: self.cursor / PackedBucket::SLOTS,
                slot: self.cursor % PackedBucket::SLOTS,
            };
            if self.buckets[index.bucket].fingerprints[index.slot] != 0
                && self.at(index).is_some_and(&mut done)
            {
                self.remove(index);
            }
            self.cursor += 1;
        }
        if slots > Self::MIN_SHRUNK && self.len < slots / 4 {
            self.resize(Self::min_buckets(2 * self.len));
        }
    }

    /// Keys that the present slots have room for.
    pub(crate) fn free_slots(&self) -> usize {
        (3 * PackedBucket::SLOTS * self.buckets.len() / 4).saturating_sub(self.len)
    }

    /// Bytes for each key, at least.
    pub(crate) const KEY_BYTES: usize = 4 * size_of::<PackedBucket>() / (3 * PackedBucket::SLOTS);

    /// A sample of the entries: they are in random order, so the first ones are.
    pub(crate) fn sample(&self, count: usize) -> impl Iterator<Item = PackedEntry> {
        self.iter().take(count)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = PackedEntry> {
        let keys = self.keys();
        keys.filter_map(|(_, state)| PackedEntry::from_words(state))
    }

    /// Every fingerprint and its state.
    fn keys(&self) -> impl Iterator<Item = (u64, [u64; 2])> {
        let slots = self.buckets.iter().flat_map(|bucket| {
            bucket.fingerprints.iter().copied().zip(bucket.states.iter().copied())
        });
        slots.filter(|(fingerprint, _)| *fingerprint != 0)
    }

    /// A table of at most this many slots is not shrunk.
    const MIN_SHRUNK: usize = 64;

    /// Three quarters of the slots may be used: beyond that, many keys would be outside their home
    /// bucket.
    fn fits(len: usize, buckets: usize) -> bool {
        4 * len <= 3 * PackedBucket::SLOTS * buckets
    }

    /// Buckets for this many keys: the present ones, or a quarter more. With little room it is a
    /// sixteenth, so that the tables of all shards can still grow.
    fn buckets_for(&self, len: usize) -> usize {
        let buckets = self.buckets.len();
        if Self::fits(len, buckets) {
            return buckets;
        }
        let step = if 2 * self.budget.room() >= self.budget.used() { 4 } else { 16 };
        Self::min_buckets(len).max(buckets + buckets / step)
    }

    fn min_buckets(len: usize) -> usize {
        (4 * len).div_ceil(3 * PackedBucket::SLOTS).max(1)
    }

    fn resize(&mut self, buckets: usize) {
        let mut new =
            Self { buckets: vec![PackedBucket::EMPTY; buckets].into(), ..Self::new(&self.budget) };
        self.keys().for_each(|(fingerprint, state)| new.put(fingerprint, state));
        new.len = self.len;
        self.budget.resized(self.bytes(), new.bytes());
        *self = new;
    }

    /// Stores a key in the first bucket with a free slot, from its home bucket on. One exists.
    fn put(&mut self, fingerprint: u64, state: [u64; 2]) {
        let mut index = self.home(fingerprint);
        for _ in 0..self.buckets.len() {
            let bucket = &mut self.buckets[index];
            if let Some(slot) = bucket.slot_of(0) {
                bucket.fingerprints[slot] = fingerprint;
                bucket.states[slot] = state;
                return;
            }
            bucket.overflowed += 1;
            index = self.after(index);
        }
    }

    /// The home bucket of a key. The upper half of the bits has chosen the shard.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower half, and less than the buckets"
    )]
    fn home(&self, fingerprint: u64) -> usize {
        ((u64::from(fingerprint as u32) * self.buckets.len() as u64) >> 32) as usize
    }

    fn after(&self, index: usize) -> usize {
        if index + 1 < self.buckets.len() { index + 1 } else { 0 }
    }
}

#[inline(always)]
fn nonzero(fingerprint: u64) -> u64 {
    fingerprint.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn entry(number: u64) -> PackedEntry {
        let limit = LimitNumber::new(u32::try_from(number % 4_000_000).unwrap()).unwrap();
        PackedEntry { limit, state: Packed::new([number, (1 << 53) - 1 - number]).unwrap() }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_with_all_its_bits() {
        let all = (1 << Packed::BITS) - 1;
        for number in [0, 1, 2_047, 2_048, LimitNumber::COUNT - 1] {
            for numbers in [[0, 0], [all, all], [all, 0], [5, all]] {
                let limit = LimitNumber::new(number).unwrap();
                let entry = PackedEntry { limit, state: Packed::new(numbers).unwrap() };
                assert_eq!(PackedEntry::from_words(entry.to_words()), Some(entry));
            }
        }
        assert_eq!(LimitNumber::new(LimitNumber::COUNT), None);
        assert_eq!(size_of::<PackedBucket>(), 128);
    }

    /// Clustered keys, so that probing wraps around the end.
    #[test]
    fn it_agrees_with_a_map_under_random_changes() {
        let budget = Budget::alone(1 << 30);
        let mut table = PackedTable::new(&budget);
        let mut map = HashMap::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let (steps, keys) = if cfg!(miri) { (500, 20) } else { (200_000, 600) };
        for step in 0..steps {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let clustered = if random & 1 == 0 { 0xffff_0000 } else { 0 };
            let fingerprint = clustered | ((random >> 40) % keys);
            let grows = step / (steps / 10) % 2 == 0;
            match (map.contains_key(&nonzero(fingerprint)), random >> 8 & 3) {
                (false, n) if grows || n == 0 => {
                    table.insert(fingerprint, entry(step));
                    map.insert(nonzero(fingerprint), entry(step));
                }
                (true, 0) => {
                    let index = table.find(fingerprint).unwrap();
                    table.set(index, entry(step + 1));
                    map.insert(nonzero(fingerprint), entry(step + 1));
                }
                (true, 1) if !grows => {
                    let done = step % 3;
                    table.sweep(64, |entry| entry.state.numbers()[0] % 3 == done);
                    map.retain(|key, _| table.find(*key).is_some());
                    assert!(map.len() == table.len());
                }
                (present, _) => {
                    let taken = if grows { None } else { table.take(fingerprint) };
                    assert_eq!(taken.is_some(), present && !grows);
                    if taken.is_some() {
                        assert_eq!(map.remove(&nonzero(fingerprint)), taken);
                    }
                }
            }
            assert_eq!(table.len(), map.len());
            if step % (steps / 100) == 0 {
                for (key, entry) in &map {
                    assert_eq!(table.find(*key).and_then(|index| table.at(index)), Some(*entry));
                }
                assert_eq!(table.iter().count(), map.len());
                assert_eq!(budget.used(), table.bytes());
            }
        }
    }

    #[test]
    fn growth_predicts_every_allocation_and_memory_of_a_flood_is_freed() {
        let budget = Budget::alone(1 << 30);
        let mut table = PackedTable::new(&budget);
        let keys = if cfg!(miri) { 1_000 } else { 50_000 };
        let spread = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for n in 0..keys {
            let predicted = table.bytes() + table.growth(1);
            table.insert(spread(n), entry(n));
            assert_eq!(table.bytes(), predicted);
            assert!(n < 400 || table.bytes() <= 44 * table.len(), "{} keys", table.len());
        }
        let (full, few) = (table.bytes(), keys / 500);
        for _ in 0..200 {
            table.sweep(1_000, |entry| entry.state.numbers()[0] >= few);
        }
        assert_eq!(table.len() as u64, few);
        assert!(table.bytes() < full / 100, "{} left of {full}", table.bytes());
        assert!((0..few).all(|n| table.find(spread(n)).is_some()));
    }
}
