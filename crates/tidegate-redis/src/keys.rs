//! Where things lie in Redis, and under which names.
//!
//! A subject never appears in a key: its place is taken by 128 bits of HMAC-SHA-256 under a secret.
//! So nobody can choose a slot or break a hash tag, and no personal data lies in Redis.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use tidegate::{HoldId, Key, RuleLimit};

/// What keys the hash of subjects.
#[derive(Clone)]
pub(crate) struct Secret(Arc<[u8]>);

impl Secret {
    pub(crate) fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// 128 bits that stand for `parts`, each behind its length.
    pub(crate) fn tag<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> Tag {
        // HMAC takes keys of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return Tag(0) };
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        let digest = mac.finalize().into_bytes();
        let half = digest.first_chunk::<16>().copied().unwrap_or_default();
        Tag(u128::from_be_bytes(half))
    }
}

/// Never shown.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What stands for a subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag(pub(crate) u128);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The names of everything, in one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    namespace: String,
}

impl Names {
    pub(crate) fn new(namespace: &str) -> Self {
        Self { namespace: namespace.into() }
    }

    pub(crate) fn secret(&self) -> String {
        format!("{}:secret", self.namespace)
    }

    pub(crate) fn state(&self, tag: Tag, state: &str) -> String {
        format!("{}:{{{tag}}}:{state}", self.namespace)
    }

    /// The record of a hold; its id says where it lies.
    pub(crate) fn hold(&self, id: HoldId) -> String {
        format!("{}:{{{}}}:hold:{:032x}", self.namespace, Tag(id.place()), id.get())
    }

    pub(crate) fn once(&self, tag: Tag, name: Tag) -> String {
        format!("{}:{{{tag}}}:once:{name}", self.namespace)
    }
}

pub(crate) fn subject(secret: &Secret, key: Key<'_>) -> Tag {
    secret.tag(key.parts())
}

/// What a hold has to be found again by, for whoever settles it: limits, places and costs.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) tag: Tag,
    pub(crate) rule: String,
    pub(crate) policy: String,
    pub(crate) state: String,
    pub(crate) limit: String,
    pub(crate) cost: u64,
}

impl Found {
    pub(crate) fn new(limit: &RuleLimit, tag: Tag, cost: u64) -> Self {
        Self {
            tag,
            rule: limit.rule().into(),
            policy: limit.policy().into(),
            state: limit.state().into(),
            limit: limit.limit().to_string(),
            cost,
        }
    }

    /// One line for each; no part of it can contain a tab or a line end.
    pub(crate) fn write(all: &[Self]) -> String {
        let line = |f: &Self| {
            let Self { tag, rule, policy, state, limit, cost } = f;
            format!("{tag}\t{rule}\t{policy}\t{state}\t{limit}\t{cost}\n")
        };
        all.iter().map(line).collect()
    }

    /// None if it is not what [`write`](Self::write) wrote; a hold is of something.
    pub(crate) fn read(text: &str) -> Option<Vec<Self>> {
        let found: Option<Vec<Self>> = text.lines().map(Self::read_line).collect();
        found.filter(|found| !found.is_empty())
    }

    fn read_line(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        Some(Self {
            tag: Tag(u128::from_str_radix(fields.next()?, 16).ok()?),
            rule: fields.next()?.into(),
            policy: fields.next()?.into(),
            state: fields.next()?.into(),
            limit: fields.next()?.into(),
            cost: fields.next()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_written_and_a_hold_is_of_something() {
        let rule = tidegate::Rule::new("login", ["5/m".parse().unwrap()]).unwrap();
        let written = Found::write(&[Found::new(&rule.limits()[0], Tag(7), 3)]);
        let read = Found::read(&written).unwrap();
        assert_eq!((read.len(), read[0].tag, read[0].cost), (1, Tag(7), 3));
        assert_eq!((&*read[0].state, &*read[0].limit), ("login:token-bucket1", "5/m"));
        for bad in ["", "\n", "07\tlogin", &written.replace('\t', " ")] {
            assert!(Found::read(bad).is_none(), "{bad:?}");
        }
    }
}
