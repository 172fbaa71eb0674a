//! A table of states that are two numbers: nearly all there are.

use std::sync::Arc;

use tidegate_core::Packed;

use super::budget::Budget;

/// Two numbers by fingerprint, with the number of the limit that they belong to.
///
/// A key lies in the bucket that it belongs into or, where that was full, in one behind it: one cache
/// miss for most. Each bucket counts who passed it by, so that a search ends where nobody did.
#[derive(Debug)]
pub(crate) struct Small {
    buckets: Box<[Bucket]>,
    len: usize,
    cursor: usize,
    budget: Arc<Budget>,
}

/// What is kept for one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// The limit that wrote it, by its number in this engine.
    pub(crate) limit: LimitNumber,
    pub(crate) state: Packed,
}

/// The number of a limit in an engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LimitNumber(u32);

impl LimitNumber {
    /// Each of the two numbers of a state leaves some bits.
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

    /// The number where it lies in the words of a state.
    #[inline(always)]
    fn marks(self) -> [u64; 2] {
        let number = u64::from(self.0);
        [number << Packed::BITS, number >> SPARE_BITS << Packed::BITS]
    }
}

const SPARE_BITS: u32 = 64 - Packed::BITS;

/// Two lines of a processor's cache, which are fetched together: the fingerprints of five keys and their
/// states.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct Bucket {
    /// 0 where there is no key.
    fingerprints: [u64; Bucket::SLOTS],
    /// How many keys have found this one full, on the way from the bucket they belong into.
    passed: u64,
    states: [[u64; 2]; Bucket::SLOTS],
}

impl Bucket {
    const SLOTS: usize = 5;
    const EMPTY: Self =
        Self { fingerprints: [0; Self::SLOTS], passed: 0, states: [[0; 2]; Self::SLOTS] };

    /// The slot with this fingerprint.
    #[inline(always)]
    fn slot_of(&self, fingerprint: u64) -> Option<usize> {
        let slot = index_of(&self.fingerprints, fingerprint);
        (slot < Self::SLOTS).then_some(slot)
    }
}

/// Where one of these is `wanted`, or their number. All are looked at and none is jumped to: a processor
/// that need not guess goes on to what follows while the memory is fetched.
#[inline(always)]
fn index_of(fingerprints: &[u64; Bucket::SLOTS], wanted: u64) -> usize {
    let mut index = Bucket::SLOTS;
    for (i, found) in fingerprints.iter().enumerate() {
        index = if *found == wanted { i } else { index };
    }
    index
}

/// Where a key lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    bucket: usize,
    slot: usize,
}

impl Entry {
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

    /// The state in these words, if it is one of this limit.
    #[inline(always)]
    pub(crate) fn state_of(words: [u64; 2], limit: LimitNumber) -> Option<Packed> {
        let marks = limit.marks();
        Packed::new([words[0] ^ marks[0], words[1] ^ marks[1]])
    }
}

impl Small {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self { buckets: Box::default(), len: 0, cursor: 0, budget: budget.clone() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// Where a key lies, good until something is inserted or removed.
    #[inline(always)]
    pub(crate) fn find(&self, fingerprint: u64) -> Option<Spot> {
        let fingerprint = nonzero(fingerprint);
        let home = self.home(fingerprint);
        let bucket = self.buckets.get(home)?;
        match bucket.slot_of(fingerprint) {
            Some(slot) => Some(Spot { bucket: home, slot }),
            None if bucket.passed == 0 => None,
            None => self.find_behind(home, fingerprint),
        }
    }

    #[inline(never)]
    fn find_behind(&self, home: usize, fingerprint: u64) -> Option<Spot> {
        let mut index = self.after(home);
        while index != home {
            let bucket = self.buckets.get(index)?;
            match bucket.slot_of(fingerprint) {
                Some(slot) => return Some(Spot { bucket: index, slot }),
                None if bucket.passed == 0 => return None,
                None => index = self.after(index),
            }
        }
        None
    }

    /// The words of a key that lies where it belongs, as most do.
    #[inline(always)]
    pub(crate) fn words_at_home(&mut self, fingerprint: u64) -> Option<&mut [u64; 2]> {
        let fingerprint = nonzero(fingerprint);
        let home = self.home(fingerprint);
        let bucket = self.buckets.get_mut(home)?;
        bucket.states.get_mut(index_of(&bucket.fingerprints, fingerprint))
    }

    /// What lies at a spot.
    #[inline(always)]
    pub(crate) fn at(&self, spot: Spot) -> Option<Entry> {
        Entry::from_words(*self.buckets.get(spot.bucket)?.states.get(spot.slot)?)
    }

    /// Writes another state of the same key.
    #[inline(always)]
    pub(crate) fn set(&mut self, spot: Spot, entry: Entry) {
        let bucket = self.buckets.get_mut(spot.bucket);
        if let Some(state) = bucket.and_then(|bucket| bucket.states.get_mut(spot.slot)) {
            *state = entry.to_words();
        }
    }

    /// Is there a slot for one more key?
    pub(crate) fn has_slot(&self) -> bool {
        Self::fits(self.len + 1, self.buckets.len())
    }

    /// Bytes that `count` more keys will allocate.
    pub(crate) fn growth(&self, count: usize) -> usize {
        let buckets = self.buckets_for(self.len + count);
        buckets.saturating_sub(self.buckets.len()) * size_of::<Bucket>()
    }

    /// Inserts a key that is not there yet.
    pub(crate) fn insert(&mut self, fingerprint: u64, entry: Entry) {
        if !self.has_slot() {
            self.resize(self.buckets_for(self.len + 1));
        }
        self.put(nonzero(fingerprint), entry.to_words());
        self.len += 1;
    }

    /// Takes a key out.
    pub(crate) fn take(&mut self, fingerprint: u64) -> Option<Entry> {
        let spot = self.find(fingerprint)?;
        let entry = self.at(spot);
        self.remove(spot);
        entry
    }

    /// Takes out what lies at a spot. Others stay where they are.
    pub(crate) fn remove(&mut self, spot: Spot) {
        let bucket = self.buckets.get_mut(spot.bucket);
        let slot = bucket.and_then(|bucket| bucket.fingerprints.get_mut(spot.slot));
        let fingerprint = slot.map_or(0, std::mem::take);
        if fingerprint == 0 {
            return;
        }
        let mut index = self.home(fingerprint);
        while index != spot.bucket {
            self.buckets[index].passed -= 1;
            index = self.after(index);
        }
        self.len -= 1;
    }

    /// Walks over the next `steps` slots and drops what is `done`; gives back what is not needed.
    pub(crate) fn sweep(&mut self, steps: usize, mut done: impl FnMut(Entry) -> bool) {
        let slots = self.buckets.len() * Bucket::SLOTS;
        for _ in 0..steps.min(slots) {
            if self.cursor >= slots {
                self.cursor = 0;
            }
            let spot =
                Spot { bucket: self.cursor / Bucket::SLOTS, slot: self.cursor % Bucket::SLOTS };
            if self.buckets[spot.bucket].fingerprints[spot.slot] != 0
                && self.at(spot).is_some_and(&mut done)
            {
                self.remove(spot);
            }
            self.cursor += 1;
        }
        if slots > Self::FEW && self.len < slots / 4 {
            self.resize(Self::enough(2 * self.len));
        }
    }

    /// Every entry.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> {
        let keys = self.keys();
        keys.filter_map(|(_, state)| Entry::from_words(state))
    }

    /// Every fingerprint and its state.
    fn keys(&self) -> impl Iterator<Item = (u64, [u64; 2])> {
        let slots = self.buckets.iter().flat_map(|bucket| {
            bucket.fingerprints.iter().copied().zip(bucket.states.iter().copied())
        });
        slots.filter(|(fingerprint, _)| *fingerprint != 0)
    }

    /// So many slots are not worth giving any back.
    const FEW: usize = 64;

    /// Three quarters of the slots may be taken: more, and many keys would not find one where they belong.
    fn fits(len: usize, buckets: usize) -> bool {
        4 * len <= 3 * Bucket::SLOTS * buckets
    }

    /// Buckets for so many keys: those that there are, or a quarter more.
    fn buckets_for(&self, len: usize) -> usize {
        let buckets = self.buckets.len();
        if Self::fits(len, buckets) {
            buckets
        } else {
            Self::enough(len).max(buckets + buckets / 4)
        }
    }

    fn enough(len: usize) -> usize {
        (4 * len).div_ceil(3 * Bucket::SLOTS).max(1)
    }

    fn resize(&mut self, buckets: usize) {
        let mut new =
            Self { buckets: vec![Bucket::EMPTY; buckets].into(), ..Self::new(&self.budget) };
        self.keys().for_each(|(fingerprint, state)| new.put(fingerprint, state));
        new.len = self.len;
        self.budget.resized(self.bytes(), new.bytes());
        *self = new;
    }

    /// Puts a key into the first bucket that has a slot, from where it belongs on. There is one.
    fn put(&mut self, fingerprint: u64, state: [u64; 2]) {
        let mut index = self.home(fingerprint);
        for _ in 0..self.buckets.len() {
            let bucket = &mut self.buckets[index];
            if let Some(slot) = bucket.slot_of(0) {
                bucket.fingerprints[slot] = fingerprint;
                bucket.states[slot] = state;
                return;
            }
            bucket.passed += 1;
            index = self.after(index);
        }
    }

    /// The bucket that a key belongs into. The upper half of the bits has chosen the shard.
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

    fn entry(number: u64) -> Entry {
        let limit = LimitNumber::new(u32::try_from(number % 4_000_000).unwrap()).unwrap();
        Entry { limit, state: Packed::new([number, (1 << 53) - 1 - number]).unwrap() }
    }

    #[test]
    fn an_entry_is_found_as_it_was_written_with_all_its_bits() {
        let all = (1 << Packed::BITS) - 1;
        for number in [0, 1, 2_047, 2_048, LimitNumber::COUNT - 1] {
            for numbers in [[0, 0], [all, all], [all, 0], [5, all]] {
                let limit = LimitNumber::new(number).unwrap();
                let entry = Entry { limit, state: Packed::new(numbers).unwrap() };
                assert_eq!(Entry::from_words(entry.to_words()), Some(entry));
            }
        }
        assert_eq!(LimitNumber::new(LimitNumber::COUNT), None);
        assert_eq!(size_of::<Bucket>(), 128);
    }

    /// Keys that crowd together, so that probing runs over the end and entries move up.
    #[test]
    fn it_agrees_with_a_map_under_random_changes() {
        let budget = Arc::new(Budget::new(1 << 30));
        let mut small = Small::new(&budget);
        let mut map = HashMap::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let (steps, keys) = if cfg!(miri) { (500, 20) } else { (200_000, 600) };
        for step in 0..steps {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let crowded = if random & 1 == 0 { 0xffff_0000 } else { 0 };
            let fingerprint = crowded | ((random >> 40) % keys);
            let grows = step / (steps / 10) % 2 == 0;
            match (map.contains_key(&nonzero(fingerprint)), random >> 8 & 3) {
                (false, n) if grows || n == 0 => {
                    small.insert(fingerprint, entry(step));
                    map.insert(nonzero(fingerprint), entry(step));
                }
                (true, 0) => {
                    let spot = small.find(fingerprint).unwrap();
                    small.set(spot, entry(step + 1));
                    map.insert(nonzero(fingerprint), entry(step + 1));
                }
                (true, 1) if !grows => {
                    let done = step % 3;
                    small.sweep(64, |entry| entry.state.numbers()[0] % 3 == done);
                    map.retain(|key, _| small.find(*key).is_some());
                    assert!(map.len() == small.len());
                }
                (present, _) => {
                    let taken = if grows { None } else { small.take(fingerprint) };
                    assert_eq!(taken.is_some(), present && !grows);
                    if taken.is_some() {
                        assert_eq!(map.remove(&nonzero(fingerprint)), taken);
                    }
                }
            }
            assert_eq!(small.len(), map.len());
            if step % (steps / 100) == 0 {
                for (key, entry) in &map {
                    assert_eq!(small.find(*key).and_then(|spot| small.at(spot)), Some(*entry));
                }
                assert_eq!(small.iter().count(), map.len());
                assert_eq!(budget.used(), small.bytes());
            }
        }
    }

    #[test]
    fn growth_foretells_every_allocation_and_a_flood_is_given_back() {
        let budget = Arc::new(Budget::new(1 << 30));
        let mut small = Small::new(&budget);
        let keys = if cfg!(miri) { 1_000 } else { 50_000 };
        let spread = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for n in 0..keys {
            let foretold = small.bytes() + small.growth(1);
            small.insert(spread(n), entry(n));
            assert_eq!(small.bytes(), foretold);
            assert!(n < 400 || small.bytes() <= 44 * small.len(), "{} keys", small.len());
        }
        let (full, few) = (small.bytes(), keys / 500);
        for _ in 0..200 {
            small.sweep(1_000, |entry| entry.state.numbers()[0] >= few);
        }
        assert_eq!(small.len() as u64, few);
        assert!(small.bytes() < full / 100, "{} left of {full}", small.bytes());
        assert!((0..few).all(|n| small.find(spread(n)).is_some()));
    }
}
