//! Open-addressing index of positions, eight bytes a slot.

/// Positions by the low 32 bits of a key, which must be random. The caller distinguishes keys of
/// equal bits.
///
/// Linear probing. A removed slot is filled from behind, so that a search ends at the first empty
/// slot.
#[derive(Default, Debug)]
pub(crate) struct SlotIndex {
    /// The bits of the key in the upper half, and the position plus one in the lower; 0 if empty.
    slots: Vec<u64>,
    len: usize,
}

impl SlotIndex {
    pub(crate) const MAX: u32 = u32::MAX - 1;
    /// An index of at most this many slots is not shrunk.
    const MIN_SHRUNK: usize = 64;

    /// The position with the bits of `key` that `is_wanted`.
    pub(crate) fn find(&self, key: u128, is_wanted: impl Fn(u32) -> bool) -> Option<u32> {
        let slot = self.slot(key, is_wanted)?;
        Some(position(self.slots[slot]))
    }

    pub(crate) fn insert(&mut self, key: u128, position: u32) {
        let slots = self.slots_for(self.len + 1);
        if slots != self.slots.len() {
            self.resize(slots);
        }
        self.put(u64::from(bits(key)) << 32 | (u64::from(position) + 1));
        self.len += 1;
    }

    /// Removes a position that was inserted under `key`.
    pub(crate) fn remove(&mut self, key: u128, position: u32) {
        let Some(mut gap) = self.slot(key, |found| found == position) else { return };
        let mut next = self.after(gap);
        // A later slot may move into the gap if its home is not between the two.
        while self.slots[next] != 0 {
            let from_home = self.distance(self.home(self.slots[next]), next);
            if from_home >= self.distance(gap, next) {
                self.slots[gap] = self.slots[next];
                gap = next;
            }
            next = self.after(next);
        }
        self.slots[gap] = 0;
        self.len -= 1;
        if self.slots.len() > Self::MIN_SHRUNK && self.len < self.slots.len() / 4 {
            self.resize(Self::min_slots(2 * self.len));
        }
    }

    /// Replaces a position that was inserted under `key`.
    pub(crate) fn set(&mut self, key: u128, before: u32, after: u32) {
        if let Some(slot) = self.slot(key, |found| found == before) {
            self.slots[slot] = u64::from(bits(key)) << 32 | (u64::from(after) + 1);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<u64>()
    }

    /// Bytes that `count` more positions will allocate.
    pub(crate) fn growth(&self, count: usize) -> usize {
        let slots = self.slots_for(self.len + count);
        (slots - self.slots.len()) * size_of::<u64>()
    }

    fn slot(&self, key: u128, is_wanted: impl Fn(u32) -> bool) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let bits = bits(key);
        let mut index = self.home(u64::from(bits) << 32);
        loop {
            let slot = self.slots[index];
            if slot == 0 {
                return None;
            }
            if slot >> 32 == u64::from(bits) && is_wanted(position(slot)) {
                return Some(index);
            }
            index = self.after(index);
        }
    }

    /// Three quarters of the slots may be used.
    fn min_slots(len: usize) -> usize {
        (4 * len).div_ceil(3).max(4)
    }

    /// Slots for this many positions: the present ones, or a quarter more.
    fn slots_for(&self, len: usize) -> usize {
        let slots = self.slots.len();
        if 4 * len <= 3 * slots { slots } else { Self::min_slots(len).max(slots + slots / 4) }
    }

    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![0; slots]);
        old.into_iter().filter(|slot| *slot != 0).for_each(|slot| self.put(slot));
    }

    fn put(&mut self, slot: u64) {
        let mut index = self.home(slot);
        while self.slots[index] != 0 {
            index = self.after(index);
        }
        self.slots[index] = slot;
    }

    fn home(&self, slot: u64) -> usize {
        (((slot >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    fn after(&self, index: usize) -> usize {
        if index + 1 < self.slots.len() { index + 1 } else { 0 }
    }

    /// Slots from `from` on to `to`, around the end if need be.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low bits are as random as the others")]
fn bits(key: u128) -> u32 {
    key as u32
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn position(slot: u64) -> u32 {
    (slot as u32).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Few different bits, so that there are runs of equal ones, also around the end.
    #[test]
    fn it_agrees_with_a_map_under_random_changes() {
        let mut index = SlotIndex::default();
        let mut map: HashMap<u32, u128> = HashMap::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let steps = if cfg!(miri) { 500 } else { 100_000 };
        for step in 0..steps {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let position = u32::try_from(random >> 40).unwrap() % 500;
            let grows = step / (steps / 10) % 2 == 0;
            match map.get(&position).copied() {
                None if grows || random & 7 == 0 => {
                    let near_the_end = if random & 8 == 0 { 0 } else { 0xffff_fff0 };
                    let key = u128::from(random & 15 | near_the_end);
                    let predicted = index.bytes() + index.growth(1);
                    index.insert(key, position);
                    assert_eq!(index.bytes(), predicted);
                    map.insert(position, key);
                }
                Some(key) if !grows => {
                    index.remove(key, position);
                    map.remove(&position);
                }
                Some(key) => {
                    let other = position + 500;
                    index.set(key, position, other);
                    assert_eq!(index.find(key, |found| found == other), Some(other));
                    index.set(key, other, position);
                }
                None => {}
            }
            assert_eq!(index.len, map.len());
            if step % (steps / 100) == 0 {
                for (position, key) in &map {
                    assert_eq!(index.find(*key, |found| found == *position), Some(*position));
                }
            }
        }
        for (position, key) in map {
            index.remove(key, position);
            assert_eq!(index.find(key, |found| found == position), None);
        }
        assert!(index.bytes() <= SlotIndex::MIN_SHRUNK * size_of::<u64>(), "{}", index.bytes());
    }
}
