//! A table of states that are two numbers, 24 bytes each: nearly all there are.

use std::sync::Arc;

use tidegate_core::Packed;

use super::budget::Budget;

/// Two numbers by fingerprint, with the number of the limit that they belong to.
///
/// The slots are probed one after the other, so that a key costs one cache miss or, where it has
/// neighbours, two that lie together. A slot that is given up is filled by those behind it: there are
/// no marks to walk over.
#[derive(Debug)]
pub(crate) struct Small {
    slots: Box<[Slot]>,
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

    pub(crate) fn get(self) -> u32 {
        self.0
    }
}

const SPARE_BITS: u32 = 64 - Packed::BITS;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// 0 in an empty slot.
    fingerprint: u64,
    words: [u64; 2],
}

impl Slot {
    const EMPTY: Self = Self { fingerprint: 0, words: [0; 2] };

    fn new(fingerprint: u64, entry: Entry) -> Self {
        let number = u64::from(entry.limit.0);
        let [a, b] = entry.state.numbers();
        let low = number & ((1 << SPARE_BITS) - 1);
        let words = [a | low << Packed::BITS, b | (number >> SPARE_BITS) << Packed::BITS];
        Self { fingerprint, words }
    }

    #[expect(clippy::cast_possible_truncation, reason = "of a number that has 22 bits")]
    fn entry(&self) -> Option<Entry> {
        let mask = (1 << Packed::BITS) - 1;
        let [low, high] = self.words.map(|word| word >> Packed::BITS);
        let limit = LimitNumber((high << SPARE_BITS | low) as u32);
        let state = Packed::new(self.words.map(|word| word & mask))?;
        Some(Entry { limit, state })
    }
}

impl Small {
    /// The smallest number of slots.
    const LEAST: usize = 8;

    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self { slots: Box::default(), len: 0, cursor: 0, budget: budget.clone() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
    }

    /// The place of a key, good until something is inserted or removed.
    #[inline]
    pub(crate) fn find(&self, fingerprint: u64) -> Option<usize> {
        let fingerprint = nonzero(fingerprint);
        let mut place = self.home(fingerprint);
        loop {
            // There is always an empty slot, unless there is none at all.
            match self.slots.get(place)?.fingerprint {
                found if found == fingerprint => return Some(place),
                0 => return None,
                _ => place = self.after(place),
            }
        }
    }

    /// What lies at a place.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> Option<Entry> {
        self.slots.get(place).filter(|slot| slot.fingerprint != 0)?.entry()
    }

    /// Writes another state of the same key.
    #[inline]
    pub(crate) fn set(&mut self, place: usize, entry: Entry) {
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = Slot::new(slot.fingerprint, entry);
        }
    }

    /// Is there a slot for one more key?
    pub(crate) fn has_slot(&self) -> bool {
        Self::fits(self.len + 1, self.slots.len())
    }

    /// Bytes that `count` more keys will allocate.
    pub(crate) fn growth(&self, count: usize) -> usize {
        let slots = self.slots_for(self.len + count);
        slots.saturating_sub(self.slots.len()) * size_of::<Slot>()
    }

    /// Inserts a key that is not there yet.
    pub(crate) fn insert(&mut self, fingerprint: u64, entry: Entry) {
        if !self.has_slot() {
            self.resize(self.slots_for(self.len + 1));
        }
        self.put(Slot::new(nonzero(fingerprint), entry));
        self.len += 1;
    }

    /// Takes a key out.
    pub(crate) fn take(&mut self, fingerprint: u64) -> Option<Entry> {
        let place = self.find(fingerprint)?;
        let entry = self.at(place);
        self.remove(place);
        entry
    }

    /// Takes out what lies at a place.
    pub(crate) fn remove(&mut self, mut empty: usize) {
        let mut next = self.after(empty);
        while let Some(slot) = self.slots.get(next).copied().filter(|slot| slot.fingerprint != 0) {
            // Whoever may lie further ahead moves up.
            let home = self.home(slot.fingerprint);
            if self.distance(home, empty) < self.distance(home, next) {
                self.slots[empty] = slot;
                empty = next;
            }
            next = self.after(next);
        }
        if let Some(slot) = self.slots.get_mut(empty) {
            *slot = Slot::EMPTY;
            self.len -= 1;
        }
    }

    /// Walks over the next `steps` slots and drops what is `done`; gives back what is not needed.
    pub(crate) fn sweep(&mut self, steps: usize, mut done: impl FnMut(Entry) -> bool) {
        for _ in 0..steps.min(self.slots.len()) {
            if self.cursor >= self.slots.len() {
                self.cursor = 0;
            }
            // Another may have moved up.
            while self.at(self.cursor).is_some_and(&mut done) {
                self.remove(self.cursor);
            }
            self.cursor += 1;
        }
        if self.slots.len() > 8 * Self::LEAST && self.len < self.slots.len() / 4 {
            self.resize(Self::enough(2 * self.len));
        }
    }

    /// Every entry.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.slots.iter().filter(|slot| slot.fingerprint != 0).filter_map(Slot::entry)
    }

    fn fits(len: usize, slots: usize) -> bool {
        4 * len <= 3 * slots
    }

    /// Slots for so many keys: those that there are, or a quarter more.
    fn slots_for(&self, len: usize) -> usize {
        let slots = self.slots.len();
        if Self::fits(len, slots) { slots } else { Self::enough(len).max(slots + slots / 4) }
    }

    fn enough(len: usize) -> usize {
        (4 * len).div_ceil(3).max(Self::LEAST)
    }

    fn resize(&mut self, slots: usize) {
        let before = self.bytes();
        let old = std::mem::replace(&mut self.slots, vec![Slot::EMPTY; slots].into());
        self.budget.resized(before, self.bytes());
        self.cursor = 0;
        old.iter().filter(|slot| slot.fingerprint != 0).for_each(|slot| self.put(*slot));
    }

    fn put(&mut self, slot: Slot) {
        let mut place = self.home(slot.fingerprint);
        while self.slots.get(place).is_some_and(|slot| slot.fingerprint != 0) {
            place = self.after(place);
        }
        if let Some(free) = self.slots.get_mut(place) {
            *free = slot;
        }
    }

    /// Where a key would lie if it were alone. The upper half of the bits has chosen the shard.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half, and less than the slots")]
    fn home(&self, fingerprint: u64) -> usize {
        ((u64::from(fingerprint as u32) * self.slots.len() as u64) >> 32) as usize
    }

    fn after(&self, place: usize) -> usize {
        if place + 1 < self.slots.len() { place + 1 } else { 0 }
    }

    /// How far `place` is behind `home`.
    fn distance(&self, home: usize, place: usize) -> usize {
        if place >= home { place - home } else { place + self.slots.len() - home }
    }
}

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
                assert_eq!(Slot::new(7, entry).entry(), Some(entry));
            }
        }
        assert_eq!(LimitNumber::new(LimitNumber::COUNT), None);
        assert_eq!(size_of::<Slot>(), 24);
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
                    let place = small.find(fingerprint).unwrap();
                    small.set(place, entry(step + 1));
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
                    assert_eq!(small.find(*key).and_then(|place| small.at(place)), Some(*entry));
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
            assert!(n < 400 || small.bytes() <= 41 * small.len(), "{} keys", small.len());
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
