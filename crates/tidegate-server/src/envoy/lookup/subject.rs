//! What the entries of a request are counted by.

use smallvec::SmallVec;
use tidegate::Key;
use tidegate_tower::extract::digest;

/// What the entries of a request are counted by: the domain, then the key and the value of each.
///
/// More of them than a [`Key`] has room for are told by their hash instead. They are not refused:
/// Envoy lets pass what it gets no answer to, and whoever sends long headers would be free of
/// limits.
#[derive(Clone, Debug)]
pub struct Subject<'a>(Parts<'a>);

#[derive(Clone, Debug)]
enum Parts<'a> {
    Texts(SmallVec<[&'a str; FEW]>),
    /// One part: no domain with entries has so few.
    Digest(String),
}

/// A domain and three entries need no room of their own.
const FEW: usize = 7;

impl<'a> Subject<'a> {
    /// A domain and its entries.
    pub fn new(domain: &'a str, entries: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut texts: SmallVec<[&str; FEW]> = SmallVec::new();
        texts.push(domain);
        entries.for_each(|(key, value)| texts.extend([key, value]));
        let len: usize = texts.iter().map(|text| text.len()).sum();
        if texts.len() <= Key::MAX_PARTS && len <= Key::MAX_LEN {
            return Self(Parts::Texts(texts));
        }
        // Each behind its length, so that none can pass for two.
        let whole: String = texts.iter().map(|text| format!("{}:{text}", text.len())).collect();
        Self(Parts::Digest(digest(&whole)))
    }

    /// The key to count by.
    pub fn key(&self) -> Key<'_> {
        match &self.0 {
            Parts::Texts(texts) => Key::of(texts),
            Parts::Digest(digest) => Key::from(digest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(domain: &str, entries: &[(&str, &str)]) -> Vec<Vec<u8>> {
        let subject = Subject::new(domain, entries.iter().copied());
        subject.key().parts().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn a_subject_is_the_domain_and_all_entries() {
        assert_eq!(parts("d", &[("k", "v"), ("k2", "")]), [&b"d"[..], b"k", b"v", b"k2", b""]);
        assert_ne!(parts("d", &[("k", "v_k2")]), parts("d", &[("k_v", "k2")]));
    }

    #[test]
    fn what_is_too_long_for_a_key_still_has_a_count_of_its_own() {
        let long = "x".repeat(Key::MAX_LEN);
        let longer = format!("{long}y");
        let many = [("k", "v"); 8];
        let fits = "x".repeat(Key::MAX_LEN - 2);
        assert_eq!(parts("d", &[("k", &fits)]).len(), 3);
        let subjects = [
            parts("d", &[("k", &long)]),
            parts("d", &[("k", &longer)]),
            parts("d", &[("k", &long), ("y", "")]),
            parts("d", &[(&long, "k")]),
            parts("d", &many),
            parts("d", &[("k", "v"); 9]),
        ];
        for (i, subject) in subjects.iter().enumerate() {
            assert_eq!(subject.len(), 1);
            assert!(subjects[..i].iter().all(|other| other != subject), "{i}");
        }
        assert_eq!(parts("d", &many), parts("d", &many));
    }
}
