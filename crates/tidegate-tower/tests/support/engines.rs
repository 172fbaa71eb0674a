//! Stores that take their time, and in which others come first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{
    Answer, Call, Clock, Decision, Engine, Health, Inspection, Key, ManualClock, Memory, Micros,
    Op, RuleLimit,
};
use tidegate_model::Rng;

/// A store that takes some milliseconds for every call, as one on the network does.
pub(crate) struct Slow {
    memory: Memory,
    clock: ManualClock,
    calls: Arc<AtomicU64>,
}

impl Slow {
    pub(crate) fn new(memory: Memory, clock: &ManualClock) -> Self {
        Self { memory, clock: clock.clone(), calls: Arc::default() }
    }

    /// How many calls it has begun.
    pub(crate) fn calls(&self) -> Arc<AtomicU64> {
        self.calls.clone()
    }
}

impl Engine for Slow {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        Answer::Later(Box::pin(async move {
            let nth = self.calls.fetch_add(1, Ordering::SeqCst);
            let millis = Rng::new(nth).between(1, 5);
            let awake = self.clock.elapsed().saturating_add(Micros::from_millis(millis));
            self.clock.sleep_until(awake).await;
            self.memory.decide(call).now()
        }))
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        self.memory.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

/// A store in which somebody is always a little quicker.
pub(crate) struct Overtaken(Memory);

impl Overtaken {
    pub(crate) fn new(memory: Memory) -> Self {
        Self(memory)
    }
}

impl Engine for Overtaken {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        if call.op == Op::Check
            && let Err(error) = self.0.decide(call).now()
        {
            return Answer::Ready(Err(error));
        }
        self.0.decide(call)
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        self.0.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
}
