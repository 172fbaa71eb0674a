//! Engines with delays and with competing calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{
    Call, Clock, Decision, Engine, EngineFuture, Health, Inspection, Key, ManualClock, Memory,
    Micros, Op, RuleLimit,
};
use tidegate_model::TraceRng;

/// Takes some milliseconds for every call, as an engine on the network does.
pub struct SlowEngine {
    memory: Memory,
    clock: ManualClock,
    calls: Arc<AtomicU64>,
}

impl SlowEngine {
    pub fn new(memory: Memory, clock: &ManualClock) -> Self {
        Self { memory, clock: clock.clone(), calls: Arc::default() }
    }

    /// Number of calls started.
    pub fn calls(&self) -> Arc<AtomicU64> {
        self.calls.clone()
    }
}

impl Engine for SlowEngine {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(async move {
            let nth = self.calls.fetch_add(1, Ordering::SeqCst);
            let millis = TraceRng::new(nth).between(1, 5);
            let awake = self.clock.elapsed().saturating_add(Micros::from_millis(millis));
            self.clock.sleep_until(awake).await;
            self.memory.decide(call).now()
        }))
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.memory.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

/// Runs a competing call right before every check.
pub struct RacingEngine(Memory);

impl RacingEngine {
    pub fn new(memory: Memory) -> Self {
        Self(memory)
    }
}

impl Engine for RacingEngine {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        if call.op == Op::Check
            && let Err(error) = self.0.decide(call).now()
        {
            return EngineFuture::Ready(Err(error));
        }
        self.0.decide(call)
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.0.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
}
