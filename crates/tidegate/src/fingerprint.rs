//! 64 bits that stand for a state and a key.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use crate::Key;

/// Stands for a state and a key in the memory of this process.
///
/// It is a sum of the words of both, each times a random number of 128 bits of its own that is drawn
/// when the process starts; the upper half of the sum is taken. Of that it is proven that any two
/// different inputs have the same fingerprint with a chance of at most 2^-64, whoever
/// has chosen them, as long as the numbers are not known; and nothing that depends on them is ever
/// shown but whether two keys share a count. Lengths are words too, so that inputs of different
/// lengths differ in one of them. A state comes as a tag that was made in the same way, of numbers of its
/// own: two keys of different states meet with a chance of at most 2^-63.
///
/// Keys that are numbered in a row would lie in a pattern, so the bits are mixed in the end, by steps
/// that can be undone: what was different stays so.
#[inline]
pub(crate) fn fingerprint(state: StateTag, key: Key<'_>) -> u64 {
    let mut sum = Sum::new(&drawn().keys);
    sum.add(state.0);
    match key.only() {
        Some(part) => sum.add_bytes(part),
        None => {
            sum.add(SEVERAL | key.parts().count() as u64);
            key.parts().for_each(|part| sum.add_bytes(part));
        }
    }
    sum.mixed_upper_half()
}

/// Stands for the name of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StateTag(u64);

impl StateTag {
    pub(crate) fn new(state: &str) -> Self {
        let mut sum = Sum::new(&drawn().states);
        // What does not fit is told by its length and by a hash.
        let (head, rest) = state.as_bytes().split_at(state.len().min(Key::MAX_LEN));
        sum.add_bytes(head);
        if !rest.is_empty() {
            static HASHER: OnceLock<RandomState> = OnceLock::new();
            sum.add(HASHER.get_or_init(RandomState::new).hash_one(rest));
        }
        Self(sum.mixed_upper_half())
    }

    /// Bits to tell states apart by, most of the time.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }
}

/// Odd numbers with half of their bits set, at random.
const MIXERS: [u64; 2] = [0x9fb2_1c65_1e98_df25, 0xd6e8_feb8_6659_fd93];

/// Marks the word that tells how many parts there are: no length of a part is as large.
const SEVERAL: u64 = 1 << 63;

/// One factor for each word that can come: the state, the number of parts, and for each part its
/// length and its bytes, of which the last word may be half empty.
const FACTORS: usize = 2 + Key::MAX_LEN / 8 + 2 * Key::MAX_PARTS + 1;

struct Sum {
    factors: std::slice::Iter<'static, u128>,
    sum: u128,
}

impl Sum {
    #[inline(always)]
    fn new(factors: &'static [u128; FACTORS]) -> Self {
        let [first, factors @ ..] = factors;
        Self { factors: factors.iter(), sum: *first }
    }

    #[inline(always)]
    fn add(&mut self, word: u64) {
        // Whoever is served has no more words than there are factors.
        let factor = self.factors.next().copied().unwrap_or(1);
        self.sum = self.sum.wrapping_add(factor.wrapping_mul(u128::from(word)));
    }

    #[inline(always)]
    fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.add(u64::from_le_bytes(word));
        }
    }

    #[inline(always)]
    fn mixed_upper_half(self) -> u64 {
        let half = (self.sum >> 64) as u64;
        let half = (half ^ half >> 32).wrapping_mul(MIXERS[0]);
        let half = (half ^ half >> 29).wrapping_mul(MIXERS[1]);
        half ^ half >> 32
    }
}

/// The random numbers of this process.
struct Drawn {
    keys: [u128; FACTORS],
    states: [u128; FACTORS],
}

#[inline(always)]
fn drawn() -> &'static Drawn {
    static DRAWN: OnceLock<Box<Drawn>> = OnceLock::new();
    DRAWN.get_or_init(|| Box::new(Drawn { keys: draw(), states: draw() }))
}

fn draw() -> [u128; FACTORS] {
    let mut bytes = [[0; 16]; FACTORS];
    // Without the system's random numbers, those of the standard library's maps have to do.
    if getrandom::fill(bytes.as_flattened_mut()).is_err() {
        let half = |bytes: &mut [u8; 8]| *bytes = RandomState::new().hash_one(0).to_ne_bytes();
        bytes.as_flattened_mut().as_chunks_mut().0.iter_mut().for_each(half);
    }
    bytes.map(u128::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn whatever_differs_has_another_fingerprint() {
        let long = "k".repeat(Key::MAX_LEN);
        let (a, b) = (StateTag::new("a"), StateTag::new("b"));
        let texts =
            ["", "\0", "\0\0", "a", "a\0", "ab", "abcdefgh", "abcdefgh\0", "abcdefghi", &long];
        let mut seen = HashSet::new();
        for tag in [a, b] {
            for text in texts {
                assert!(seen.insert(fingerprint(tag, Key::from(text))), "{text:?}");
                for other in texts {
                    assert!(seen.insert(fingerprint(tag, Key::of(&[text, other]))));
                }
            }
            assert!(seen.insert(fingerprint(tag, Key::of(&[]))));
            assert!(seen.insert(fingerprint(tag, Key::of(&["", "", ""]))));
        }
        assert_eq!(fingerprint(a, Key::of(&["x"])), fingerprint(a, Key::from("x")));
        let states = [&*long, &format!("{long}x"), &format!("{long}y"), &format!("{long}xx")];
        let tags: HashSet<u64> = states.iter().map(|state| StateTag::new(state).0).collect();
        assert_eq!(tags.len(), states.len());
    }

    /// The chance of a false alarm is below 10^-8.
    #[test]
    fn fingerprints_of_numbered_keys_are_spread_over_all_bits() {
        let tag = StateTag::new("spread");
        let mut ones = [0_u32; 64];
        let (count, most) = if cfg!(miri) { (200, 60) } else { (20_000, 500) };
        for i in 0..count {
            let bits = fingerprint(tag, Key::from(&*format!("user-{i}")));
            (0..64).for_each(|bit| ones[bit] += u32::from(bits >> bit & 1 == 1));
        }
        for (bit, ones) in ones.into_iter().enumerate() {
            assert!(ones.abs_diff(count / 2) < most, "bit {bit} is set in {ones} of {count}");
        }
    }

    #[test]
    fn the_longest_key_of_the_most_parts_has_a_factor_for_every_word() {
        let mut sum = Sum::new(&drawn().keys);
        sum.add(0);
        sum.add(0);
        for _ in 0..Key::MAX_PARTS {
            sum.add_bytes(&[b'x'; Key::MAX_LEN / Key::MAX_PARTS - 1]);
        }
        assert!(sum.factors.len() > 0);
        let mut sum = Sum::new(&drawn().keys);
        sum.add(0);
        sum.add(0);
        for part in 0..Key::MAX_PARTS {
            let bytes = if part == 0 { Key::MAX_LEN - 15 } else { 1 };
            sum.add_bytes(&vec![b'x'; bytes]);
        }
        assert!(sum.factors.len() > 0);
    }
}
