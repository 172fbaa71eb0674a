//! Memory of an engine, by kind.

use tidegate_core::Micros;

use super::bounds;

/// What memory is used for. Each kind has a budget of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryKind {
    /// State of the keys of rules.
    State,
    /// Overflow buckets, which the new keys of a rule share when there is no room for their state.
    Overflow,
    /// Limits that come with calls, and the state of their keys, overflow buckets included.
    Adhoc,
    /// Results of calls with an id.
    Ids,
    /// Reservations and concurrency slots.
    Reservations,
}

impl MemoryKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 5] =
        [Self::State, Self::Overflow, Self::Adhoc, Self::Ids, Self::Reservations];

    /// The name in status reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Overflow => "overflow",
            Self::Adhoc => "adhoc",
            Self::Ids => "ids",
            Self::Reservations => "reservations",
        }
    }
}

/// The memory of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KindUse {
    /// Bytes used.
    pub bytes: u64,
    /// Calls that found no room: their key shares an overflow bucket, an older id or an expired
    /// reservation was forgotten early, or the call was refused.
    pub overflows: u64,
    /// Whether there was such a call in the last minute.
    pub is_full: bool,
}

/// Memory of an engine, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryUse {
    kinds: [KindUse; MemoryKind::ALL.len()],
    /// How long ids are kept: [`IdempotencyKey::TTL`](crate::IdempotencyKey::TTL), or less while
    /// there is no room for more.
    pub id_retention: Micros,
}

impl Default for MemoryUse {
    fn default() -> Self {
        Self { kinds: Default::default(), id_retention: bounds::ID_TTL }
    }
}

impl MemoryUse {
    /// The memory of this kind.
    pub const fn of(&self, kind: MemoryKind) -> KindUse {
        self.kinds[kind as usize]
    }

    /// Adds the memory of this kind.
    pub fn add(&mut self, kind: MemoryKind, more: KindUse) {
        let sum = &mut self.kinds[kind as usize];
        sum.bytes += more.bytes;
        sum.overflows += more.overflows;
        sum.is_full |= more.is_full;
    }

    /// Adds the memory of another engine.
    pub fn add_all(&mut self, other: &Self) {
        for kind in MemoryKind::ALL {
            self.add(kind, other.of(kind));
        }
        self.id_retention = self.id_retention.min(other.id_retention);
    }

    /// The kinds, each with its memory.
    pub fn kinds(&self) -> impl Iterator<Item = (MemoryKind, KindUse)> {
        MemoryKind::ALL.into_iter().zip(self.kinds)
    }

    /// Bytes of all kinds.
    pub fn bytes(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.bytes).sum()
    }
}
