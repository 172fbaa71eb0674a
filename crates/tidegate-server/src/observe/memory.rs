//! Memory of the engine by kind: its status, and a log line when it is full and when that is over.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::{IdempotencyKey, MemoryKind, MemoryUse};
use tracing::{info, warn};

use crate::shutdown::Shutdown;

/// Memory of the in-process state, also of the fallback.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Debug)]
pub(crate) struct MemoryState {
    /// Bytes used, by kind: `state`, `overflow`, `adhoc`, `ids`, `reservations`.
    pub bytes: BTreeMap<String, u64>,
    /// Kinds that were full within the last minute, and what that means for calls.
    pub full: BTreeMap<String, String>,
    /// How long results of calls with an id are kept, in seconds; less than 3600 if they are full.
    pub id_retention_s: u64,
}

impl MemoryState {
    /// Why the server is degraded because of its memory.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = String> {
        self.full.iter().map(|(kind, effect)| format!("memory full ({kind}): {effect}"))
    }
}

impl From<MemoryUse> for MemoryState {
    fn from(memory: MemoryUse) -> Self {
        let bytes = memory.kinds().map(|(kind, of)| (kind.name().to_owned(), of.bytes));
        let full = memory.kinds().filter(|(_, of)| of.is_full);
        let full = full.map(|(kind, _)| (kind.name().to_owned(), effect(kind, &memory)));
        Self {
            bytes: bytes.collect(),
            full: full.collect(),
            id_retention_s: memory.id_retention.get() / 1_000_000,
        }
    }
}

/// What it means that a kind is full.
fn effect(kind: MemoryKind, memory: &MemoryUse) -> String {
    match kind {
        MemoryKind::State => "new keys share overflow buckets of their rule".into(),
        MemoryKind::Overflow => "calls for new keys of some rules fail".into(),
        MemoryKind::Adhoc => {
            "new keys of ad-hoc limits share overflow buckets, new ad-hoc limits may fail".into()
        }
        MemoryKind::Ids => {
            let (kept, full) = (memory.id_retention, IdempotencyKey::TTL);
            format!("ids are kept for {kept} instead of {full}, calls with a new id may fail")
        }
        MemoryKind::Reservations => {
            "expired reservations are forgotten early, new ones may fail".into()
        }
    }
}

/// What has been logged about the memory.
#[derive(Default)]
pub(crate) struct MemoryMonitor {
    full: Vec<MemoryKind>,
}

impl MemoryMonitor {
    const INTERVAL: Duration = Duration::from_secs(1);

    /// Logs when a kind becomes full and when that is over, until the server drains.
    pub(crate) async fn run(mut self, memory: impl Fn() -> MemoryUse, mut drain: Shutdown) {
        let mut ticks = tokio::time::interval(Self::INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = drain.begun() => return,
            }
            let memory = memory();
            for change in self.changes(&memory) {
                let (kind, of) = (change.name(), memory.of(change));
                let (bytes, overflows) = (of.bytes, of.overflows);
                match of.is_full {
                    true => {
                        let effect = effect(change, &memory);
                        warn!(kind, bytes, effect, "memory full; raise it with --memory");
                    }
                    false => info!(kind, bytes, overflows, "memory no longer full"),
                }
            }
        }
    }

    /// The kinds that have become full, or no longer are.
    fn changes(&mut self, memory: &MemoryUse) -> Vec<MemoryKind> {
        let full: Vec<MemoryKind> =
            memory.kinds().filter(|(_, of)| of.is_full).map(|(kind, _)| kind).collect();
        let before = std::mem::replace(&mut self.full, full);
        let changed = |kind: &MemoryKind| before.contains(kind) != self.full.contains(kind);
        MemoryKind::ALL.into_iter().filter(changed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::{KindUse, Micros};

    fn full(kinds: &[MemoryKind]) -> MemoryUse {
        let mut memory = MemoryUse::default();
        for kind in kinds {
            memory.add(*kind, KindUse { bytes: 10, overflows: 1, is_full: true });
        }
        memory
    }

    #[test]
    fn a_kind_is_reported_when_it_becomes_full_and_when_it_no_longer_is() {
        use MemoryKind::{Ids, State};
        let mut monitor = MemoryMonitor::default();
        for (kinds, expected) in [
            (&[][..], &[][..]),
            (&[Ids], &[Ids]),
            (&[Ids], &[]),
            (&[State, Ids], &[State]),
            (&[State], &[Ids]),
            (&[], &[State]),
            (&[], &[]),
        ] {
            assert_eq!(monitor.changes(&full(kinds)), expected);
        }
    }

    #[test]
    fn the_status_names_full_kinds_and_the_retention_of_ids() {
        let mut memory = full(&[MemoryKind::Ids]);
        memory.id_retention = Micros::from_secs(600);
        let state = MemoryState::from(memory);
        assert_eq!((state.bytes["ids"], state.bytes["state"], state.id_retention_s), (10, 0, 600));
        let reasons: Vec<String> = state.reasons().collect();
        let expected = "memory full (ids): ids are kept for 10m instead of 1h, calls with a new id \
                        may fail";
        assert_eq!(reasons, [expected]);
        assert_eq!(MemoryState::from(MemoryUse::default()).reasons().count(), 0);
    }
}
