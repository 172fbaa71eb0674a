//! A memory engine that counts its calls, for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::{
    Call, Clock, Decision, Engine, EngineError, EngineFuture, Health, Inspection, Key, Memory,
    Policy, PolicyRule, Rule, RuleLimit,
};

use super::{ActivePolicy, AdhocLimits, CheckService};
use crate::observe::metrics::Metrics;

/// Counts calls to a memory engine.
#[derive(Default)]
pub(crate) struct CountingEngine {
    memory: Memory,
    is_synchronous: bool,
    decisions: AtomicUsize,
    inspections: AtomicUsize,
}

impl CountingEngine {
    /// A service with one rule `api` on such an engine.
    pub(crate) fn service(is_synchronous: bool, limits: &[&str]) -> (Arc<Self>, CheckService) {
        let limits = limits.iter().map(|limit| limit.parse().unwrap());
        let rule = PolicyRule::from(Rule::new("api", limits).unwrap());
        let engine = Arc::new(Self { is_synchronous, ..Self::default() });
        let metrics = Arc::new(Metrics::default());
        let policy = Policy::new(vec![rule]).unwrap();
        let trusted = [].into_iter().collect();
        let active = ActivePolicy::new(policy, trusted, AdhocLimits::Allow, &metrics);
        (engine.clone(), CheckService::new(engine, active, metrics))
    }

    /// Calls of `decide` since the last time.
    pub(crate) fn take_decisions(&self) -> usize {
        self.decisions.swap(0, Ordering::Relaxed)
    }

    /// Calls of `inspect` since the last time.
    pub(crate) fn take_inspections(&self) -> usize {
        self.inspections.swap(0, Ordering::Relaxed)
    }
}

impl Engine for CountingEngine {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.memory.decide(call)
    }

    fn decide_now(&self, call: &Call<'_>) -> Result<Decision, EngineError> {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.memory.decide_now(call)
    }

    fn is_synchronous(&self) -> bool {
        self.is_synchronous
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.inspections.fetch_add(1, Ordering::Relaxed);
        self.memory.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}
