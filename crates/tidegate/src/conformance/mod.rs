//! Claims that every engine has to keep.
//!
//! An engine's tests run them all in one line. The engine is built around a clock that the suite
//! turns by hand, so that nothing sleeps:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! tidegate::conformance::run(|clock| tidegate::Memory::builder().clock(clock).build()).await;
//! # }
//! ```
//!
//! # Layout
//!
//! - `admission`: what passes, and when to come back. `several`: calls of several limits.
//! - `operations`: record, refund, reset, inspect, changes of the limit, steps of the clock.
//! - `holds`: reservations and concurrency. `enter`: passing and taking a place in one step.
//! - `once`: idempotency. `shadow`: limits that look on. `refusals`: bad calls.

mod admission;
mod enter;
mod holds;
mod once;
mod operations;
mod refusals;
mod several;
mod shadow;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Cost, Limit, Micros, Verdict, Wait};

use crate::{
    Call, CallId, Charge, Clock, Decision, Engine, EngineError, HoldId, Inspection, Key,
    ManualClock, Op, Rule, RuleLimit,
};

/// Runs every claim against an engine of its own, made by `make`. Panics at the first that is not
/// kept.
pub async fn run<E: Engine>(make: impl Fn(ManualClock) -> E) {
    let new = || Bench::new(&make);
    admission::run(new).await;
    several::run(new).await;
    shadow::run(new).await;
    operations::run(new).await;
    holds::run(new).await;
    enter::run(new).await;
    once::run(new).await;
    refusals::run(new).await;
}

/// Limits of every algorithm and mode that can be charged, all with a capacity of 10.
pub const EVERY_LIMIT: [&str; 14] = [
    "10/s",
    "1/10s burst 10",
    "60/m burst 10",
    "5/s burst 10 every 1s",
    "7/3d burst 10",
    "leaky-bucket 2/s capacity 10",
    "leaky-bucket 2/s capacity 10 queue",
    "fixed-window 10/60s",
    "fixed-window 10/60s first-hit",
    "fixed-window 10/d",
    "fixed-window 10/month tz Asia/Shanghai",
    "sliding-log 10/60s",
    "sliding-window 10/60s precision 7s",
    "sliding-window 10/60s approximate",
];

/// An engine, its clock, and the words to put questions to it.
struct Bench {
    engine: Arc<dyn Engine>,
    clock: ManualClock,
    /// Keeps the keys of this bench apart from those of others on the same store.
    nonce: String,
}

impl Bench {
    fn new<E: Engine>(make: &impl Fn(ManualClock) -> E) -> Self {
        // Half a tick past a whole second, so that no limit gets away with exact instants only.
        let clock = ManualClock::new(Micros::new(1_700_000_000_000_500));
        let engine = Arc::new(make(clock.clone()));
        let nonce = HoldId::random().expect("the system has random numbers").to_string();
        Self { engine, clock, nonce }
    }

    fn now(&self) -> Micros {
        self.clock.now()
    }

    fn advance(&self, span: Micros) {
        self.clock.advance(Duration::from(span));
    }

    /// A rule of one limit.
    fn limit(&self, name: &str, limit: &str) -> Arc<RuleLimit> {
        let limit: Limit = limit.parse().expect("a limit of the suite");
        let rule = Rule::new(name, [limit]).expect("a rule of the suite");
        rule.limits()[0].clone()
    }

    async fn ask(
        &self,
        op: Op,
        asks: &[(&Arc<RuleLimit>, &str, u64)],
    ) -> Result<Decision, EngineError> {
        self.ask_once(op, asks, None).await
    }

    async fn ask_once(
        &self,
        op: Op,
        asks: &[(&Arc<RuleLimit>, &str, u64)],
        once: Option<&str>,
    ) -> Result<Decision, EngineError> {
        let keys: Vec<[&str; 2]> = asks.iter().map(|(_, key, _)| [&*self.nonce, *key]).collect();
        let charges: Vec<Charge<'_>> = asks
            .iter()
            .zip(&keys)
            .map(|((limit, _, cost), key)| Charge {
                limit,
                key: Key::of(key),
                cost: Cost::new(*cost).expect("a cost of the suite"),
                who: None,
            })
            .collect();
        let once = once.map(|id| CallId::new(id).expect("an id of the suite"));
        self.engine.decide(Call { op, charges: &charges, once }).await
    }

    async fn one(&self, op: Op, limit: &Arc<RuleLimit>, key: &str, cost: u64) -> Decision {
        let answer = self.ask(op, &[(limit, key, cost)]).await;
        answer.unwrap_or_else(|error| panic!("{op:?} {cost} on {}: {error}", limit.limit()))
    }

    async fn check(&self, limit: &Arc<RuleLimit>, key: &str, cost: u64) -> Verdict {
        self.one(Op::Check, limit, key, cost).await.verdict()
    }

    async fn peek(&self, limit: &Arc<RuleLimit>, key: &str) -> Verdict {
        self.one(Op::Peek, limit, key, 0).await.verdict()
    }

    async fn inspect(&self, limit: &Arc<RuleLimit>, key: &str) -> Inspection {
        let parts = [&*self.nonce, key];
        self.engine.inspect(limit, Key::of(&parts)).await.expect("an inspection")
    }

    async fn settle(&self, id: HoldId, cost: Option<u64>) -> Result<Decision, EngineError> {
        let cost = cost.map(|cost| Cost::new(cost).expect("a cost of the suite"));
        self.engine.decide(Call { op: Op::Settle { id, cost }, charges: &[], once: None }).await
    }

    async fn renew(&self, id: HoldId, ttl: Micros) -> Result<Decision, EngineError> {
        self.engine.decide(Call { op: Op::Renew { id, ttl }, charges: &[], once: None }).await
    }

    /// Holds `cost`, which must be allowed.
    async fn held(&self, ttl: Micros, limit: &Arc<RuleLimit>, key: &str, cost: u64) -> HoldId {
        let (_, hold) = self.hold(ttl);
        self.one(hold, limit, key, cost).await.hold().expect("a hold")
    }

    fn hold(&self, ttl: Micros) -> (HoldId, Op) {
        let id = HoldId::random().expect("the system has random numbers");
        (id, Op::Hold { id, ttl, expiry: tidegate_core::Expiry::Release })
    }
}

/// The wait of a denial; fails if it was none.
fn wait_of(verdict: &Verdict) -> Micros {
    assert!(!verdict.allowed, "denied: {verdict:?}");
    match verdict.retry_after {
        Wait::For(span) => span,
        Wait::Never => panic!("not for ever: {verdict:?}"),
    }
}
