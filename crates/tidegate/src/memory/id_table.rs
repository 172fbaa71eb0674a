//! Results of calls with an id, in the order in which they were stored.

use std::collections::VecDeque;
use std::sync::Arc;

use tidegate_core::Micros;

use super::budget::{Budget, HeapSize};
use super::records::IdempotencyEntry;
use super::rule_records::RuleNumber;
use super::slot_index::SlotIndex;
use super::table::HeapBytes;
use crate::IdempotencyKey;

/// Entries by name. The oldest is removed first, when it has expired or to make room.
#[derive(Debug)]
pub(super) struct IdTable {
    index: SlotIndex,
    /// Removed entries are `None` until their chunk is freed.
    chunks: VecDeque<Vec<Option<IdempotencyEntry>>>,
    /// Sequence number of the first entry of the first chunk.
    base: u32,
    /// The first entry of the first chunk that was not removed as the oldest.
    first: usize,
    budget: Arc<Budget>,
}

impl IdTable {
    const CHUNK: usize = 16;
    /// Sequence numbers begin again after this one.
    const MASK: u32 = u32::MAX >> 1;
    /// No entry is removed to make room before it has this age.
    pub(super) const MIN_RETENTION: Micros = Micros::from_secs(60);

    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            index: SlotIndex::default(),
            chunks: VecDeque::new(),
            base: 0,
            first: 0,
            budget: budget.clone(),
        }
    }

    pub(super) fn get_mut(&mut self, name: u128) -> Option<&mut IdempotencyEntry> {
        let sequence = self.sequence(name)?;
        self.slot_mut(sequence)?.as_mut()
    }

    /// Inserts an entry whose name is not there yet.
    pub(super) fn insert(&mut self, entry: IdempotencyEntry) {
        let before = self.bytes();
        self.budget.heap_resized(HeapSize::default(), entry.heap_bytes());
        self.budget.count_record(entry.rule());
        if self.chunks.back().is_none_or(|chunk| chunk.len() == Self::CHUNK) {
            self.chunks.push_back(Vec::with_capacity(Self::CHUNK));
        }
        let chunks = self.chunks.len();
        if let Some(last) = self.chunks.back_mut() {
            let offset = (chunks - 1) * Self::CHUNK + last.len();
            let sequence = sequence_after(self.base, offset);
            self.index.insert(entry.name, sequence);
            last.push(Some(entry));
        }
        self.budget.resized(before, self.bytes());
    }

    /// Removes the entry of a name.
    pub(super) fn remove(&mut self, name: u128) -> Option<IdempotencyEntry> {
        let sequence = self.sequence(name)?;
        let before = self.bytes();
        let entry = self.slot_mut(sequence).and_then(Option::take);
        self.index.remove(name, sequence);
        self.budget.resized(before, self.bytes());
        if let Some(entry) = &entry {
            self.budget.heap_resized(entry.heap_bytes(), HeapSize::default());
            self.budget.uncount_record(entry.rule());
        }
        entry
    }

    /// Visits the `steps` oldest entries and removes those that have expired.
    pub(super) fn remove_expired(&mut self, steps: usize, now: Micros) {
        for _ in 0..steps {
            if !self.oldest().is_some_and(|oldest| oldest.has_expired(now)) {
                return;
            }
            self.remove_oldest();
        }
    }

    /// Removes up to a chunk of the oldest entries to make room, until the oldest is of another
    /// rule than `only`. The age of the last of them; `None` if none is old enough.
    pub(super) fn evict(&mut self, now: Micros, only: Option<RuleNumber>) -> Option<Micros> {
        let mut retention = None;
        for _ in 0..Self::CHUNK {
            let Some((age, rule)) = self.oldest_age(now) else { break };
            if age < Self::MIN_RETENTION || only.is_some_and(|only| only != rule) {
                break;
            }
            self.remove_oldest();
            retention = Some(age);
        }
        retention
    }

    /// Moves up to a chunk of the oldest entries behind the youngest, until the oldest is one that
    /// can be removed to make room for `rule`. They are kept until they are the oldest again.
    pub(super) fn pass_over_others(&mut self, now: Micros, rule: RuleNumber) {
        for _ in 0..Self::CHUNK {
            let Some((age, of)) = self.oldest_age(now) else { return };
            if age < Self::MIN_RETENTION || of == rule {
                return;
            }
            let moved = self.remove_oldest().filter(|_| age < IdempotencyKey::TTL);
            moved.into_iter().for_each(|entry| self.insert(entry));
        }
    }

    /// The age of the oldest entry, and its rule.
    fn oldest_age(&mut self, now: Micros) -> Option<(Micros, RuleNumber)> {
        let oldest = self.oldest()?;
        let age = if oldest.has_expired(now) { IdempotencyKey::TTL } else { oldest.age(now) };
        Some((age, oldest.rule()))
    }

    fn oldest(&mut self) -> Option<&mut IdempotencyEntry> {
        while self.chunks.front()?.get(self.first)?.is_none() {
            self.skip_first();
        }
        self.chunks.front_mut()?.get_mut(self.first)?.as_mut()
    }

    fn remove_oldest(&mut self) -> Option<IdempotencyEntry> {
        let name = self.oldest()?.name;
        let removed = self.remove(name);
        self.skip_first();
        removed
    }

    /// Passes over the first slot, which is empty, and frees its chunk if it was the last.
    fn skip_first(&mut self) {
        self.first += 1;
        if self.first == Self::CHUNK {
            let before = self.bytes();
            self.chunks.pop_front();
            if self.chunks.capacity() > 4 * self.chunks.len() + 8 {
                self.chunks.shrink_to(2 * self.chunks.len());
            }
            self.base = sequence_after(self.base, Self::CHUNK);
            self.first = 0;
            self.budget.resized(before, self.bytes());
        }
    }

    fn bytes(&self) -> usize {
        self.chunks.len() * Self::CHUNK * size_of::<Option<IdempotencyEntry>>()
            + self.chunks.capacity() * size_of::<Vec<Option<IdempotencyEntry>>>()
            + self.index.bytes()
    }

    /// Bytes that one more entry will allocate on top.
    pub(super) fn growth(&self) -> usize {
        let index = self.index.growth(1);
        if self.chunks.back().is_some_and(|chunk| chunk.len() < Self::CHUNK) {
            return index;
        }
        let is_full = self.chunks.len() == self.chunks.capacity();
        let list = if is_full { self.chunks.capacity().max(4) } else { 0 };
        index
            + Self::CHUNK * size_of::<Option<IdempotencyEntry>>()
            + list * size_of::<Vec<Option<IdempotencyEntry>>>()
    }

    fn sequence(&self, name: u128) -> Option<u32> {
        self.index.find(name, |sequence| {
            let (chunk, slot) = self.place(sequence);
            let entry = self.chunks.get(chunk).and_then(|chunk| chunk.get(slot));
            entry.is_some_and(|entry| entry.as_ref().is_some_and(|entry| entry.name == name))
        })
    }

    fn slot_mut(&mut self, sequence: u32) -> Option<&mut Option<IdempotencyEntry>> {
        let (chunk, slot) = self.place(sequence);
        self.chunks.get_mut(chunk)?.get_mut(slot)
    }

    /// Chunk and slot of a sequence number.
    fn place(&self, sequence: u32) -> (usize, usize) {
        let offset = (sequence.wrapping_sub(self.base) & Self::MASK) as usize;
        (offset / Self::CHUNK, offset % Self::CHUNK)
    }
}

/// The sequence number `offset` entries after `base`.
#[expect(clippy::cast_possible_truncation, reason = "sequence numbers begin again")]
fn sequence_after(base: u32, offset: usize) -> u32 {
    base.wrapping_add(offset as u32) & IdTable::MASK
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::records::StoredDecision;
    use crate::{Decision, Source};

    fn entry(n: u64, at: u64) -> IdempotencyEntry {
        let verdict = Decision::new(Source::Memory, Default::default()).verdict();
        IdempotencyEntry {
            name: u128::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835),
            request: RuleNumber::of(if n.is_multiple_of(2) { "even" } else { "odd" })
                .in_low_bits_of(n),
            expires: Micros::from_secs(at).saturating_add(IdempotencyKey::TTL),
            decision: StoredDecision::One(verdict),
        }
    }

    fn name(n: u64) -> u128 {
        entry(n, 0).name
    }

    #[test]
    fn an_entry_of_one_verdict_needs_at_most_110_bytes() {
        let budget = Budget::alone(1 << 30);
        let mut table = IdTable::new(&budget);
        for n in 0..100_000_u64 {
            let predicted = table.bytes() + table.growth();
            table.insert(entry(n, n));
            assert!(table.bytes() <= predicted, "{n}");
            assert_eq!(budget.used(), table.bytes());
            let each = budget.used() as u64 / (n + 1);
            assert!(n < 1_000 || each <= 110, "{each} bytes for each of {n}");
        }
    }

    #[test]
    fn the_oldest_entries_go_first_and_none_before_the_minimum() {
        let budget = Budget::alone(1 << 30);
        let mut table = IdTable::new(&budget);
        // Around the last sequence number.
        table.base = IdTable::MASK - 100;
        (0..1_000).for_each(|n| table.insert(entry(n, n)));
        table.remove(name(3));
        assert_eq!(table.evict(Micros::from_secs(59), None), None);
        let now = Micros::from_secs(100);
        let mut retention = Micros::MAX;
        while let Some(age) = table.evict(now, None) {
            assert!(age < retention, "older ones first");
            retention = age;
        }
        assert_eq!(retention, IdTable::MIN_RETENTION);
        for n in 0..1_000 {
            let found = table.get_mut(name(n)).map(|entry| entry.request >> 8);
            assert_eq!(found, (n > 40).then_some(n));
        }
        table.remove_expired(10_000, Micros::from_secs(3_600 + 998));
        assert!(table.get_mut(name(998)).is_none() && table.get_mut(name(999)).is_some());
        assert!(budget.used() < 6_000, "{}", budget.used());
    }

    #[test]
    fn for_one_rule_only_its_own_entries_go_and_the_others_stay_in_order() {
        let budget = Budget::alone(1 << 30);
        let mut table = IdTable::new(&budget);
        let odd = RuleNumber::of("odd");
        (0..100).for_each(|n| table.insert(entry(n, n)));
        let now = Micros::from_secs(160);
        assert_eq!(table.evict(now, Some(odd)), None, "the oldest is of the other rule");
        for _ in 0..200 {
            table.pass_over_others(now, odd);
            table.evict(now, Some(odd));
        }
        for n in 0..100 {
            let is_there = table.get_mut(name(n)).is_some();
            assert_eq!(is_there, n % 2 == 0, "{n}");
        }
        // One that has expired is not kept.
        let later = now.saturating_add(IdempotencyKey::TTL);
        table.pass_over_others(later, odd);
        assert!((0..100).filter(|n| table.get_mut(name(*n)).is_some()).count() < 50);
    }
}
