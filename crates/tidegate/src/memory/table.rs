//! Hash table that is swept incrementally and counts its bytes.

use std::sync::Arc;

use super::budget::{Budget, HeapSize};
use super::rule_records::RuleNumber;
use super::slot_index::SlotIndex;

/// Bytes on the heap, in addition to the size of the value.
pub(crate) trait HeapBytes {
    fn heap_bytes(&self) -> HeapSize;

    /// The rule whose record the value is, if its kind is shared out among rules.
    fn rule(&self) -> Option<RuleNumber> {
        None
    }
}

/// Values by fingerprint, with their bytes counted in a budget.
///
/// Values are stored in a dense list of chunks, so that a cursor can visit a few on every insertion
/// and remove those that have recovered. The last value fills the gap of a removed one, so chunks
/// are freed as soon as they are empty.
#[derive(Debug)]
pub(crate) struct Table<V> {
    index: SlotIndex,
    chunks: Vec<Vec<(u128, V)>>,
    len: usize,
    cursor: usize,
    budget: Arc<Budget>,
}

impl<V: HeapBytes> Table<V> {
    const CHUNK: usize = 16;

    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            index: SlotIndex::default(),
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
        self.at(self.position(key)?).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: u128) -> Option<&mut V> {
        let position = self.position(key)?;
        let chunk = self.chunks.get_mut(position / Self::CHUNK)?;
        chunk.get_mut(position % Self::CHUNK).map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &V> {
        self.chunks.iter().flatten().map(|(_, value)| value)
    }

    /// A sample of at most `count` values, from all ages.
    pub(crate) fn sample(&self, count: usize) -> impl Iterator<Item = &V> {
        let sampled = count.min(self.len);
        (0..sampled).filter_map(move |i| self.at(i * self.len / sampled)).map(|(_, value)| value)
    }

    /// Every key and its value.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u128, &V)> {
        self.chunks.iter().flatten().map(|(key, value)| (*key, value))
    }

    /// Whether the budget has room for `count` more values with `heap` bytes on the heap.
    pub(crate) fn has_room_for(&self, count: usize, heap: usize) -> bool {
        self.budget.has_room_for(self.growth(count) + heap)
    }

    /// Inserts a value for a key that has none.
    pub(crate) fn insert(&mut self, key: u128, value: V) {
        let before = self.bytes();
        self.budget.heap_resized(HeapSize::default(), value.heap_bytes());
        value.rule().into_iter().for_each(|rule| self.budget.count_record(rule));
        if self.len.is_multiple_of(Self::CHUNK) {
            if self.chunks.len() == self.chunks.capacity() {
                self.chunks.reserve_exact(self.chunk_step());
            }
            self.chunks.push(Vec::with_capacity(Self::CHUNK));
        }
        self.index.insert(key, slot_position(self.len));
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push((key, value));
            self.len += 1;
        }
        self.budget.resized(before, self.bytes());
    }

    pub(crate) fn remove(&mut self, key: u128) -> Option<V> {
        let before = self.bytes();
        let position = self.position(key)?;
        self.index.remove(key, slot_position(position));
        let mut removed = self.pop_last()?;
        if position < self.len {
            self.index.set(removed.0, slot_position(self.len), slot_position(position));
            let chunk = self.chunks.get_mut(position / Self::CHUNK)?;
            std::mem::swap(chunk.get_mut(position % Self::CHUNK)?, &mut removed);
        }
        let (_, removed) = removed;
        self.budget.resized(before, self.bytes());
        self.budget.heap_resized(removed.heap_bytes(), HeapSize::default());
        removed.rule().into_iter().for_each(|rule| self.budget.uncount_record(rule));
        Some(removed)
    }

    /// Visits the next `steps` values and removes those that are `done`. Returns how many.
    pub(crate) fn sweep(&mut self, steps: usize, done: impl Fn(&mut V) -> bool) -> usize {
        let before = self.len;
        for _ in 0..steps.min(before) {
            if self.cursor >= self.len {
                self.cursor = 0;
            }
            let (chunk, index) = (self.cursor / Self::CHUNK, self.cursor % Self::CHUNK);
            let next = self.chunks.get_mut(chunk).and_then(|chunk| chunk.get_mut(index));
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
            + self.index.bytes()
    }

    /// Bytes that `count` more values will allocate on top.
    pub(crate) fn growth(&self, count: usize) -> usize {
        let chunks = (self.len + count).div_ceil(Self::CHUNK).saturating_sub(self.chunks.len());
        let mut growth = chunks * Self::CHUNK * size_of::<(u128, V)>();
        if self.chunks.len() + chunks > self.chunks.capacity() {
            growth += self.chunk_step().max(chunks) * size_of::<Vec<(u128, V)>>();
        }
        growth + self.index.growth(count)
    }

    fn position(&self, key: u128) -> Option<usize> {
        let is_key = |found: u32| self.at(found as usize).is_some_and(|(other, _)| *other == key);
        self.index.find(key, is_key).map(|position| position as usize)
    }

    fn at(&self, index: usize) -> Option<&(u128, V)> {
        self.chunks.get(index / Self::CHUNK)?.get(index % Self::CHUNK)
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

fn slot_position(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(SlotIndex::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl HeapBytes for u128 {
        fn heap_bytes(&self) -> HeapSize {
            HeapSize { own: 7, holds: 3 }
        }
    }

    /// Spreads small numbers like fingerprints.
    fn key(n: u128) -> u128 {
        n.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)
    }

    #[test]
    fn a_sweep_removes_only_values_that_are_done() {
        let budget = Budget::alone(1 << 30);
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
    fn growth_predicts_every_allocation_and_removed_values_free_memory() {
        let budget = Budget::alone(1 << 30);
        let mut table = Table::new(&budget);
        for n in 0..20_000 {
            let predicted = table.bytes() + table.growth(1);
            table.insert(key(n), n);
            assert!(table.bytes() <= predicted, "{} > {predicted} at {n}", table.bytes());
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
