//! Keys: what a limit counts by.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// What a limit counts by: one or several parts, such as a tenant and a user.
///
/// The parts stay separate: `["a_b", "c"]` is another key than `["a", "b_c"]`. A key of one part
/// equals the part alone.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a>(KeyRepr<'a>);

#[derive(Clone, Copy, Debug)]
enum KeyRepr<'a> {
    One(&'a [u8]),
    Texts(&'a [&'a str]),
    Strings(&'a [String]),
}

impl<'a> Key<'a> {
    /// Longest key in bytes, all parts together.
    pub const MAX_LEN: usize = 1_024;
    /// Largest number of parts.
    pub const MAX_PARTS: usize = 16;

    /// A key of several parts.
    pub fn of(parts: &'a [&'a str]) -> Self {
        Self(KeyRepr::Texts(parts))
    }

    /// The part, if there is only one.
    #[inline]
    pub(crate) fn only(&self) -> Option<&'a [u8]> {
        match self.0 {
            KeyRepr::One(part) => Some(part),
            KeyRepr::Texts([part]) => Some(part.as_bytes()),
            KeyRepr::Strings([part]) => Some(part.as_bytes()),
            KeyRepr::Texts(_) | KeyRepr::Strings(_) => None,
        }
    }

    /// Whether the key is within [`MAX_LEN`](Self::MAX_LEN) and [`MAX_PARTS`](Self::MAX_PARTS).
    pub(crate) fn is_valid(&self) -> bool {
        if let Some(part) = self.only() {
            return part.len() <= Self::MAX_LEN;
        }
        let (count, len) = self.parts().fold((0, 0), |(n, len), part| (n + 1, len + part.len()));
        count <= Self::MAX_PARTS && len <= Self::MAX_LEN
    }

    /// The parts in order.
    pub fn parts(&self) -> impl Iterator<Item = &'a [u8]> {
        let (one, texts, strings) = match self.0 {
            KeyRepr::One(part) => (Some(part), [].as_slice(), [].as_slice()),
            KeyRepr::Texts(texts) => (None, texts, [].as_slice()),
            KeyRepr::Strings(strings) => (None, [].as_slice(), strings),
        };
        let texts = texts.iter().map(|text| text.as_bytes());
        one.into_iter().chain(texts).chain(strings.iter().map(String::as_bytes))
    }

    /// Whether the key has exactly these parts.
    pub(crate) fn is(&self, parts: &[impl AsRef<str>]) -> bool {
        self.parts().eq(parts.iter().map(|part| part.as_ref().as_bytes()))
    }
}

impl<'a> From<&'a str> for Key<'a> {
    #[inline]
    fn from(part: &'a str) -> Self {
        Self(KeyRepr::One(part.as_bytes()))
    }
}

impl<'a> From<&'a String> for Key<'a> {
    fn from(part: &'a String) -> Self {
        part.as_str().into()
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    #[inline]
    fn from(part: &'a [u8]) -> Self {
        Self(KeyRepr::One(part))
    }
}

/// A number needs no formatting: `limiter.check_now(&id.to_be_bytes())`.
impl<'a, const N: usize> From<&'a [u8; N]> for Key<'a> {
    #[inline]
    fn from(part: &'a [u8; N]) -> Self {
        Self(KeyRepr::One(part))
    }
}

impl<'a> From<&'a [String]> for Key<'a> {
    fn from(parts: &'a [String]) -> Self {
        Self(KeyRepr::Strings(parts))
    }
}

/// Compares the parts.
impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.parts().eq(other.parts())
    }
}

impl Eq for Key<'_> {}

/// Hashes the number of parts first, and each part after its length: no part can be mistaken for
/// two, or for data after the key.
impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_usize(self.parts().count());
        for part in self.parts() {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
    }
}

/// 128-bit hashes under keys drawn at process start: an attacker who cannot read memory can neither
/// predict nor collide them.
#[derive(Clone, Default, Debug)]
pub(crate) struct Fingerprints {
    high: RandomState,
    low: RandomState,
}

impl Fingerprints {
    pub(crate) fn of(&self, value: impl Hash) -> u128 {
        let high = u128::from(self.high.hash_one(&value));
        (high << 64) | u128::from(self.low.hash_one(&value))
    }

    /// A 64-bit hash, for choosing a shard.
    pub(crate) fn short(&self, value: impl Hash) -> u64 {
        self.low.hash_one(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_separate_and_one_part_equals_itself() {
        let fingerprints = Fingerprints::default();
        let of = |parts: &[&str]| fingerprints.of(Key::of(parts));
        assert_ne!(of(&["a_b", "c"]), of(&["a", "b_c"]));
        assert_ne!(of(&["ab"]), of(&["a", "b"]));
        assert_ne!(of(&["", "a"]), of(&["a", ""]));
        assert_ne!(of(&[]), of(&[""]));
        assert_eq!(of(&["alice"]), fingerprints.of(Key::from("alice")));
        assert_ne!(fingerprints.of("alice"), Fingerprints::default().of("alice"));
    }

    #[test]
    fn keys_are_bounded_in_length_and_number_of_parts() {
        let long = "k".repeat(Key::MAX_LEN);
        assert!(Key::from(&long).is_valid());
        assert!(!Key::of(&[&long, "x"]).is_valid());
        assert!(Key::of(&["x"; Key::MAX_PARTS]).is_valid());
        assert!(!Key::of(&["x"; Key::MAX_PARTS + 1]).is_valid());
    }
}
