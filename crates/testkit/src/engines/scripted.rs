//! An engine whose replies a test chooses, and a circuit breaker around it.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{
    Breaker, BreakerEvent, Call, Charge, Circuit, Clock, Cost, Decision, Engine, EngineError,
    EngineFuture, ForeignState, Health, Inspection, Key, ManualClock, Memory, Op, Rule, RuleLimit,
    Shards,
};

pub const RULE: &str = "r";

/// What happens to each call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreMode {
    Reply,
    /// Replies after advancing the clock.
    ReplyAfter(Duration),
    Unavailable,
    Ambiguous,
    /// The stored state has another format.
    ForeignState,
    /// Never replies.
    Hang,
    /// Unavailable for keys that begin with this letter, and for probes of its shard.
    UnavailableFor(char),
}

pub struct ScriptedEngine {
    memory: Memory,
    clock: ManualClock,
    mode: Mutex<StoreMode>,
    up: AtomicBool,
    /// Returns pending futures, as an engine on the network does.
    pending: AtomicBool,
    /// All keys belong to shard 0.
    one_shard: AtomicBool,
    calls: AtomicU64,
}

impl ScriptedEngine {
    pub fn move_all_to_shard_0(&self) {
        self.one_shard.store(true, Ordering::SeqCst);
    }

    pub fn set(&self, mode: StoreMode) {
        *self.mode.lock().unwrap() = mode;
    }

    pub fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::SeqCst);
    }

    pub fn return_pending_futures(&self) {
        self.pending.store(true, Ordering::SeqCst);
    }

    /// Number of calls that reached this engine.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn run<'a, T: Unpin + Send + 'a>(
        &'a self,
        call: Call<'a>,
        decide: impl FnOnce() -> EngineFuture<'a, T> + Send + 'a,
    ) -> EngineFuture<'a, T> {
        if !self.pending.load(Ordering::SeqCst) {
            return self.run_now(&call, decide);
        }
        EngineFuture::Pending(Box::pin(async move { self.run_now(&call, decide).await }))
    }

    fn run_now<'a, T: Unpin + Send + 'a>(
        &'a self,
        call: &Call<'_>,
        decide: impl FnOnce() -> EngineFuture<'a, T>,
    ) -> EngineFuture<'a, T> {
        let mode = *self.mode.lock().unwrap();
        let cause = || Arc::new(std::io::Error::other("made to fail"));
        let of = |first: char| {
            let first = [first as u8, first as u8 - b'a' + b'0'];
            let begins = |part: &[u8]| part.first().is_some_and(|byte| first.contains(byte));
            call.charges.iter().any(|charge| charge.key.parts().any(begins))
        };
        if mode != StoreMode::Hang {
            self.calls.fetch_add(1, Ordering::SeqCst);
        }
        match mode {
            StoreMode::ReplyAfter(span) => self.clock.advance(span),
            StoreMode::Unavailable => {
                return EngineFuture::Ready(Err(EngineError::Unavailable(cause())));
            }
            StoreMode::Ambiguous => {
                return EngineFuture::Ready(Err(EngineError::Ambiguous(cause())));
            }
            StoreMode::ForeignState => {
                return EngineFuture::Ready(Err(EngineError::unavailable(ForeignState(cause()))));
            }
            StoreMode::UnavailableFor(first) if of(first) => {
                return EngineFuture::Ready(Err(EngineError::Unavailable(cause())));
            }
            StoreMode::Hang => {
                return EngineFuture::Pending(Box::pin(async {
                    self.calls.fetch_add(1, Ordering::SeqCst);
                    std::future::pending().await
                }));
            }
            StoreMode::Reply | StoreMode::UnavailableFor(_) => {}
        }
        decide()
    }
}

impl Engine for ScriptedEngine {
    /// Refuses an invalid call before anything else, as every engine does.
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        match call.validate() {
            Ok(()) => self.run(call, move || self.memory.decide(call)),
            Err(refused) => EngineFuture::Ready(Err(refused)),
        }
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        let charges = [Charge { limit, key, cost: Cost::ZERO, caller: None }];
        let call = Call { op: Op::Peek, charges: &charges, idempotency_key: None };
        self.run_now(&call, || self.memory.inspect(limit, key))
    }

    /// Shard by the first letter of a key: `a` is 0, `b` is 1, and so on; or by its first digit,
    /// for probes; others are 0.
    fn shards(&self, call: &Call<'_>) -> Shards {
        let number = |key: Key<'_>| match key.parts().next() {
            _ if self.one_shard.load(Ordering::SeqCst) => 0,
            Some([letter @ b'a'..=b'h', ..]) => usize::from(letter - b'a'),
            Some([digit @ b'0'..=b'7', ..]) => usize::from(digit - b'0'),
            _ => 0,
        };
        let all = call.charges.iter().map(|charge| number(charge.key));
        if call.charges.is_empty() { Shards::ONE } else { all.fold(Shards::NONE, Shards::and) }
    }

    fn health(&self) -> Health {
        let mut health = self.memory.health();
        health.up = self.up.load(Ordering::SeqCst);
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

/// A breaker around a [`ScriptedEngine`], and the events it reported.
pub struct BreakerFixture {
    pub breaker: Breaker<Arc<ScriptedEngine>>,
    pub store: Arc<ScriptedEngine>,
    pub clock: ManualClock,
    events: Arc<Mutex<Vec<String>>>,
    limit: Arc<RuleLimit>,
}

impl BreakerFixture {
    pub fn new(
        set: impl FnOnce(Breaker<Arc<ScriptedEngine>>) -> Breaker<Arc<ScriptedEngine>>,
    ) -> Self {
        let clock = ManualClock::default();
        let store = Arc::new(ScriptedEngine {
            memory: Memory::builder().clock(clock.clone()).build(),
            clock: clock.clone(),
            mode: Mutex::new(StoreMode::Reply),
            up: AtomicBool::new(true),
            pending: AtomicBool::new(false),
            one_shard: AtomicBool::new(false),
            calls: AtomicU64::new(0),
        });
        let events: Arc<Mutex<Vec<String>>> = Arc::default();
        let reported = events.clone();
        let breaker = set(Breaker::new(store.clone())).on_event(move |event| {
            reported.lock().unwrap().push(match event {
                BreakerEvent::Opened { shard, error, .. } => {
                    let why = std::error::Error::source(error).unwrap();
                    format!("opened {shard}: {why}")
                }
                BreakerEvent::Closed { shard, after, .. } => {
                    format!("closed {shard} after {after:?}")
                }
                BreakerEvent::IdleReset { shard, after, .. } => {
                    format!("forgot {shard} after {after:?}")
                }
                _ => "?".into(),
            });
        });
        Self { breaker, store, clock, events, limit: limit() }
    }

    pub fn check(&self, key: &str) -> Result<Decision, EngineError> {
        self.check_each(&[key])
    }

    pub fn check_each(&self, keys: &[&str]) -> Result<Decision, EngineError> {
        let charges: Vec<_> = keys.iter().map(|key| charge(&self.limit, key)).collect();
        let mut decision =
            self.breaker.decide(Call { op: Op::Check, charges: &charges, idempotency_key: None });
        match Pin::new(&mut decision).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision,
            Poll::Pending => panic!("the decision is pending"),
        }
    }

    /// Checks once per millisecond of the clock.
    pub fn check_for(&self, span: Duration, key: &str) {
        for _ in 0..span.as_millis() {
            let _ = self.check(key);
            self.clock.advance(Duration::from_millis(1));
        }
    }

    /// The result of a probe without traffic.
    pub fn probe(&self) -> Result<(), EngineError> {
        crate::now_or_never::now_or_panic(self.breaker.probe())
    }

    /// Closes the circuit of a store that has recovered: the third probe does, and its caller is
    /// served.
    pub fn close(&self, key: &str) {
        let served = (1..=3).find(|_| self.check(key).is_ok());
        assert_eq!(served, Some(3));
    }

    pub fn circuit(&self) -> Circuit {
        self.breaker.health().circuit.unwrap()
    }

    pub fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }
}

pub fn limit() -> Arc<RuleLimit> {
    let rule = Rule::new(RULE, ["100/h".parse().unwrap()]).unwrap();
    rule.limits()[0].clone()
}

pub fn charge<'a>(limit: &'a Arc<RuleLimit>, key: &'a str) -> Charge<'a> {
    Charge { limit, key: key.into(), cost: Cost::ONE, caller: None }
}
