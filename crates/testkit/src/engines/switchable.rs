//! An engine that a test can switch off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::{
    Call, Clock, Decision, Engine, EngineError, EngineFuture, Health, Inspection, Key, Memory,
    RuleLimit,
};

pub struct SwitchableEngine {
    memory: Memory,
    off: Arc<AtomicBool>,
}

impl SwitchableEngine {
    pub fn new(memory: Memory) -> (Self, Arc<AtomicBool>) {
        let off = Arc::new(AtomicBool::new(false));
        (Self { memory, off: off.clone() }, off)
    }
}

impl Engine for SwitchableEngine {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        if self.off.load(Ordering::SeqCst) {
            return EngineFuture::Ready(Err(EngineError::unavailable(std::io::Error::other(
                "the secret host is off",
            ))));
        }
        self.memory.decide(call)
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
