//! Whom something is lent for.

use std::sync::Arc;

use tidegate_core::Cost;

use crate::{Charge, Key, RuleLimit};

/// A limit and a key that stay, for questions that are asked when the caller has gone on.
pub(super) struct Subject {
    limit: Arc<RuleLimit>,
    key: OwnedKey,
}

enum OwnedKey {
    One(Box<[u8]>),
    Several(Box<[String]>),
}

impl Subject {
    pub(super) fn of(charge: &Charge<'_>) -> Self {
        let key = match charge.key.only() {
            Some(part) => OwnedKey::One(part.into()),
            // Several parts are always made of text.
            None => OwnedKey::Several(
                charge.key.parts().map(|part| String::from_utf8_lossy(part).into_owned()).collect(),
            ),
        };
        Self { limit: charge.limit.clone(), key }
    }

    pub(super) fn limit(&self) -> &Arc<RuleLimit> {
        &self.limit
    }

    pub(super) fn bytes(&self) -> usize {
        let key = match &self.key {
            OwnedKey::One(part) => part.len(),
            OwnedKey::Several(parts) => {
                parts.iter().map(|part| size_of::<String>() + part.capacity()).sum()
            }
        };
        size_of::<Self>() + key + self.limit.own_bytes()
    }

    /// A charge of `cost` to it.
    pub(super) fn charge(&self, cost: Cost) -> Charge<'_> {
        let key = match &self.key {
            OwnedKey::One(part) => Key::from(&**part),
            OwnedKey::Several(parts) => Key::from(&**parts),
        };
        Charge { limit: &self.limit, key, cost, who: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rule;

    #[test]
    fn a_key_that_is_kept_is_the_same_key() {
        let rule = Rule::new("r", ["10/s".parse().unwrap()]).unwrap();
        let limit = &rule.limits()[0];
        let binary: &[u8] = &[0, 255, 7];
        let several = ["a".to_string(), String::new(), "ü".to_string()];
        let keys = [
            Key::from(binary),
            Key::from(""),
            Key::of(&["a_b", "c"]),
            Key::of(&[]),
            Key::of(&["one"]),
            Key::from(&several[..]),
        ];
        for key in keys {
            let subject = Subject::of(&Charge { limit, key, cost: Cost::ONE, who: None });
            let kept = subject.charge(Cost::ONE).key;
            assert!(kept.parts().eq(key.parts()), "{key:?}");
            assert_eq!(kept.only().is_some(), key.only().is_some(), "{key:?}");
        }
    }
}
