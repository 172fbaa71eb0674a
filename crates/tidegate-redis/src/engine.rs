//! The engine: decides calls on Redis or Valkey.

use std::fmt;
use std::sync::Arc;

use tidegate::{
    Call, Charge, Clock, Cost, Decision, Engine, EngineError, EngineFuture, Health, HeldPart,
    HoldId, Inspection, Key, Op, RuleLimit, Shards,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::cross_slot::abandoned_holds::AbandonedHolds;
use crate::cross_slot::{self, CrossSlotCall};
use crate::durability::data_loss::DataLossLog;
use crate::executor::ScriptExecutor;
use crate::protocol::hold_record::record_of;
use crate::protocol::namespace_secret::NamespaceSecret;
use crate::protocol::reply::malformed_reply;
use crate::protocol::request::{
    IdempotencyRecord, LimitCharge, PartHold, ScriptOp, ScriptRequest, check_ttl,
};
use crate::topology::hash_slot::HashSlot;

/// The largest cost that is sent to settle a hold: exact in Lua. No limit takes that much.
const MAX_SETTLED: Cost = Cost::total(1 << 52);

/// Counts in Redis or Valkey, for a fleet.
///
/// ```no_run
/// use tidegate::{Limiter, Rule, RuleCheck};
/// use tidegate_redis::Redis;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = [
///     Rule::new("tenant", ["fixed-window 10000/d".parse()?])?,
///     Rule::new("user", ["100/s burst 20".parse()?])?,
/// ];
/// let engine = Redis::builder("redis://127.0.0.1:6379").build()?;
/// let limiter = Limiter::with_rules(engine, rules)?;
/// // Both are charged, or none: one script, one round trip.
/// let checks = [RuleCheck::new("tenant", "acme"), RuleCheck::new("user", "user-42")];
/// let decision = limiter.check_each(&checks).await?;
/// # Ok(())
/// # }
/// ```
pub struct Redis {
    pub(crate) executor: ScriptExecutor,
    pub(crate) secret: NamespaceSecret,
    /// Treats one server as a Cluster; for tests.
    pub(crate) force_cross_slot: bool,
    pub(crate) data_loss: DataLossLog,
    /// Limits the tasks that end abandoned holds.
    pub(crate) cleanup: Arc<Semaphore>,
}

impl Engine for Redis {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(async move {
            call.validate()?;
            // One deadline, however many commands it takes.
            let until = self.executor.sender.router.deadline();
            match call.op.about_hold() {
                Some(id) => self.decide_on_hold(call.op, id, until).await,
                None => self.decide_on_charges(call, until).await,
            }
        }))
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        EngineFuture::Pending(Box::pin(async move {
            let charges = [Charge { limit, key, cost: Cost::ZERO, caller: None }];
            let call = Call { op: Op::Peek, charges: &charges, idempotency_key: None };
            call.validate()?;
            let until = self.executor.sender.router.deadline();
            let secret = self.secret.get(until).await?;
            let (parts, _) = LimitCharge::all(&call, &secret, &self.executor.names);
            let request = ScriptRequest::new(ScriptOp::Inspect, parts);
            let inspection = self.executor.request(request, until).await?.inspection(limit);
            inspection.ok_or_else(|| malformed_reply(false))
        }))
    }

    fn locate_hold<'a>(&'a self, id: HoldId, key: Key<'a>) -> EngineFuture<'a, HoldId> {
        EngineFuture::Pending(Box::pin(async move {
            let until = self.executor.sender.router.deadline();
            Ok(id.with_location(self.secret.get(until).await?.subject(key).0))
        }))
    }

    /// The owners of the call's slots, as far as they are known without a request. One server that
    /// owns all keys is one shard, and so is a Cluster whose slot map is not known yet.
    fn shards(&self, call: &Call<'_>) -> Shards {
        let ScriptExecutor { sender, names, .. } = &self.executor;
        if sender.router.spans_slots() {
            return Shards::ONE;
        }
        let index = |key: &str| sender.router.shard_index(HashSlot::of(key));
        if let Some(id) = call.op.about_hold() {
            return Shards::NONE.and(index(&names.hold(id)));
        }
        let Some(secret) = self.secret.known() else { return Shards::ONE };
        let subjects = call.charges.iter().map(|charge| secret.subject(charge.key));
        subjects.fold(Shards::NONE, |shards, subject| shards.and(index(&names.state(subject, ""))))
    }

    fn health(&self) -> Health {
        let router = &self.executor.sender.router;
        let mut health = Health::up(None, 0);
        let conflict = self.secret.conflict();
        health.up = router.is_up() && conflict.is_none();
        health.error = router.error().or_else(|| Some(conflict?.to_string().into()));
        health.shards = router.shards().max(1);
        health.warning = router.warning();
        (health.resets, health.last_reset) = self.data_loss.summary();
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.executor.sender.clock()
    }
}

impl Redis {
    async fn decide_on_charges(
        &self,
        call: Call<'_>,
        until: Instant,
    ) -> Result<Decision, EngineError> {
        let executor = &self.executor;
        let secret = &self.secret.get(until).await?;
        let (parts, indexes) = LimitCharge::all(&call, secret, &executor.names);
        let parts: Vec<LimitCharge> =
            parts.into_iter().map(|part| part.with_hold_of(call.op)).collect();
        let op = ScriptOp::of(call.op)?;
        if let Some(slots) = &self.several_slots(&parts) {
            let cleanup = &self.cleanup;
            let granted = None;
            let call = CrossSlotCall {
                executor,
                cleanup,
                secret,
                slots,
                call,
                parts,
                indexes,
                granted,
                until,
            };
            return cross_slot::decide(&call).await;
        }
        let mut request = ScriptRequest::new(op, parts);
        let parts = Arc::clone(&request.parts);
        request.once = call
            .idempotency_key
            .map(|id| IdempotencyRecord::new(&call, parts[0].subject, secret, id));
        let mut abandoned = None;
        if let Op::Hold(hold) = call.op {
            let held = || parts.iter().filter(|part| part.is_held());
            if let Some(first) = held().next() {
                check_ttl(hold.ttl, held())?;
                // The record is stored in the slot of the first subject, which the id contains.
                request.hold = Some(hold.id.with_location(first.subject.0));
                request.ttl = hold.ttl;
                request.quantity = hold.quantity.map(|quantity| (quantity.min, quantity.want));
                request.record =
                    record_of(call.op, parts.iter().filter(|p| call.op.records(&p.limit)));
                // With an idempotency key the hold is kept: a retry returns it.
                if call.idempotency_key.is_none() {
                    let endings = vec![request.drop_hold()];
                    abandoned = Some(AbandonedHolds::new(executor, &self.cleanup, endings));
                }
            } else {
                // Entering without a concurrency limit is a check.
                request.op = ScriptOp::Check;
            }
        }
        let sent = request.hold;
        let decided = executor.request(request, until).await;
        // Unless the result is ambiguous, the caller knows whether there is a hold.
        if let Some(holds) = &mut abandoned
            && !matches!(decided, Err(EngineError::Ambiguous(_)))
        {
            holds.disarm();
        }
        Ok(decided?.on_call(&call, &parts, &indexes, sent))
    }

    /// Settles, renews or extends a hold, with the limits it was made for.
    async fn decide_on_hold(
        &self,
        op: Op<'_>,
        id: HoldId,
        until: Instant,
    ) -> Result<Decision, EngineError> {
        let mut parts = self.executor.held_parts(id, until).await?;
        self.set_costs(&mut parts, op, until).await?;
        let (new_ttl, min) = match op {
            Op::Renew { ttl, .. } => (Some(ttl), None),
            Op::Extend { to, .. } => (to.ttl, to.min),
            _ => (None, None),
        };
        if let Some(ttl) = new_ttl {
            check_ttl(ttl, &parts)?;
        }
        let slots = self.several_slots(&parts);
        let request = ScriptRequest {
            hold: Some(id),
            ttl: new_ttl.unwrap_or_default(),
            record: min.map_or_else(String::new, |min| min.to_string()),
            ..ScriptRequest::new(ScriptOp::of(op)?, parts)
        };
        match slots {
            None => {
                let (parts, op) = (Arc::clone(&request.parts), request.op);
                Ok(self.executor.request(request, until).await?.on_hold(&parts, op))
            }
            Some(slots) if request.op == ScriptOp::Extend => {
                cross_slot::extend(&self.executor, id, request, &slots, until).await
            }
            Some(slots) => cross_slot::settle(&self.executor, id, &request, &slots, until).await,
        }
    }

    /// Sets the cost at which each part is settled, or that it is extended to.
    async fn set_costs(
        &self,
        parts: &mut [LimitCharge],
        op: Op<'_>,
        until: Instant,
    ) -> Result<(), EngineError> {
        let secret = match op.rule_costs().iter().any(|cost| cost.key.is_some()) {
            true => Some(self.secret.get(until).await?),
            false => None,
        };
        let part = |part: &LimitCharge| (Arc::clone(&part.limit), part.cost, part.is_held());
        let held: Vec<_> = parts.iter().map(part).collect();
        let held: Vec<HeldPart<'_>> = held
            .iter()
            .map(|(limit, cost, is_held)| HeldPart { limit, cost: *cost, is_held: *is_held })
            .collect();
        let is_of = |i: usize, key: Key<'_>| {
            secret.as_ref().is_some_and(|secret| parts[i].subject == secret.subject(key))
        };
        let named = op.costs_of_parts(&held, is_of)?;
        for (part, cost) in parts.iter_mut().zip(named) {
            if let Some(cost) = cost {
                part.hold = PartHold::At(cost.min(MAX_SETTLED));
            }
        }
        Ok(())
    }

    /// The indexes of these parts, grouped by slot, if one command cannot have all their keys.
    fn several_slots(&self, parts: &[LimitCharge]) -> Option<Vec<Vec<usize>>> {
        if self.executor.sender.router.spans_slots() && !self.force_cross_slot {
            return None;
        }
        Some(cross_slot::by_slot(parts)).filter(|slots| slots.len() > 1)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("names", &self.executor.names).finish_non_exhaustive()
    }
}
