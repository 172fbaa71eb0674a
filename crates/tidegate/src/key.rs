//! Who is limited.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// The subject of a limit: one or several parts, such as a tenant and a user.
///
/// The parts stay apart: `["a_b", "c"]` is another key than `["a", "b_c"]`. A key of one part equals
/// the part alone.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a>(Parts<'a>);

#[derive(Clone, Copy, Debug)]
enum Parts<'a> {
    One(&'a [u8]),
    Texts(&'a [&'a str]),
    Strings(&'a [String]),
}

impl<'a> Key<'a> {
    /// The longest key in bytes, all parts together.
    pub const MAX_LEN: usize = 1_024;
    /// The most parts.
    pub const MAX_PARTS: usize = 16;

    /// A key of several parts.
    pub fn of(parts: &'a [&'a str]) -> Self {
        Self(Parts::Texts(parts))
    }

    /// The part, if there is but one.
    #[inline]
    pub(crate) fn only(&self) -> Option<&'a [u8]> {
        match self.0 {
            Parts::One(part) => Some(part),
            Parts::Texts([part]) => Some(part.as_bytes()),
            Parts::Strings([part]) => Some(part.as_bytes()),
            Parts::Texts(_) | Parts::Strings(_) => None,
        }
    }

    /// Short enough to be served.
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
            Parts::One(part) => (Some(part), [].as_slice(), [].as_slice()),
            Parts::Texts(texts) => (None, texts, [].as_slice()),
            Parts::Strings(strings) => (None, [].as_slice(), strings),
        };
        let texts = texts.iter().map(|text| text.as_bytes());
        one.into_iter().chain(texts).chain(strings.iter().map(String::as_bytes))
    }

    /// Does it have just these parts?
    pub(crate) fn is(&self, parts: &[impl AsRef<str>]) -> bool {
        self.parts().eq(parts.iter().map(|part| part.as_ref().as_bytes()))
    }
}

impl<'a> From<&'a str> for Key<'a> {
    #[inline]
    fn from(part: &'a str) -> Self {
        Self(Parts::One(part.as_bytes()))
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
        Self(Parts::One(part))
    }
}

impl<'a> From<&'a [String]> for Key<'a> {
    fn from(parts: &'a [String]) -> Self {
        Self(Parts::Strings(parts))
    }
}

/// The number of parts goes in first and each part behind its length: no part can pass for two, nor
/// for what follows the key.
impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_usize(self.parts().count());
        for part in self.parts() {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
    }
}

/// 128 bits that stand for a value, under keys drawn when the process started: an attacker who
/// cannot read memory can neither predict nor collide them.
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

    /// Half of the bits, where no more are needed than to spread values.
    pub(crate) fn short(&self, value: impl Hash) -> u64 {
        self.low.hash_one(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_apart_and_one_part_is_itself() {
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
    fn keys_have_a_length_and_a_number_of_parts() {
        let long = "k".repeat(Key::MAX_LEN);
        assert!(Key::from(&long).is_valid());
        assert!(!Key::of(&[&long, "x"]).is_valid());
        assert!(Key::of(&["x"; Key::MAX_PARTS]).is_valid());
        assert!(!Key::of(&["x"; Key::MAX_PARTS + 1]).is_valid());
    }
}
