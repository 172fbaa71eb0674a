//! More holds on one state than a list takes: found by id, and summed by deadline.

use alloc::vec::Vec;

use crate::hold::HoldEnd;
use crate::{Hold, Holds, Micros};

/// Holds in chunks, in the order of their ids, and what ends at each deadline.
///
/// A call moves at most a chunk, and visits some hundred ends, however many holds there are. Holds
/// that have ended stay in the chunks until they are more than those that have not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ManyHolds {
    /// By id. No chunk is empty.
    chunks: Vec<Vec<Hold>>,
    /// By deadline, each with at least one hold that has not ended.
    ends: Vec<HoldEnd>,
    /// Holds that have not ended.
    len: usize,
    /// Holds in the chunks.
    stored: usize,
    /// Holds with a deadline up to this one have ended.
    ended: Micros,
}

impl ManyHolds {
    const CHUNK: usize = 64;
    /// A chunk with fewer holds is joined with its neighbour.
    const MIN_CHUNK: usize = Self::CHUNK / 4;
    /// From so many to twice as many deadlines lie within a TTL.
    const STEPS: u64 = 128;
    /// Space for ends at first: for those of one TTL.
    const FIRST_ENDS: usize = 2 * Self::STEPS as usize + 2;
    const CHUNK_BYTES: usize = Self::CHUNK * size_of::<Hold>() + size_of::<Vec<Hold>>();
    /// Bytes for the first hold that a list does not take, and for all before, at most.
    pub(crate) const FIRST_BYTES: usize = Self::FIRST_ENDS * size_of::<HoldEnd>()
        + (2 * Holds::MAX_EXACT / Self::CHUNK + 2) * Self::CHUNK_BYTES;

    /// The holds of a list that has become too long.
    pub(crate) fn of(mut holds: Vec<Hold>) -> Self {
        holds.iter_mut().for_each(|hold| *hold = Self::rounded(*hold));
        Self::new(holds)
    }

    /// These holds, with their deadlines as they are.
    fn new(mut holds: Vec<Hold>) -> Self {
        holds.sort_by_key(|hold| hold.id);
        let half = Self::CHUNK / 2;
        let mut chunks = Vec::with_capacity(holds.len().div_ceil(half) + 1);
        for part in holds.chunks(half) {
            let mut chunk = Vec::with_capacity(Self::CHUNK);
            chunk.extend_from_slice(part);
            chunks.push(chunk);
        }
        let (len, stored) = (holds.len(), holds.len());
        holds.sort_by_key(|hold| hold.deadline);
        let mut ends: Vec<HoldEnd> = Vec::with_capacity(Self::FIRST_ENDS);
        for end in holds.iter().map(HoldEnd::of) {
            match ends.last_mut().filter(|last| last.deadline == end.deadline) {
                Some(last) => last.add(&end),
                None => ends.push(end),
            }
        }
        Self { chunks, ends, len, stored, ended: Micros::ZERO }
    }

    /// Holds that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What ends at each deadline, the next one first.
    pub(crate) fn ends(&self) -> &[HoldEnd] {
        &self.ends
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.chunks.iter().flatten().filter(|hold| !has_ended(hold, self.ended))
    }

    pub(crate) fn get(&self, id: u128) -> Option<&Hold> {
        let (chunk, place) = self.place(id);
        let hold = self.chunks.get(chunk)?.get(place)?;
        (hold.id == id && !has_ended(hold, self.ended)).then_some(hold)
    }

    pub(crate) fn insert(&mut self, hold: Hold) {
        if has_ended(&hold, self.ended) {
            self.forget_ended();
        }
        let hold = Self::rounded(hold);
        let end = HoldEnd::of(&hold);
        match self.ends.binary_search_by_key(&hold.deadline, |end| end.deadline) {
            Ok(place) => self.ends[place].add(&end),
            Err(place) => self.ends.insert(place, end),
        }
        self.len += 1;
        let (mut chunk, mut place) = self.place(hold.id);
        let Some(holds) = self.chunks.get_mut(chunk) else {
            self.stored += 1;
            let mut first = Vec::with_capacity(Self::CHUNK);
            first.push(hold);
            return self.chunks.push(first);
        };
        // The id of one that has ended may come again.
        if let Some(same) = holds.get_mut(place).filter(|same| same.id == hold.id)
            && has_ended(same, self.ended)
        {
            *same = hold;
            return;
        }
        self.stored += 1;
        if holds.len() == Self::CHUNK {
            let mut upper = Vec::with_capacity(Self::CHUNK);
            upper.extend(holds.drain(Self::CHUNK / 2..));
            self.chunks.insert(chunk + 1, upper);
            if place > Self::CHUNK / 2 {
                (chunk, place) = (chunk + 1, place - Self::CHUNK / 2);
            }
        }
        self.chunks[chunk].insert(place, hold);
    }

    pub(crate) fn remove(&mut self, id: u128) -> Option<Hold> {
        let (chunk, place) = self.place(id);
        let found = *self.chunks.get(chunk)?.get(place)?;
        if found.id != id || has_ended(&found, self.ended) {
            return None;
        }
        self.chunks[chunk].remove(place);
        self.join(chunk);
        (self.len, self.stored) = (self.len - 1, self.stored - 1);
        if let Ok(place) = self.ends.binary_search_by_key(&found.deadline, |end| end.deadline) {
            self.ends[place].subtract(&HoldEnd::of(&found));
            if self.ends[place].holds == 0 {
                self.ends.remove(place);
            }
        }
        Some(found)
    }

    /// Removes what has ended, the first to end first.
    pub(crate) fn take_ended(&mut self, now: Micros) -> Vec<HoldEnd> {
        let ended = self.ends.partition_point(|end| end.has_ended(now));
        let ended: Vec<HoldEnd> = self.ends.drain(..ended).collect();
        if let Some(last) = ended.last() {
            self.ended = last.deadline;
            self.len -= ended.iter().map(|end| end.holds).sum::<usize>();
            if self.stored > 2 * self.len + Self::CHUNK {
                self.forget_ended();
            }
        }
        ended
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.chunks.len() * Self::CHUNK * size_of::<Hold>()
            + self.chunks.capacity() * size_of::<Vec<Hold>>()
            + self.ends.capacity() * size_of::<HoldEnd>()
    }

    /// Bytes that the next hold will allocate, at most.
    pub(crate) fn growth(&self) -> usize {
        let doubled =
            |len: usize, capacity: usize| if len < capacity { 0 } else { capacity.max(4) };
        Self::CHUNK * size_of::<Hold>()
            + doubled(self.chunks.len(), self.chunks.capacity()) * size_of::<Vec<Hold>>()
            + doubled(self.ends.len(), self.ends.capacity()) * size_of::<HoldEnd>()
    }

    /// Shortens every hold to at most its TTL from `now`, rounded up.
    pub(crate) fn rebase(&mut self, now: Micros) {
        let mut holds: Vec<Hold> = self.iter().copied().collect();
        for hold in &mut holds {
            let latest = Self::next_step(now.saturating_add(hold.ttl), hold.ttl);
            hold.deadline = hold.deadline.min(latest);
        }
        *self = Self::new(holds);
    }

    /// The hold, with a deadline that it shares with others. It counts as granted for a little
    /// longer.
    fn rounded(hold: Hold) -> Hold {
        let deadline = Self::next_step(hold.deadline, hold.ttl);
        let ttl = hold.ttl.saturating_add(deadline.saturating_sub(hold.deadline));
        Hold { deadline, ttl, ..hold }
    }

    /// The first deadline for holds of this TTL that is not before `instant`. Steps are powers of
    /// two, so that TTLs of a similar length share their deadlines.
    fn next_step(instant: Micros, ttl: Micros) -> Micros {
        if instant == Micros::MAX {
            return instant;
        }
        let step = (ttl.get() / (2 * Self::STEPS)).max(1).next_power_of_two();
        let next = instant.get().checked_next_multiple_of(step).map(Micros::new);
        // One that ends must not become one that never does.
        next.filter(|next| *next < Micros::MAX).unwrap_or(instant)
    }

    /// Removes holds that have ended from the chunks.
    fn forget_ended(&mut self) {
        let holds: Vec<Hold> = self.iter().copied().collect();
        *self = Self::new(holds);
    }

    /// The chunk with this id and its place there, or where to insert it.
    fn place(&self, id: u128) -> (usize, usize) {
        let after = self.chunks.partition_point(|chunk| chunk.first().is_some_and(|h| h.id <= id));
        let chunk = after.saturating_sub(1);
        let holds = self.chunks.get(chunk).map_or([].as_slice(), Vec::as_slice);
        (chunk, holds.partition_point(|hold| hold.id < id))
    }

    /// Joins a chunk with a neighbour if both together are small.
    fn join(&mut self, chunk: usize) {
        if self.chunks[chunk].len() >= Self::MIN_CHUNK {
            return;
        }
        let len = |index: usize| self.chunks.get(index).map_or(Self::CHUNK, Vec::len);
        let fits = |lower: usize| len(lower) + len(lower + 1) <= 3 * Self::CHUNK / 4;
        let lower =
            if fits(chunk) { Some(chunk) } else { chunk.checked_sub(1).filter(|l| fits(*l)) };
        if let Some(lower) = lower {
            let upper = self.chunks.remove(lower + 1);
            self.chunks[lower].extend_from_slice(&upper);
        } else if self.chunks[chunk].is_empty() {
            self.chunks.remove(chunk);
        }
    }
}

/// Whether a hold is among those that have ended.
fn has_ended(hold: &Hold, ended: Micros) -> bool {
    hold.deadline <= ended && !hold.is_endless()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cost, Expiry};
    use std::collections::BTreeMap;

    const TTL: u64 = 60_000_000;

    fn hold(id: u128, deadline: u64, ttl: u64) -> Hold {
        let expiry = if id.is_multiple_of(3) { Expiry::Release } else { Expiry::Charge };
        let cost = Cost::total(1 + (id % 7) as u64);
        Hold { id, cost, deadline: Micros::new(deadline), ttl: Micros::new(ttl), expiry }
    }

    /// Ids without an order.
    fn id(n: u64) -> u128 {
        u128::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)
    }

    #[test]
    fn a_call_visits_no_more_with_fifty_thousand_holds_than_with_five_thousand() {
        for ttls in [&[TTL][..], &[TTL, 1_000_000, 3_600_000_000]] {
            let mut holds = Holds::default();
            for n in 0..50_000 {
                let (now, ttl) = (1_000_000_000 + n * 1_000, ttls[n as usize % ttls.len()]);
                holds.take_ended(Micros::new(now));
                holds.insert(hold(id(n), now + ttl, ttl));
                let visited = holds.ends(Micros::new(now)).len();
                let most = Holds::MAX_EXACT.max(257 * ttls.len());
                assert!(visited <= most, "{visited} ends are visited with {n} holds");
                assert!(holds.growth() < 128 << 10, "{} bytes more", holds.growth());
            }
            assert!(holds.iter().count() > 25_000 / ttls.len());
            // A step back of the clock makes no more of them.
            holds.rebase(Micros::new(1_000_000_000));
            let visited = holds.ends(Micros::new(1_000_000_000)).len();
            assert!(visited <= 258 * ttls.len(), "{visited} ends are visited after a step back");
        }
    }

    #[test]
    fn the_memory_of_holds_that_are_gone_is_freed() {
        let mut holds = Holds::default();
        (0..50_000).for_each(|n| holds.insert(hold(id(n), TTL + n, TTL)));
        let full = holds.heap_bytes();
        assert!(full < 50_000 * 2 * size_of::<Hold>(), "{full}");
        for n in 0..50_000 {
            assert!(holds.heap_bytes() < 500_000 + 4 * size_of::<Hold>() * (50_000 - n as usize));
            assert!(holds.remove(id(n)).is_some());
        }
        assert!(holds.is_empty() && holds.heap_bytes() < 20_000, "{}", holds.heap_bytes());
    }

    /// The hold as it is stored, which is rounded up.
    fn checked(made: &Hold, stored: &Hold) -> Hold {
        let late = stored.deadline.saturating_sub(made.deadline);
        assert!(stored.deadline >= made.deadline && late.get() <= made.ttl.get() / 64);
        assert_eq!(stored.ttl, made.ttl.saturating_add(late));
        *stored
    }

    /// Against a map, through all sizes. A hold ends at its deadline or, if it was rounded, up to
    /// 1/64 of its TTL later.
    #[test]
    fn it_agrees_with_a_map_under_random_changes() {
        let (mut holds, mut map) = (Holds::default(), BTreeMap::<u128, Hold>::new());
        let (mut random, mut now) = (0x9E37_79B9_7F4A_7C15_u64, TTL);
        let mut most = 0;
        for step in 0..200_000_u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let grows = step / 40_000 % 2 == 0;
            let id = id(random % 8_192);
            if map.contains_key(&id) || (!grows && random >> 60 > 2) {
                let (removed, expected) = (holds.remove(id), map.remove(&id));
                assert_eq!(removed, expected, "step {step}");
            } else {
                let ttl = TTL >> (random >> 40 & 3);
                let new = hold(id, now + ttl, ttl);
                holds.insert(new);
                map.insert(id, new);
                if map.len() > Holds::MAX_EXACT {
                    // The new one was rounded, or all if the list has become too long.
                    let was_list = map.len() == Holds::MAX_EXACT + 1;
                    let rounded = map.values_mut().filter(|hold| was_list || hold.id == id);
                    rounded.for_each(|hold| *hold = checked(hold, holds.get(hold.id).unwrap()));
                } else {
                    map.insert(id, *holds.get(id).unwrap());
                }
            }
            now += random >> 32 & 0x3fff;
            if step % 16 == 0 {
                let ended = holds.take_ended(Micros::new(now));
                assert!(ended.is_sorted_by_key(|end| end.deadline));
                let is_gone = |hold: &&Hold| hold.has_ended(Micros::new(now));
                let gone: Vec<HoldEnd> = map.values().filter(is_gone).map(HoldEnd::of).collect();
                map.retain(|_, hold| !is_gone(&&*hold));
                let sums = |ends: &[HoldEnd]| {
                    let sum = |of: fn(&HoldEnd) -> u64| ends.iter().map(of).sum::<u64>();
                    (sum(|end| end.held), sum(|end| end.charged), sum(|end| end.holds as u64))
                };
                assert_eq!(sums(&ended), sums(&gone), "step {step}");
            }
            if step % 997 == 0 {
                let back = Micros::new(now - TTL / 2);
                (step % 1_994 == 0).then(|| holds.rebase(back));
                map = holds.iter().map(|hold| (hold.id, *hold)).collect();
            }
            if step % 64 == 0 {
                let mut all: Vec<&Hold> = holds.iter().collect();
                all.sort_by_key(|hold| hold.id);
                assert!(all.into_iter().eq(map.values()), "step {step}");
                assert_eq!(holds.held(), map.values().map(|hold| hold.cost.get()).sum::<u64>());
            }
            most = most.max(map.len());
        }
        assert!(most > 1_500, "only {most} holds at a time");
    }
}
