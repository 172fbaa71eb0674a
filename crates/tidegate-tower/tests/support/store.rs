//! A store that can be turned off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::{
    Answer, Call, Clock, Decision, Engine, EngineError, Health, Inspection, Key, Memory, RuleLimit,
};

pub(crate) struct Store {
    memory: Memory,
    off: Arc<AtomicBool>,
}

impl Store {
    pub(crate) fn new(memory: Memory) -> (Self, Arc<AtomicBool>) {
        let off = Arc::new(AtomicBool::new(false));
        (Self { memory, off: off.clone() }, off)
    }
}

impl Engine for Store {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        if self.off.load(Ordering::SeqCst) {
            return Answer::Ready(Err(EngineError::unavailable(std::io::Error::other(
                "the secret host is off",
            ))));
        }
        self.memory.decide(call)
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
