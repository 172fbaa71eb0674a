//! A limit and a key that outlive the call.

use std::sync::Arc;

use tidegate_core::Cost;

use super::call::Charge;
use super::rule_limit::RuleLimit;
use crate::Key;

/// An owned limit and key, for background calls that outlive the caller's.
#[derive(Debug)]
pub(crate) struct OwnedCharge {
    limit: Arc<RuleLimit>,
    key: OwnedKey,
}

/// A key that outlives the call.
#[derive(Clone, Debug)]
pub(crate) enum OwnedKey {
    One(Box<[u8]>),
    Several(Box<[String]>),
}

impl OwnedKey {
    pub(crate) fn of(key: Key<'_>) -> Self {
        match key.only() {
            Some(part) => Self::One(part.into()),
            // Several parts are always made of text.
            None => Self::Several(
                key.parts().map(|part| String::from_utf8_lossy(part).into_owned()).collect(),
            ),
        }
    }

    pub(crate) fn key(&self) -> Key<'_> {
        match self {
            Self::One(part) => Key::from(&**part),
            Self::Several(parts) => Key::from(&**parts),
        }
    }
}

impl OwnedCharge {
    pub(crate) fn of(charge: &Charge<'_>) -> Self {
        Self { limit: charge.limit.clone(), key: OwnedKey::of(charge.key) }
    }

    pub(crate) fn limit(&self) -> &Arc<RuleLimit> {
        &self.limit
    }

    pub(crate) fn bytes(&self) -> usize {
        let key = match &self.key {
            OwnedKey::One(part) => part.len(),
            OwnedKey::Several(parts) => {
                parts.iter().map(|part| size_of::<String>() + part.capacity()).sum()
            }
        };
        size_of::<Self>() + key + self.limit.own_bytes()
    }

    /// A charge of `cost` to this limit and key.
    pub(crate) fn charge(&self, cost: Cost) -> Charge<'_> {
        Charge { limit: &self.limit, key: self.key.key(), cost, caller: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rule;

    #[test]
    fn an_owned_key_equals_the_original() {
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
            let owned = OwnedCharge::of(&Charge { limit, key, cost: Cost::ONE, caller: None });
            let copy = owned.charge(Cost::ONE).key;
            assert!(copy.parts().eq(key.parts()), "{key:?}");
            assert_eq!(copy.only().is_some(), key.only().is_some(), "{key:?}");
        }
    }
}
