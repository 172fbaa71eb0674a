//! An engine under test with its clock, and helpers for calls.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Cost, Expiry, Limit, Micros, Verdict, Wait};

use crate::{
    Call, Charge, Clock, Costs, Decision, Engine, EngineError, Extension, HoldId, IdempotencyKey,
    Inspection, Key, ManualClock, Op, Rule, RuleLimit, Unit,
};

/// Limits of every chargeable algorithm and mode, all with a capacity of 10.
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

/// An engine under test, its clock, and helpers for calls.
pub(super) struct Harness {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) clock: ManualClock,
    /// Separates the keys of this harness from those of others on the same store.
    pub(super) nonce: String,
}

impl Harness {
    pub(super) fn new<E: Engine>(make: &impl Fn(ManualClock) -> E) -> Self {
        // Half a tick past a whole second, so that no limit passes by rounding to whole instants.
        let clock = ManualClock::new(Micros::new(1_700_000_000_000_500));
        let engine = Arc::new(make(clock.clone()));
        let nonce = HoldId::random().expect("the system has random numbers").to_string();
        Self { engine, clock, nonce }
    }

    pub(super) fn now(&self) -> Micros {
        self.clock.now()
    }

    pub(super) fn advance(&self, span: Micros) {
        self.clock.advance(Duration::from(span));
    }

    /// A rule of one limit.
    pub(super) fn limit(&self, name: &str, limit: &str) -> Arc<RuleLimit> {
        self.rule(name, limit).limits()[0].clone()
    }

    /// A rule of one limit that counts this unit.
    pub(super) fn budget(&self, name: &str, limit: &str, unit: Unit) -> Arc<RuleLimit> {
        self.rule(name, limit).unit(unit).limits()[0].clone()
    }

    fn rule(&self, name: &str, limit: &str) -> Rule {
        let limit: Limit = limit.parse().expect("a limit of the suite");
        Rule::new(name, [limit]).expect("a rule of the suite")
    }

    pub(super) async fn call(
        &self,
        op: Op<'_>,
        charges: &[(&Arc<RuleLimit>, &str, u64)],
    ) -> Result<Decision, EngineError> {
        self.call_with_id(op, charges, None).await
    }

    pub(super) async fn call_with_id(
        &self,
        op: Op<'_>,
        charges: &[(&Arc<RuleLimit>, &str, u64)],
        id: Option<&str>,
    ) -> Result<Decision, EngineError> {
        let keys: Vec<[&str; 2]> = charges.iter().map(|(_, key, _)| [&*self.nonce, *key]).collect();
        let charges: Vec<Charge<'_>> = charges
            .iter()
            .zip(&keys)
            .map(|((limit, _, cost), key)| Charge {
                limit,
                key: Key::of(key),
                cost: Cost::new(*cost).expect("a cost of the suite"),
                caller: None,
            })
            .collect();
        let id = id.map(|id| IdempotencyKey::new(id).expect("an id of the suite"));
        self.engine.decide(Call { op, charges: &charges, idempotency_key: id }).await
    }

    pub(super) async fn one(
        &self,
        op: Op<'_>,
        limit: &Arc<RuleLimit>,
        key: &str,
        cost: u64,
    ) -> Decision {
        let result = self.call(op, &[(limit, key, cost)]).await;
        result.unwrap_or_else(|error| panic!("{op:?} {cost} on {}: {error}", limit.limit()))
    }

    pub(super) async fn check(&self, limit: &Arc<RuleLimit>, key: &str, cost: u64) -> Verdict {
        self.one(Op::Check, limit, key, cost).await.verdict()
    }

    pub(super) async fn peek(&self, limit: &Arc<RuleLimit>, key: &str) -> Verdict {
        self.one(Op::Peek, limit, key, 0).await.verdict()
    }

    pub(super) async fn inspect(&self, limit: &Arc<RuleLimit>, key: &str) -> Inspection {
        let parts = [&*self.nonce, key];
        self.engine.inspect(limit, Key::of(&parts)).await.expect("an inspection")
    }

    pub(super) async fn settle(
        &self,
        id: HoldId,
        cost: Option<u64>,
    ) -> Result<Decision, EngineError> {
        let costs = cost.map_or(Costs::AsHeld, |cost| Costs::All(Cost::total(cost)));
        self.settle_at(id, costs).await
    }

    pub(super) async fn settle_at(
        &self,
        id: HoldId,
        costs: Costs<'_>,
    ) -> Result<Decision, EngineError> {
        let op = Op::Settle { id, costs };
        self.engine.decide(Call { op, charges: &[], idempotency_key: None }).await
    }

    pub(super) async fn renew(&self, id: HoldId, ttl: Micros) -> Result<Decision, EngineError> {
        self.engine
            .decide(Call { op: Op::Renew { id, ttl }, charges: &[], idempotency_key: None })
            .await
    }

    pub(super) async fn extend(
        &self,
        id: HoldId,
        to: Extension<'_>,
    ) -> Result<Decision, EngineError> {
        self.engine
            .decide(Call { op: Op::Extend { id, to }, charges: &[], idempotency_key: None })
            .await
    }

    /// Makes a hold of `cost`, which must be allowed.
    pub(super) async fn held(
        &self,
        ttl: Micros,
        limit: &Arc<RuleLimit>,
        key: &str,
        cost: u64,
    ) -> HoldId {
        let (_, hold) = self.hold(ttl);
        self.one(hold, limit, key, cost).await.hold().expect("a hold")
    }

    pub(super) fn hold(&self, ttl: Micros) -> (HoldId, Op<'static>) {
        let id = HoldId::random().expect("the system has random numbers");
        (id, Op::hold(id, ttl, Expiry::Release))
    }
}

/// The wait of a denial; panics if it was none.
pub(super) fn wait_of(verdict: &Verdict) -> Micros {
    assert!(!verdict.allowed, "denied: {verdict:?}");
    match verdict.retry_after {
        Wait::For(span) => span,
        Wait::Never => panic!("not forever: {verdict:?}"),
    }
}
