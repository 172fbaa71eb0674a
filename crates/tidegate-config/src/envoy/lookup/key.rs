//! The key that a descriptor is counted under.

use sha2::{Digest, Sha256};
use smallvec::SmallVec;
use tidegate::Key;

/// The key of a descriptor: the domain, then the key and the value of each entry.
///
/// If they do not fit into a [`Key`], their hash is used. Refusing them would be unsafe: Envoy
/// allows requests that fail to be checked, so long headers would bypass the limits.
#[derive(Clone, Debug)]
pub struct DescriptorKey<'a>(KeySegments<'a>);

#[derive(Clone, Debug)]
enum KeySegments<'a> {
    Texts(SmallVec<[&'a str; INLINE_TEXTS]>),
    /// A key of one part; [`Texts`](Self::Texts) with an entry has at least three.
    Digest(String),
}

/// A domain and three entries fit without an allocation.
const INLINE_TEXTS: usize = 7;

impl<'a> DescriptorKey<'a> {
    /// The key of a domain and the keys and values of the entries.
    pub fn new(domain: &'a str, entries: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut texts: SmallVec<[&str; INLINE_TEXTS]> = SmallVec::new();
        texts.push(domain);
        entries.for_each(|(key, value)| texts.extend([key, value]));
        let len: usize = texts.iter().map(|text| text.len()).sum();
        if texts.len() <= Key::MAX_PARTS && len <= Key::MAX_LEN {
            return Self(KeySegments::Texts(texts));
        }
        // Length-prefixed, so that different entries never have the same text.
        let whole: String = texts.iter().map(|text| format!("{}:{text}", text.len())).collect();
        Self(KeySegments::Digest(format!("{:x}", Sha256::digest(&whole))))
    }

    /// The key to count by.
    pub fn key(&self) -> Key<'_> {
        match &self.0 {
            KeySegments::Texts(texts) => Key::of(texts),
            KeySegments::Digest(digest) => Key::from(digest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(domain: &str, entries: &[(&str, &str)]) -> Vec<Vec<u8>> {
        let key = DescriptorKey::new(domain, entries.iter().copied());
        key.key().parts().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn a_key_consists_of_the_domain_and_all_entries() {
        assert_eq!(parts("d", &[("k", "v"), ("k2", "")]), [&b"d"[..], b"k", b"v", b"k2", b""]);
        assert_ne!(parts("d", &[("k", "v_k2")]), parts("d", &[("k_v", "k2")]));
    }

    #[test]
    fn entries_that_do_not_fit_into_a_key_are_still_counted_separately() {
        let long = "x".repeat(Key::MAX_LEN);
        let longer = format!("{long}y");
        let many = [("k", "v"); 8];
        let fits = "x".repeat(Key::MAX_LEN - 2);
        assert_eq!(parts("d", &[("k", &fits)]).len(), 3);
        let keys = [
            parts("d", &[("k", &long)]),
            parts("d", &[("k", &longer)]),
            parts("d", &[("k", &long), ("y", "")]),
            parts("d", &[(&long, "k")]),
            parts("d", &many),
            parts("d", &[("k", "v"); 9]),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(key.len(), 1);
            assert!(keys[..i].iter().all(|other| other != key), "{i}");
        }
        assert_eq!(parts("d", &many), parts("d", &many));
    }
}
