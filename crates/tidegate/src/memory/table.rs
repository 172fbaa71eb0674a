//! A hash table that can be swept a little at a time and counts its bytes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::budget::Budget;

/// Something with bytes on the heap, beyond its own size.
pub(crate) trait HeapBytes {
    fn heap_bytes(&self) -> usize;
}

/// Values by fingerprint, with their bytes counted in a budget.
///
/// Values lie in a dense list of chunks, so that a cursor can walk over them, a few on every
/// insertion, and drop those that have nothing more to say. The last value takes the place of one
/// that goes, so chunks are given back as soon as they are empty.
#[derive(Debug)]
pub(crate) struct Table<V> {
    places: HashMap<u128, u32, BuildHasherDefault<TakeBits>>,
    chunks: Vec<Vec<(u128, V)>>,
    len: usize,
    cursor: usize,
    budget: Arc<Budget>,
}

impl<V: HeapBytes> Table<V> {
    const CHUNK: usize = 16;

    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            places: HashMap::default(),
            chunks: Vec::new(),
            len: 0,
            cursor: 0,
            budget: budget.clone(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: u128) -> Option<&V> {
        self.at(*self.places.get(&key)? as usize).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: u128) -> Option<&mut V> {
        let place = *self.places.get(&key)? as usize;
        self.chunks.get_mut(place / Self::CHUNK)?.get_mut(place % Self::CHUNK).map(|(_, v)| v)
    }

    /// Every value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &V> {
        self.chunks.iter().flatten().map(|(_, value)| value)
    }

    /// Has the budget room for `count` more values, with `heap` bytes beyond their own size?
    pub(crate) fn has_room_for(&self, count: usize, heap: usize) -> bool {
        self.budget.has_room_for(self.growth(count) + heap)
    }

    /// Inserts a value for a key that has none.
    pub(crate) fn insert(&mut self, key: u128, value: V) {
        let before = self.bytes();
        self.budget.resized(0, value.heap_bytes());
        if self.len.is_multiple_of(Self::CHUNK) {
            if self.chunks.len() == self.chunks.capacity() {
                self.chunks.reserve_exact(self.chunk_step());
            }
            self.chunks.push(Vec::with_capacity(Self::CHUNK));
        }
        self.places.insert(key, u32::try_from(self.len).unwrap_or(u32::MAX));
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push((key, value));
            self.len += 1;
        }
        self.budget.resized(before, self.bytes());
    }

    pub(crate) fn remove(&mut self, key: u128) -> Option<V> {
        let before = self.bytes();
        let place = self.places.remove(&key)? as usize;
        let mut removed = self.pop_last()?;
        if place < self.len {
            if let Some(last) = self.places.get_mut(&removed.0) {
                *last = u32::try_from(place).unwrap_or(u32::MAX);
            }
            let slot = self.chunks.get_mut(place / Self::CHUNK)?.get_mut(place % Self::CHUNK)?;
            std::mem::swap(slot, &mut removed);
        }
        if self.places.capacity() > 8 * self.len + 64 {
            self.places.shrink_to(2 * self.len);
        }
        let (_, removed) = removed;
        self.budget.resized(before + removed.heap_bytes(), self.bytes());
        Some(removed)
    }

    /// Looks at the next `steps` values and drops those that are `done`. Returns how many.
    pub(crate) fn sweep(&mut self, steps: usize, done: impl Fn(&mut V) -> bool) -> usize {
        let before = self.len;
        for _ in 0..steps.min(before) {
            if self.cursor >= self.len {
                self.cursor = 0;
            }
            let (chunk, place) = (self.cursor / Self::CHUNK, self.cursor % Self::CHUNK);
            let next = self.chunks.get_mut(chunk).and_then(|chunk| chunk.get_mut(place));
            match next.and_then(|(key, value)| done(value).then_some(*key)) {
                Some(key) => drop(self.remove(key)),
                None => self.cursor += 1,
            }
        }
        before - self.len
    }

    /// Bytes allocated by the table itself.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.len() * Self::CHUNK * size_of::<(u128, V)>()
            + self.chunks.capacity() * size_of::<Vec<(u128, V)>>()
            + places_bytes(self.places.capacity())
    }

    /// Bytes that `count` more values will allocate on top.
    pub(crate) fn growth(&self, count: usize) -> usize {
        let chunks = (self.len + count).div_ceil(Self::CHUNK).saturating_sub(self.chunks.len());
        let mut growth = chunks * Self::CHUNK * size_of::<(u128, V)>();
        if self.chunks.len() + chunks > self.chunks.capacity() {
            growth += self.chunk_step().max(chunks) * size_of::<Vec<(u128, V)>>();
        }
        let capacity = self.places.capacity();
        if self.places.len() + count > capacity {
            let larger = (self.places.len() + count).max(capacity + 1);
            growth += places_bytes(larger).saturating_sub(places_bytes(capacity));
        }
        growth
    }

    fn at(&self, place: usize) -> Option<&(u128, V)> {
        self.chunks.get(place / Self::CHUNK)?.get(place % Self::CHUNK)
    }

    fn pop_last(&mut self) -> Option<(u128, V)> {
        let last = self.chunks.last_mut()?.pop();
        if self.chunks.last().is_some_and(Vec::is_empty) {
            self.chunks.pop();
            if self.chunks.capacity() > 4 * self.chunks.len() + 8 {
                self.chunks.shrink_to(2 * self.chunks.len());
            }
        }
        self.len -= usize::from(last.is_some());
        last
    }

    fn chunk_step(&self) -> usize {
        (self.chunks.capacity() / 4).max(4)
    }
}

/// A map for `capacity` entries keeps a power of two of places, at least four, of which it fills
/// at most seven eighths, and a control byte for each.
fn places_bytes(capacity: usize) -> usize {
    const PLACE_BYTES: usize = size_of::<(u128, u32)>() + 1;
    match capacity {
        0 => 0,
        1..=3 => 4 * PLACE_BYTES + 16,
        4..=7 => 8 * PLACE_BYTES + 16,
        _ => (capacity * 8).div_ceil(7).next_power_of_two() * PLACE_BYTES + 16,
    }
}

/// Fingerprints are random bits under secret keys, so hashing them again would only cost time.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct TakeBits(u64);

impl Hasher for TakeBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let taken = bytes.iter().take(8).fold(0, |bits, byte| (bits << 8) | u64::from(*byte));
        self.0 ^= taken;
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half is as random as the whole")]
    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl HeapBytes for u128 {
        fn heap_bytes(&self) -> usize {
            10
        }
    }

    /// Spreads small numbers as fingerprints are spread.
    fn key(n: u128) -> u128 {
        n.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)
    }

    #[test]
    fn a_swept_table_keeps_what_is_not_done_and_finds_it() {
        let budget = Arc::new(Budget::new(1 << 30));
        let mut table = Table::new(&budget);
        (0..1_000).for_each(|n| table.insert(key(n), n));
        let dropped: usize = (0..200).map(|_| table.sweep(10, |value| *value % 3 == 0)).sum();
        assert_eq!((dropped, table.len()), (334, 666));
        for n in 0..1_000 {
            assert_eq!(table.get(key(n)), (n % 3 != 0).then_some(&n));
        }
        assert_eq!(budget.used(), table.bytes() + 666 * 10);
    }

    #[test]
    fn growth_foretells_every_allocation_and_what_goes_is_given_back() {
        let budget = Arc::new(Budget::new(1 << 30));
        let mut table = Table::new(&budget);
        for n in 0..20_000 {
            let foretold = table.bytes() + table.growth(1);
            table.insert(key(n), n);
            assert!(table.bytes() <= foretold, "{} > {foretold} at {n}", table.bytes());
            assert_eq!(budget.used(), table.bytes() + table.len() * 10);
        }
        let full = table.bytes();
        for n in 0..20_000 {
            assert_eq!(table.remove(key(n)), Some(n));
            assert_eq!(budget.used(), table.bytes() + table.len() * 10);
        }
        assert!(table.bytes() < full / 100, "{} left of {full}", table.bytes());
    }
}
