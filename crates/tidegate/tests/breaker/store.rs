//! A store that does as it is told.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{
    Answer, Breaker, BreakerEvent, Call, Charge, Circuit, Clock, Cost, Decision, Engine,
    EngineError, Health, Inspection, Key, ManualClock, Memory, Misfit, Op, Rule, RuleLimit, Shards,
};

pub(crate) const RULE: &str = "r";

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Answer,
    /// Answered after so long.
    After(Duration),
    Unavailable,
    Ambiguous,
    /// What lies there is not what it should be.
    Misfit,
    /// It is never answered.
    Never,
    /// Unavailable to keys that begin with this.
    Without(char),
}

pub(crate) struct Store {
    memory: Memory,
    clock: ManualClock,
    fate: Mutex<Fate>,
    up: AtomicBool,
    /// It is waited for, as a network is.
    later: AtomicBool,
    asked: AtomicU64,
}

impl Store {
    pub(crate) fn set(&self, fate: Fate) {
        *self.fate.lock().unwrap() = fate;
    }

    pub(crate) fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::SeqCst);
    }

    pub(crate) fn answer_later(&self) {
        self.later.store(true, Ordering::SeqCst);
    }

    /// How many calls came this far.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    fn meet<'a, T: Unpin + Send + 'a>(
        &'a self,
        call: Call<'a>,
        answer: impl FnOnce() -> Answer<'a, T> + Send + 'a,
    ) -> Answer<'a, T> {
        if !self.later.load(Ordering::SeqCst) {
            return self.meet_now(&call, answer);
        }
        Answer::Later(Box::pin(async move { self.meet_now(&call, answer).await }))
    }

    fn meet_now<'a, T: Unpin + Send + 'a>(
        &'a self,
        call: &Call<'_>,
        answer: impl FnOnce() -> Answer<'a, T>,
    ) -> Answer<'a, T> {
        let fate = *self.fate.lock().unwrap();
        let cause = || Arc::new(std::io::Error::other("made to fail"));
        let of = |first: char| {
            let begins = |key: Key<'_>| key.parts().any(|part| part.starts_with(&[first as u8]));
            call.charges.iter().any(|charge| begins(charge.key))
        };
        if fate != Fate::Never {
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
        match fate {
            Fate::After(span) => self.clock.advance(span),
            Fate::Unavailable => return Answer::Ready(Err(EngineError::Unavailable(cause()))),
            Fate::Ambiguous => return Answer::Ready(Err(EngineError::Ambiguous(cause()))),
            Fate::Misfit => {
                return Answer::Ready(Err(EngineError::unavailable(Misfit(cause()))));
            }
            Fate::Without(first) if of(first) => {
                return Answer::Ready(Err(EngineError::Unavailable(cause())));
            }
            Fate::Never => {
                return Answer::Later(Box::pin(async {
                    self.asked.fetch_add(1, Ordering::SeqCst);
                    std::future::pending().await
                }));
            }
            Fate::Answer | Fate::Without(_) => {}
        }
        answer()
    }
}

impl Engine for Store {
    /// What cannot be answered is refused before anybody is asked, as by every engine.
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        match call.validate() {
            Ok(()) => self.meet(call, move || self.memory.decide(call)),
            Err(refused) => Answer::Ready(Err(refused)),
        }
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        let charges = [Charge { limit, key, cost: Cost::ZERO, who: None }];
        let call = Call { op: Op::Peek, charges: &charges, once: None };
        self.meet_now(&call, || self.memory.inspect(limit, key))
    }

    /// By the first letter of a key: `a` is 0, `b` is 1, and so on; others are 0.
    fn shards(&self, call: &Call<'_>) -> Shards {
        let number = |key: Key<'_>| match key.parts().next() {
            Some([letter @ b'a'..=b'h', ..]) => usize::from(letter - b'a'),
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

pub(crate) struct Bench {
    pub(crate) breaker: Breaker<Arc<Store>>,
    pub(crate) store: Arc<Store>,
    pub(crate) clock: ManualClock,
    events: Arc<Mutex<Vec<String>>>,
    limit: Arc<RuleLimit>,
}

impl Bench {
    pub(crate) fn new(set: impl FnOnce(Breaker<Arc<Store>>) -> Breaker<Arc<Store>>) -> Self {
        let clock = ManualClock::default();
        let store = Arc::new(Store {
            memory: Memory::builder().clock(clock.clone()).build(),
            clock: clock.clone(),
            fate: Mutex::new(Fate::Answer),
            up: AtomicBool::new(true),
            later: AtomicBool::new(false),
            asked: AtomicU64::new(0),
        });
        let events: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = events.clone();
        let breaker = set(Breaker::new(store.clone())).watched_by(move |event| {
            told.lock().unwrap().push(match event {
                BreakerEvent::Opened { shard, error, .. } => {
                    let why = std::error::Error::source(error).unwrap();
                    format!("opened {shard}: {why}")
                }
                BreakerEvent::Closed { shard, after, .. } => {
                    format!("closed {shard} after {after:?}")
                }
                BreakerEvent::Forgotten { shard, after, .. } => {
                    format!("forgot {shard} after {after:?}")
                }
                _ => "?".into(),
            });
        });
        Self { breaker, store, clock, events, limit: limit() }
    }

    pub(crate) fn check(&self, key: &str) -> Result<Decision, EngineError> {
        self.check_each(&[key])
    }

    pub(crate) fn check_each(&self, keys: &[&str]) -> Result<Decision, EngineError> {
        let charges: Vec<_> = keys.iter().map(|key| charge(&self.limit, key)).collect();
        let mut answer = self.breaker.decide(Call { op: Op::Check, charges: &charges, once: None });
        match Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("it is answered at once, or never"),
        }
    }

    /// Asks every millisecond for so long.
    pub(crate) fn ask_for(&self, span: Duration, key: &str) {
        for _ in 0..span.as_millis() {
            let _ = self.check(key);
            self.clock.advance(Duration::from_millis(1));
        }
    }

    pub(crate) fn circuit(&self) -> Circuit {
        self.breaker.health().circuit.unwrap()
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }
}

pub(crate) fn limit() -> Arc<RuleLimit> {
    let rule = Rule::new(RULE, ["100/h".parse().unwrap()]).unwrap();
    rule.limits()[0].clone()
}

pub(crate) fn charge<'a>(limit: &'a Arc<RuleLimit>, key: &'a str) -> Charge<'a> {
    Charge { limit, key: key.into(), cost: Cost::ONE, who: None }
}
