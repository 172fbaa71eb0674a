//! Key names in Redis, and the hash that stands for a subject in them.
//!
//! A subject never appears in a key, only 128 bits of its HMAC-SHA-256 under a secret. So no client
//! can choose a slot or break a hash tag, and Redis stores no personal data.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use tidegate::{HoldId, Key};

/// The HMAC secret of a namespace.
#[derive(Clone)]
pub(crate) struct HashSecret(Arc<PreparedSecret>);

/// The HMAC that has read the secret and nothing else: reading it takes as long as a short subject.
struct PreparedSecret {
    /// HMAC accepts keys of any length, so there is always one.
    mac: Option<Hmac<Sha256>>,
    is_empty: bool,
}

impl HashSecret {
    pub(crate) fn new(bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        let mac = Hmac::new_from_slice(bytes).ok();
        Self(Arc::new(PreparedSecret { mac, is_empty: bytes.is_empty() }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty
    }

    /// 128 bits of the HMAC of `parts`, each after its length.
    pub(crate) fn hash<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> SubjectHash {
        let Some(mut mac) = self.0.mac.clone() else { return SubjectHash(0) };
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        let digest = mac.finalize().into_bytes();
        let half = digest.first_chunk::<16>().copied().unwrap_or_default();
        SubjectHash(u128::from_be_bytes(half))
    }

    pub(crate) fn subject(&self, key: Key<'_>) -> SubjectHash {
        self.hash(key.parts())
    }
}

/// Prints no bytes of the secret.
impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret(..)")
    }
}

/// Stands for a subject in key names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SubjectHash(pub(crate) u128);

impl fmt::Display for SubjectHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The key names of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct KeyNames {
    namespace: String,
    hasher: RandomState,
}

impl KeyNames {
    pub(crate) fn new(namespace: &str) -> Self {
        Self { namespace: namespace.into(), hasher: RandomState::new() }
    }

    pub(crate) fn secret(&self) -> String {
        format!("{}:secret", self.namespace)
    }

    /// A key of the run-time rules and overrides, all in one slot.
    pub(crate) fn runtime(&self, name: &str) -> String {
        format!("{}:{{runtime}}:{name}", self.namespace)
    }

    pub(crate) fn state(&self, subject: SubjectHash, state: &str) -> String {
        format!("{}:{{{subject}}}:{state}", self.namespace)
    }

    /// The hash of a key in this process.
    pub(crate) fn hash(&self, key: &str) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The record of a hold; the id contains the subject.
    pub(crate) fn hold(&self, id: HoldId) -> String {
        format!("{}:{{{}}}:hold:{:032x}", self.namespace, SubjectHash(id.location()), id.get())
    }

    /// The stored result of a call with an idempotency key.
    pub(crate) fn once(&self, subject: SubjectHash, name: SubjectHash) -> String {
        format!("{}:{{{subject}}}:once:{name}", self.namespace)
    }
}
