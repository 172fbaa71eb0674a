//! Settings of a memory engine.

use std::sync::Arc;

use super::budget::Budgets;
use super::limit_registry::LimitRegistry;
use super::shard::Shard;
use super::state::{CachePadded, Memory, OverflowTables};
use super::table::Table;
use crate::Clock;
use crate::key::Fingerprints;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize};

/// Settings for a [`Memory`].
pub struct MemoryBuilder {
    cap_bytes: usize,
    /// `None` for the system clock.
    clock: Option<Arc<dyn Clock>>,
}

impl Memory {
    /// Settings for an engine.
    pub fn builder() -> MemoryBuilder {
        MemoryBuilder { cap_bytes: Self::DEFAULT_CAP_BYTES, clock: None }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::builder().build()
    }
}

impl MemoryBuilder {
    /// Bytes that the engine may use, within about 10 %; at least 64 KiB. Each [kind of
    /// memory](crate::MemoryKind) has a guaranteed part, and takes more while there is some.
    #[must_use]
    pub fn cap_bytes(mut self, cap_bytes: usize) -> Self {
        self.cap_bytes = cap_bytes.max(64 << 10);
        self
    }

    /// The clock of the engine; the system clock by default.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// The engine with these settings.
    pub fn build(self) -> Memory {
        let budgets = Budgets::new(self.cap_bytes);
        // Small caps get few shards, so that the spare capacity of all shards stays small too.
        let shards = (self.cap_bytes >> 16).clamp(1, 256);
        let memory = Memory {
            shards: (0..shards).map(|_| CachePadded(Mutex::new(Shard::new(&budgets)))).collect(),
            holds: (0..shards).map(|_| Mutex::new(Table::new(&budgets.holds))).collect(),
            overflow: Mutex::new(OverflowTables::new(&budgets)),
            overflow_cells: AtomicUsize::new(0),
            adhoc_overflow_cells: AtomicUsize::new(0),
            fingerprints: Fingerprints::default(),
            registry: LimitRegistry::new(&budgets.adhoc),
            budgets,
            reclaim_next: AtomicUsize::new(0),
            swept_thoroughly: AtomicU64::new(0),
            freed_limits: AtomicU64::new(0),
            evicted_shard: AtomicUsize::new(0),
            id_retention: AtomicU64::new(0),
            clock: self.clock,
        };
        // The first reading initializes some clocks, which is slow. It must not happen under a
        // lock.
        memory.now();
        memory
    }
}
