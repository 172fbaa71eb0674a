//! Probes: checks of the breaker itself, on keys of its own, by which it notices that the store
//! decides again. A probe charges, since a store may reply and yet refuse every write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Cost, Limit, Micros};

use super::circuits::Circuits;
use crate::{Call, Charge, Engine, Op, Rule, RuleLimit, Shards};

/// The store, its circuits, and the limit of the probes.
pub(crate) struct GuardedStore<E> {
    pub(crate) engine: E,
    pub(crate) circuits: Circuits,
    limit: Arc<RuleLimit>,
    /// Number of probes that succeeded while all circuits were closed.
    succeeded: AtomicU64,
}

impl<E: Engine> GuardedStore<E> {
    /// The rule of the probes. No rule of a policy can have this name.
    const RULE: &str = ".probe";
    /// Far above what a fleet sends: a denial would write nothing.
    const LIMIT_PER_SECOND: u64 = 1_000_000;
    /// Keys that are tried to find one of a shard. With 63 shards of equal size, one in e^63 shards
    /// is not found; a shard of a thousandth of the keys is found 98 times of 100.
    const MAX_KEYS: u64 = 4_096;

    pub(crate) fn new(engine: E) -> Self {
        let limit = Limit::per_second(Self::LIMIT_PER_SECOND).build().expect("a valid limit");
        let rule = Rule::named(Self::RULE, Self::RULE.into(), limit);
        Self {
            circuits: Circuits::new(engine.clock()),
            engine,
            limit: Arc::clone(&rule.limits()[0]),
            succeeded: AtomicU64::new(0),
        }
    }

    /// The charge of a probe.
    pub(crate) fn charge<'a>(&'a self, key: &'a str) -> Charge<'a> {
        Charge { limit: &self.limit, key: key.into(), cost: Cost::ONE, caller: None }
    }

    /// The key of a probe that may go to any shard. Another one after each success, and the same
    /// one after a failure, since five failures of one shard open its circuit.
    pub(crate) fn any_key(&self) -> String {
        self.succeeded.load(Ordering::Relaxed).to_string()
    }

    pub(crate) fn count_success(&self) {
        self.succeeded.fetch_add(1, Ordering::Relaxed);
    }

    /// A key that belongs to `shard` alone; None if the shard has no keys, or hardly any.
    fn key_of(&self, shard: usize) -> Option<String> {
        let only = Shards::NONE.and(shard);
        (0..Self::MAX_KEYS).map(|number| number.to_string()).find(|key| {
            let charges = [self.charge(key)];
            self.engine.shards(&probe_call(&charges)) == only
        })
    }

    /// The probes of these shards that must be sent now.
    pub(crate) fn due_probes(self: &Arc<Self>, shards: Shards) -> Vec<PendingProbe<E>> {
        if self.circuits.not_closed(shards) == Shards::NONE {
            return Vec::new();
        }
        let (due, admitted) = self.circuits.due_probes(shards, || self.engine.health().up);
        let probe =
            |shard| PendingProbe { store: Arc::clone(self), shard, admitted, is_recorded: false };
        due.numbers().map(probe).collect()
    }
}

/// A probe that was admitted. Dropped before its end, it leaves its place to the next one.
pub(crate) struct PendingProbe<E: Engine> {
    store: Arc<GuardedStore<E>>,
    shard: usize,
    /// When it was admitted, which identifies it.
    admitted: Micros,
    is_recorded: bool,
}

impl<E: Engine> PendingProbe<E> {
    pub(crate) async fn run(mut self) {
        let Self { store, shard, admitted, .. } = &self;
        let Some(key) = store.key_of(*shard) else { return store.circuits.forget(*shard) };
        let charges = [store.charge(&key)];
        let result = store.engine.decide(probe_call(&charges)).await;
        store.circuits.record_probe(*shard, *admitted, &result);
        self.is_recorded = true;
    }
}

impl<E: Engine> Drop for PendingProbe<E> {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.store.circuits.cancel_probe(self.shard, self.admitted);
        }
    }
}

/// The call of a probe.
pub(crate) fn probe_call<'a>(charges: &'a [Charge<'a>]) -> Call<'a> {
    Call { op: Op::Check, charges, idempotency_key: None }
}
