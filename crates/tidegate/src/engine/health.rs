//! Health of an engine: what it reports about itself, its shards and its circuits.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::Micros;

use super::memory_use::MemoryUse;

/// A set of shard numbers. Shards beyond [`MAX`](Self::MAX) share numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shards(u64);

impl Shards {
    /// Number of distinct shards.
    pub const MAX: usize = 64;

    /// The only shard of a store that fails as a whole.
    pub const ONE: Self = Self(1);

    /// No shard, for a call that is never sent.
    pub const NONE: Self = Self(0);

    pub(crate) const ALL: Self = Self(u64::MAX);

    /// With shard `number` added.
    #[must_use]
    pub const fn and(self, number: usize) -> Self {
        Self(self.0 | 1 << (number % Self::MAX))
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// One bit per shard number.
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// The shard numbers, each below [`MAX`](Self::MAX).
    pub fn numbers(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let number = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            Some(number)
        })
    }
}

/// State of the circuit breaker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Circuit {
    /// Calls are sent to the store.
    #[default]
    Closed,
    /// No calls are sent. A probe is in flight, to find out whether the store has recovered.
    HalfOpen,
    /// No calls are sent.
    Open,
}

impl Circuit {
    /// The name in status reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

/// Status of an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Health {
    /// Whether the store decides calls. A store of many shards is up if most of them decide.
    pub up: bool,
    /// Why the store, or one of its shards, does not decide calls, and the remedy.
    pub error: Option<Arc<str>>,
    /// Since when, by the wall clock; `None` without an error, and without a breaker.
    pub since: Option<Micros>,
    /// The number of shards that fail independently of each other, as far as it is known.
    pub shards: u32,
    /// Keys with state, where that number is known.
    pub tracked_keys: Option<u64>,
    /// Bytes used in this process.
    pub memory_bytes: u64,
    /// The part of them that a memory engine uses, by kind.
    pub memory: MemoryUse,
    /// A misconfiguration of a store that still replies, and the remedy.
    pub warning: Option<Arc<str>>,
    /// Permits that this process has borrowed and not spent, by rule.
    pub lent: BTreeMap<String, u64>,
    /// How often the store may have lost its counts: another server took over, or the store
    /// restarted empty.
    pub resets: u64,
    /// What caused the last of these resets, for a log.
    pub last_reset: Option<Arc<str>>,
    /// State of the worst shard; `None` without a breaker.
    pub circuit: Option<Circuit>,
}

impl Health {
    /// A working engine with `tracked_keys` in `memory_bytes`.
    pub fn up(tracked_keys: Option<u64>, memory_bytes: u64) -> Self {
        Self {
            up: true,
            error: None,
            since: None,
            shards: 1,
            tracked_keys,
            memory_bytes,
            memory: MemoryUse::default(),
            warning: None,
            lent: BTreeMap::new(),
            resets: 0,
            last_reset: None,
            circuit: None,
        }
    }
}
