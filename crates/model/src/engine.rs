//! An engine as a system under test.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::{
    Charge, Cost, Decision, Engine, EngineError, HoldId, Key, ManualClock, Micros, Rule, RuleLimit,
};

use crate::{Answer, Call, Op, Part, Profile, Spec, Subject};

/// An engine around a clock that the trace turns. Every cell is a rule of its own.
pub struct UnderTest<W> {
    clock: ManualClock,
    engine: Arc<dyn Engine>,
    limits: Vec<Arc<RuleLimit>>,
    /// Keeps this trace apart from others on the same store.
    key: String,
    made: HashMap<u128, HoldId>,
    wait: W,
}

impl Profile {
    /// What an engine can be asked: holds have a longest life, concurrency is only held, zones are
    /// real ones, and a state that has recovered may be forgotten.
    pub const ENGINE: Self = Self {
        max_ttl: HoldId::MAX_TTL.get(),
        remembers: HoldId::REMEMBERED.get(),
        concurrency_is_charged: false,
        zones: false,
        forgets: true,
        // At the very end of time a hold could not be remembered for an hour.
        last_instant: Micros::MAX.get() - 4 * HoldId::REMEMBERED.get(),
        ..Self::EVERYTHING
    };
}

impl<W> UnderTest<W>
where
    W: Fn(tidegate::Answer<'_, Decision>) -> Result<Decision, EngineError>,
{
    /// The engine, its clock, the limits of the cells, and how to wait for an answer.
    pub fn new(
        engine: Arc<dyn Engine>,
        clock: ManualClock,
        specs: &[Spec],
        key: String,
        wait: W,
    ) -> Self {
        let limits = specs.iter().enumerate().map(|(i, spec)| limit(i, spec)).collect();
        Self { clock, engine, limits, key, made: HashMap::new(), wait }
    }

    fn decide(&self, op: tidegate::Op, parts: &[Part]) -> Result<Decision, EngineError> {
        let charge = |part: &Part| Charge {
            limit: &self.limits[part.cell],
            key: Key::from(&*self.key),
            cost: Cost::total(part.cost),
            who: None,
        };
        let charges: Vec<Charge<'_>> = parts.iter().map(charge).collect();
        let call = tidegate::Call { op, charges: &charges, once: None };
        let decision = (self.wait)(self.engine.decide(call))?;
        let held = charges.iter().any(|charge| op.sets_aside(charge.limit.limit()));
        assert_eq!(decision.hold().is_some(), held && decision.allowed(), "{op:?}: {decision:?}");
        Ok(decision)
    }
}

fn limit(cell: usize, spec: &Spec) -> Arc<RuleLimit> {
    let limit = spec.limit().expect("a good limit");
    let rule = Rule::new(&format!("cell-{cell}"), [limit]).expect("a good rule");
    rule.limits()[0].clone()
}

impl<W> Subject for UnderTest<W>
where
    W: Fn(tidegate::Answer<'_, Decision>) -> Result<Decision, EngineError>,
{
    fn apply(&mut self, call: &Call) -> Answer {
        self.clock.set(Micros::new(call.now));
        let parts = &call.parts;
        let decision = match call.op {
            Op::Check => self.decide(tidegate::Op::Check, parts),
            Op::Peek => self.decide(tidegate::Op::Peek, parts),
            Op::Record => self.decide(tidegate::Op::Record, parts),
            Op::Refund => self.decide(tidegate::Op::Refund, parts),
            Op::Reset => self.decide(tidegate::Op::Reset, parts),
            Op::Hold { id, ttl, expiry } => {
                let (id, ttl) = (id.into(), Micros::new(ttl));
                self.decide(tidegate::Op::Hold { id, ttl, expiry }, parts)
            }
            Op::Enter { id, ttl } => {
                let (id, ttl) = (id.into(), Micros::new(ttl));
                self.decide(tidegate::Op::Enter { id, ttl }, parts)
            }
            Op::Settle { id, cost, .. } => {
                let cost = cost.map(Cost::total);
                self.decide(tidegate::Op::Settle { id: self.made[&id], cost }, &[])
            }
            Op::Renew { id, ttl } => {
                let ttl = Micros::new(ttl);
                self.decide(tidegate::Op::Renew { id: self.made[&id], ttl }, &[])
            }
            Op::Change(spec) => {
                let cell = parts[0].cell;
                self.limits[cell] = limit(cell, &spec);
                self.decide(tidegate::Op::Peek, parts)
            }
        };
        let decision = decision.unwrap_or_else(|error| panic!("{call:?}: {error}"));
        self.made.extend(decision.hold().map(|id| (id.get(), id)));
        Answer {
            verdicts: decision.verdicts.to_vec(),
            refunded: decision.refunded().get(),
            expired: decision.expired(),
        }
    }
}
