//! An engine as a system under test.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::{
    Charge, Cost, Decision, Engine, EngineError, HoldId, Key, ManualClock, Micros, Rule, RuleLimit,
};

use crate::{ModelAnswer, ModelCall, ModelCharge, ModelOp, Profile, SharingClass, Spec, System};

/// An engine with a clock that the trace sets. Every cell is a rule.
pub struct EngineSystem<W> {
    clock: ManualClock,
    engine: Arc<dyn Engine>,
    limits: Vec<Arc<RuleLimit>>,
    /// Separates this trace from others on the same store.
    key: String,
    made: HashMap<u128, HoldId>,
    class: SharingClass,
    wait: W,
}

impl Profile {
    /// What an engine supports: holds have a longest TTL, concurrency is only held, zones are real
    /// ones, and a state that has recovered may be forgotten.
    pub const ENGINE: Self = Self {
        max_ttl: HoldId::MAX_TTL.get(),
        remembers: HoldId::RETENTION.get(),
        concurrency_is_charged: false,
        zones: false,
        forgets: true,
        // At the maximum instant a hold could not be stored for another hour.
        last_instant: Micros::MAX.get() - 4 * HoldId::RETENTION.get(),
        ..Self::EVERYTHING
    };
}

impl<W> EngineSystem<W>
where
    W: Fn(tidegate::EngineFuture<'_, Decision>) -> Result<Decision, EngineError>,
{
    /// The engine, its clock, the limits of the cells, and how to wait for a result.
    pub fn new(
        engine: Arc<dyn Engine>,
        clock: ManualClock,
        specs: &[Spec],
        key: String,
        wait: W,
    ) -> Self {
        let class = SharingClass::Policies;
        let limits = specs.iter().enumerate().map(|(i, spec)| limit(i, spec, class)).collect();
        Self { clock, engine, limits, key, made: HashMap::new(), class, wait }
    }

    /// The same with limits that come with calls.
    #[must_use]
    pub fn with_limits_of_calls(mut self, specs: &[Spec]) -> Self {
        self.class = SharingClass::Calls;
        let limits = specs.iter().enumerate().map(|(i, spec)| limit(i, spec, self.class));
        self.limits = limits.collect();
        self
    }

    fn decide(&self, op: tidegate::Op, parts: &[ModelCharge]) -> Result<Decision, EngineError> {
        let charge = |part: &ModelCharge| Charge {
            limit: &self.limits[part.cell],
            key: Key::from(&*self.key),
            cost: Cost::total(part.cost),
            caller: None,
        };
        let charges: Vec<Charge<'_>> = parts.iter().map(charge).collect();
        let call = tidegate::Call { op, charges: &charges, idempotency_key: None };
        let decision = (self.wait)(self.engine.decide(call))?;
        let held = charges.iter().any(|charge| op.holds(charge.limit.limit()));
        assert_eq!(decision.hold().is_some(), held && decision.allowed(), "{op:?}: {decision:?}");
        Ok(decision)
    }
}

fn limit(cell: usize, spec: &Spec, class: SharingClass) -> Arc<RuleLimit> {
    let limit = spec.limit().expect("a valid limit");
    let name = format!("cell-{cell}");
    let rule = match class {
        SharingClass::Policies => Rule::new(&name, [limit]),
        SharingClass::Calls => Rule::per_call(&name, [limit]),
    };
    let rule = rule.expect("a valid rule");
    rule.limits()[0].clone()
}

impl<W> System for EngineSystem<W>
where
    W: Fn(tidegate::EngineFuture<'_, Decision>) -> Result<Decision, EngineError>,
{
    fn apply(&mut self, call: &ModelCall) -> ModelAnswer {
        self.clock.set(Micros::new(call.now));
        let parts = &call.parts;
        let decision = match call.op {
            ModelOp::Check => self.decide(tidegate::Op::Check, parts),
            ModelOp::Peek => self.decide(tidegate::Op::Peek, parts),
            ModelOp::Record => self.decide(tidegate::Op::Record, parts),
            ModelOp::Refund => self.decide(tidegate::Op::Refund, parts),
            ModelOp::Reset => self.decide(tidegate::Op::Reset, parts),
            ModelOp::Hold { id, ttl, expiry } => {
                let (id, ttl) = (id.into(), Micros::new(ttl));
                self.decide(tidegate::Op::hold(id, ttl, expiry), parts)
            }
            ModelOp::Enter { id, ttl } => {
                let (id, ttl) = (id.into(), Micros::new(ttl));
                self.decide(tidegate::Op::enter(id, ttl), parts)
            }
            ModelOp::Settle { id, cost, .. } => {
                let cost = cost.map(Cost::total);
                self.decide(tidegate::Op::Settle { id: self.made[&id], cost }, &[])
            }
            ModelOp::Renew { id, ttl } => {
                let ttl = Micros::new(ttl);
                self.decide(tidegate::Op::Renew { id: self.made[&id], ttl }, &[])
            }
            ModelOp::Change(spec) => {
                let cell = parts[0].cell;
                self.limits[cell] = limit(cell, &spec, self.class);
                self.decide(tidegate::Op::Peek, parts)
            }
            ModelOp::Swap(spec) => {
                let cell = parts[0].cell;
                self.limits[cell] = limit(cell, &spec, self.class);
                return ModelAnswer { verdicts: Vec::new(), refunded: 0, expired: false };
            }
        };
        let decision = decision.unwrap_or_else(|error| panic!("{call:?}: {error}"));
        self.made.extend(decision.hold().map(|id| (id.get(), id)));
        ModelAnswer {
            verdicts: decision.verdicts.to_vec(),
            refunded: decision.refunded().get(),
            expired: decision.expired(),
        }
    }
}
