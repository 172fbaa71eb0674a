//! A circuit breaker with one bug.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tidegate::{
    Call, Clock, Decision, Engine, EngineError, EngineFuture, Health, Inspection, Key, RuleLimit,
};

use super::broken_layers::Mutation;

pub(super) struct BrokenBreaker {
    engine: Arc<dyn Engine>,
    mutation: Mutation,
    watcher: Box<dyn Fn(bool) + Send + Sync>,
    failures: AtomicU32,
    open: AtomicBool,
}

impl BrokenBreaker {
    pub(super) fn new(
        engine: Arc<dyn Engine>,
        mutation: Mutation,
        watcher: impl Fn(bool) + Send + Sync + 'static,
    ) -> Self {
        Self {
            engine,
            mutation,
            watcher: Box::new(watcher),
            failures: AtomicU32::new(0),
            open: AtomicBool::new(false),
        }
    }

    async fn decide_with_bug(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        if self.mutation == Mutation::BreakerStaysOpen && self.open.load(Ordering::Relaxed) {
            return Err(EngineError::unavailable(io::Error::other("circuit open")));
        }
        let result = self.engine.decide(call).await;
        match &result {
            Err(error) if error.refusal().is_none() => self.failed(),
            _ => self.succeeded(),
        }
        result
    }

    fn failed(&self) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let enough = if self.mutation == Mutation::BreakerFlaps { 1 } else { 5 };
        if failures >= enough && !self.open.swap(true, Ordering::Relaxed) {
            (self.watcher)(true);
        }
    }

    fn succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
        if self.mutation != Mutation::BreakerStaysOpen && self.open.swap(false, Ordering::Relaxed) {
            (self.watcher)(false);
        }
    }
}

impl Engine for BrokenBreaker {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(self.decide_with_bug(call)))
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.engine.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.engine.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.engine.clock()
    }
}
