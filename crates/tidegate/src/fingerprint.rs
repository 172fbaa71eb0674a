//! 64-bit fingerprints of a state and a key.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use crate::Key;

/// Hash of a state and a key, valid in this process only.
///
/// The bytes of a key are read as pairs of words. A different random number is added to each word,
/// and the products of the pairs are summed to 128 bits, plus the length of the key. For such sums
/// (NH, the hash of UMAC) it is proven that two different keys collide with a probability of at
/// most 2^-63. The halves of the sum and a tag of the state are then multiplied by random numbers
/// of 128 bits and added, and the upper half is taken. It differs if one of the inputs does, except
/// with a probability of 2^-64. The tag is made in the same way. So any two different inputs have
/// the same fingerprint with a probability of at most 2^-62, even if an attacker chooses them, as
/// long as the random numbers are secret. They are drawn at process start, and the only thing
/// derived from them that is visible is whether two keys share a count.
///
/// Consecutively numbered keys would form a pattern, so the bits are mixed at the end, by
/// invertible steps: different values stay different.
#[inline(always)]
pub(crate) fn fingerprint(state: StateTag, key: Key<'_>) -> u64 {
    match key.only() {
        Some(part) => fingerprint_of(state, part),
        None => fingerprint_of_several(state, key),
    }
}

/// Fingerprint of a key of one part.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
pub(crate) fn fingerprint_of(state: StateTag, part: &[u8]) -> u64 {
    let keys = hash_keys();
    let pairs = sum_of_pairs(&keys.pairs, part).wrapping_add(part.len() as u128);
    let [_, _, low, high, ..] = &keys.keys;
    let low = low.wrapping_mul(u128::from(pairs as u64));
    let high = high.wrapping_mul(pairs >> 64);
    mixed_upper_half(state.sum.wrapping_add(low).wrapping_add(high))
}

/// The last pair may overlap the one before: two keys of the same length still differ in a word.
#[inline(always)]
fn sum_of_pairs(numbers: &[[u64; 2]; PAIRS], bytes: &[u8]) -> u128 {
    let [last, others @ ..] = numbers;
    let product = |pair: [u64; 2], numbers: &[u64; 2]| {
        let factor = |i: usize| u128::from(pair[i].wrapping_add(numbers[i]));
        factor(0).wrapping_mul(factor(1))
    };
    let (chunks, rest) = bytes.as_chunks::<16>();
    let mut sum = 0_u128;
    for (chunk, numbers) in chunks.iter().zip(others) {
        sum = sum.wrapping_add(product(halves(chunk), numbers));
    }
    if !rest.is_empty() {
        let pair = match (bytes.last_chunk::<16>(), bytes.first_chunk(), bytes.last_chunk()) {
            (Some(chunk), ..) => halves(chunk),
            (_, Some(first), Some(end)) => [u64::from_le_bytes(*first), u64::from_le_bytes(*end)],
            _ => [short_word(bytes), 0],
        };
        sum = sum.wrapping_add(product(pair, last));
    }
    sum
}

#[inline(always)]
fn halves(chunk: &[u8; 16]) -> [u64; 2] {
    let (words, _) = chunk.as_chunks::<8>();
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

/// A word of fewer than eight bytes.
#[inline(always)]
fn short_word(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>(), bytes) {
        (Some(first), Some(last), _) => {
            u64::from(u32::from_le_bytes(*first)) << 32 | u64::from(u32::from_le_bytes(*last))
        }
        (_, _, [first, .., last]) => {
            let middle = bytes[bytes.len() / 2];
            u64::from(u32::from_le_bytes([*first, middle, *last, 0]))
        }
        (_, _, [only]) => u64::from(*only),
        _ => 0,
    }
}

/// Each word has its factor: the number of parts and, for each part, its length and its bytes.
#[inline(never)]
fn fingerprint_of_several(state: StateTag, key: Key<'_>) -> u64 {
    let mut sum = HashSum::of_several(state.sum);
    sum.add(SEVERAL | key.parts().count() as u64);
    key.parts().for_each(|part| sum.add_bytes(part));
    mixed_upper_half(sum.sum)
}

/// Hash of the name of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StateTag {
    bits: u64,
    /// Initial value of the sum over a key's words.
    sum: u128,
}

impl StateTag {
    pub(crate) fn new(state: &str) -> Self {
        let mut sum = HashSum::new(&hash_keys().states);
        // The part beyond `MAX_LEN` enters by the total length and a hash.
        let (head, rest) = state.as_bytes().split_at(state.len().min(Key::MAX_LEN));
        sum.add_bytes(head);
        if !rest.is_empty() {
            static HASHER: OnceLock<RandomState> = OnceLock::new();
            sum.add(HASHER.get_or_init(RandomState::new).hash_one(rest));
        }
        let bits = mixed_upper_half(sum.sum);
        let mut sum = HashSum::new(&hash_keys().keys);
        sum.add(bits);
        Self { bits, sum: sum.sum }
    }

    /// Hash bits of the state name; collisions are possible.
    pub(crate) fn bits(self) -> u64 {
        self.bits
    }
}

/// An odd number with half of its bits set, chosen at random.
const MIXER: u64 = 0x9fb2_1c65_1e98_df25;

/// Pairs of the longest key, and one for the remainder.
const PAIRS: usize = Key::MAX_LEN / 16 + 1;

/// Marks the word with the number of parts, so that it is never 0, as for a key of one part.
const SEVERAL: u64 = 1 << 63;

/// The initial value, and one factor per word: the state; the two halves for a key of one part; the
/// number of parts and, for each part, its length and its bytes, of which the last word may be
/// partly empty.
const FACTORS: usize = 4 + Key::MAX_LEN / 8 + 2 * Key::MAX_PARTS + 1;

struct HashSum {
    factors: std::slice::Iter<'static, u128>,
    sum: u128,
}

impl HashSum {
    #[inline(always)]
    fn new(factors: &'static [u128; FACTORS]) -> Self {
        let [first, factors @ ..] = factors;
        Self { factors: factors.iter(), sum: *first }
    }

    /// Skips the factors of a key of one part.
    fn of_several(sum: u128) -> Self {
        Self { factors: hash_keys().keys[4..].iter(), sum }
    }

    #[inline(always)]
    fn add(&mut self, word: u64) {
        // Valid keys have no more words than there are factors.
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
}

#[inline(always)]
fn mixed_upper_half(sum: u128) -> u64 {
    let half = (sum >> 64) as u64;
    let half = (half ^ half >> 32).wrapping_mul(MIXER);
    half ^ half >> 32
}

/// The random numbers of this process.
struct HashKeys {
    keys: [u128; FACTORS],
    states: [u128; FACTORS],
    pairs: [[u64; 2]; PAIRS],
}

#[inline(always)]
fn hash_keys() -> &'static HashKeys {
    static KEYS: OnceLock<Box<HashKeys>> = OnceLock::new();
    KEYS.get_or_init(|| {
        Box::new(HashKeys {
            keys: draw().map(u128::from_ne_bytes),
            states: draw().map(u128::from_ne_bytes),
            pairs: draw().map(|chunk| halves(&chunk)),
        })
    })
}

fn draw<const COUNT: usize>() -> [[u8; 16]; COUNT] {
    let mut bytes = [[0; 16]; COUNT];
    // If the system has no random numbers, the keys of the standard library's maps are used.
    if getrandom::fill(bytes.as_flattened_mut()).is_err() {
        let half = |bytes: &mut [u8; 8]| *bytes = RandomState::new().hash_one(0).to_ne_bytes();
        bytes.as_flattened_mut().as_chunks_mut().0.iter_mut().for_each(half);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn different_inputs_have_different_fingerprints() {
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
        let tags: HashSet<u64> = states.iter().map(|state| StateTag::new(state).bits).collect();
        assert_eq!(tags.len(), states.len());
    }

    /// Fails by chance with a probability below 10^-8.
    #[test]
    fn fingerprints_of_numbered_keys_are_spread_over_all_bits() {
        let tag = StateTag::new("spread");
        let mut ones = [0_u32; 64];
        let (count, max) = if cfg!(miri) { (200, 60) } else { (20_000, 500) };
        for i in 0..count {
            let bits = fingerprint(tag, Key::from(&*format!("user-{i}")));
            (0..64).for_each(|bit| ones[bit] += u32::from(bits >> bit & 1 == 1));
        }
        for (bit, ones) in ones.into_iter().enumerate() {
            assert!(ones.abs_diff(count / 2) < max, "bit {bit} is set in {ones} of {count}");
        }
    }

    #[test]
    fn the_longest_key_of_the_most_parts_has_a_factor_for_every_word() {
        let mut sum = HashSum::of_several(0);
        sum.add(0);
        for _ in 0..Key::MAX_PARTS {
            sum.add_bytes(&[b'x'; Key::MAX_LEN / Key::MAX_PARTS - 1]);
        }
        assert!(sum.factors.len() > 0);
        let mut sum = HashSum::of_several(0);
        sum.add(0);
        for part in 0..Key::MAX_PARTS {
            let bytes = if part == 0 { Key::MAX_LEN - 15 } else { 1 };
            sum.add_bytes(&vec![b'x'; bytes]);
        }
        assert!(sum.factors.len() > 0);
    }
}
