//! Phases of a call that reserves an estimate and later commits its usage: `tidegate.reserve` and
//! `tidegate.commit` in a descriptor, whose value is the request id. They are not part of the key
//! that is counted.

use std::borrow::Cow;

use sha2::{Digest, Sha256};
use tidegate::{HoldId, IdempotencyKey, Key};

use super::error::EnvoyError;
use super::proto::Entry;

/// How many holds with the same descriptors and request id can be found again at a time. A hold
/// beyond it ends by `on_expiry`, and its commit is a record.
pub(crate) const MAX_SAME_NAME: u8 = 4;

const RESERVE: &str = "tidegate.reserve";
const COMMIT: &str = "tidegate.commit";

/// The phase of a descriptor, with its request id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReservePhase<'a> {
    /// It names none.
    None,
    Reserve(&'a str),
    Commit(&'a str),
}

impl<'a> ReservePhase<'a> {
    /// The phase of a descriptor, and its other entries.
    pub(crate) fn of(entries: &'a [Entry]) -> Result<(Self, Cow<'a, [Entry]>), EnvoyError> {
        let is_phase = |entry: &Entry| entry.key == RESERVE || entry.key == COMMIT;
        let Some(entry) = entries.iter().find(|entry| is_phase(entry)) else {
            return Ok((Self::None, Cow::Borrowed(entries)));
        };
        let invalid = |detail: String| EnvoyError::Invalid(format!("{}: {detail}", entry.key));
        let id = IdempotencyKey::new(&entry.value);
        let id = id.map_err(|refusal| invalid(refusal.to_string()))?.as_str();
        let others: Vec<Entry> = entries.iter().filter(|entry| !is_phase(entry)).cloned().collect();
        if others.len() + 1 < entries.len() {
            return Err(invalid("the descriptor has another such entry; send one".into()));
        }
        if others.is_empty() {
            return Err(invalid("add the entries of the limit to the descriptor".into()));
        }
        let phase = if entry.key == RESERVE { Self::Reserve(id) } else { Self::Commit(id) };
        Ok((phase, Cow::Owned(others)))
    }

    /// The request id; empty without a phase.
    pub(crate) fn request_id(self) -> &'a str {
        match self {
            Self::None => "",
            Self::Reserve(id) | Self::Commit(id) => id,
        }
    }
}

/// A held limit: the name of its rule, its key, and the request id.
pub(crate) type HeldName<'a> = (&'a str, Key<'a>, &'a str);

/// The id of the `nth` hold of these limits and request ids. Every server derives the same.
pub(crate) fn hold_id<'a>(held: impl Iterator<Item = HeldName<'a>>, nth: u8) -> HoldId {
    let mut hash = Sha256::new_with_prefix([nth]);
    let mut add = |text: &[u8]| {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    };
    for (rule, key, id) in held {
        add(rule.as_bytes());
        // The number of parts as a length without a text.
        add(&vec![0; key.parts().count()]);
        key.parts().for_each(&mut add);
        add(id.as_bytes());
    }
    let digest = hash.finalize();
    HoldId::from(u128::from_be_bytes(digest.first_chunk().copied().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(entries: &[(&str, &str)]) -> Vec<Entry> {
        let entry =
            |(key, value): &(&str, &str)| Entry { key: key.to_string(), value: value.to_string() };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn a_phase_is_one_entry_next_to_others() {
        let plain = entries(&[("model", "x"), ("tidegate.other", "y")]);
        assert_eq!(
            ReservePhase::of(&plain).unwrap(),
            (ReservePhase::None, Cow::Borrowed(&plain[..]))
        );
        let model = entries(&[("model", "x"), ("user", "ann")]);
        for position in 0..3 {
            let mut all = model.clone();
            all.insert(position, entries(&[(RESERVE, "r-1")]).remove(0));
            let (phase, others) = ReservePhase::of(&all).unwrap();
            assert_eq!((phase, &*others), (ReservePhase::Reserve("r-1"), &model[..]));
        }
        let long = "x".repeat(65);
        for (bad, part) in [
            (vec![(COMMIT, "r-1")], "add the entries"),
            (vec![("model", "x"), (COMMIT, "")], "an id of 0 bytes"),
            (vec![("model", "x"), (COMMIT, &*long)], "an id of 65 bytes"),
            (vec![("model", "x"), (COMMIT, "r-1"), (RESERVE, "r-1")], "another such entry"),
        ] {
            let error = ReservePhase::of(&entries(&bad)).unwrap_err().to_string();
            assert!(error.starts_with(COMMIT) && error.contains(part), "{error}");
        }
    }

    #[test]
    fn an_id_stands_for_rules_keys_and_request_ids() {
        let ab = ["a", "b"];
        let names: [&[HeldName<'_>]; 6] = [
            &[("r", Key::from("ab"), "1")],
            &[("r", Key::of(&ab), "1")],
            &[("ra", Key::from("b"), "1")],
            &[("r", Key::from("ab"), "12")],
            &[("r", Key::from("ab"), "1"), ("r", Key::from("ab"), "1")],
            &[],
        ];
        let ids = names.iter().flat_map(|held| [0, 1].map(|n| hold_id(held.iter().copied(), n)));
        let ids: Vec<HoldId> = ids.collect();
        for (i, id) in ids.iter().enumerate() {
            assert!(!ids[..i].contains(id), "{i}");
        }
        assert_eq!(ids[0], hold_id(names[0].iter().copied(), 0));
    }
}
