//! An engine as a system under test.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::{
    Charge, Cost, Costs, Decision, Engine, EngineError, Expiry, Extension, HoldId, HoldKind,
    HoldSpec, Key, ManualClock, Micros, OnReserve, Quantity, Refusal, Rule, RuleCost, RuleLimit,
    SettledCost, UnitCharge, UnitCost,
};

use crate::{
    CellUses, MAX_CELLS, ModelAnswer, ModelCall, ModelCharge, ModelOp, ModelQuantity, ModelSettled,
    Profile, SharingClass, Spec, System,
};

/// An engine with a clock that the trace sets. Every cell is a rule.
pub struct EngineSystem<W> {
    clock: ManualClock,
    engine: Arc<dyn Engine>,
    limits: Vec<CellLimits>,
    /// Separates this trace from others on the same store.
    key: String,
    made: HashMap<u128, HoldId>,
    class: SharingClass,
    wait: W,
}

impl Profile {
    /// What an engine supports: holds have a longest TTL, concurrency is only held, holds can be
    /// extended, zones are real ones, and a state that has recovered may be forgotten.
    pub const ENGINE: Self = Self {
        max_ttl: HoldId::MAX_TTL.get(),
        remembers: HoldId::RETENTION.get(),
        concurrency_is_charged: false,
        extends: true,
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
        let limits = specs.iter().enumerate().map(|(i, spec)| limits(i, spec, class)).collect();
        Self { clock, engine, limits, key, made: HashMap::new(), class, wait }
    }

    /// The same with limits that come with calls.
    #[must_use]
    pub fn with_limits_of_calls(mut self, specs: &[Spec]) -> Self {
        self.class = SharingClass::Calls;
        let limits = specs.iter().enumerate().map(|(i, spec)| limits(i, spec, self.class));
        self.limits = limits.collect();
        self
    }

    /// The charges of a quantity. All limits of a cell have one state.
    fn units<'a>(&'a self, quantity: &ModelQuantity, key: Key<'a>) -> Vec<UnitCharge<'a>> {
        let cells = self.limits.iter().zip(quantity.per_unit);
        let units = cells.filter_map(|(limits, per_unit)| {
            let (num, den) = per_unit?;
            let per_unit = UnitCost::new(num, den).expect("a denominator in range");
            Some(UnitCharge { state: limits.released.state(), key, per_unit })
        });
        units.collect()
    }

    fn hold(
        &self,
        op: ModelOp,
        parts: &[ModelCharge],
        key: Key<'_>,
    ) -> Result<Decision, EngineError> {
        let ModelOp::Hold { id, ttl, uses, quantity } = op else { panic!("{op:?} is no hold") };
        let (id, ttl) = (id.into(), Micros::new(ttl));
        // The request can ask for it, or each rule.
        let is_charging = |part: &ModelCharge| uses[part.cell] == Some(Expiry::Charge);
        let (expiry, uses) = match parts.iter().all(is_charging) {
            true => (Expiry::Charge, ALL_HELD),
            false => (Expiry::Release, uses),
        };
        let units = quantity.map_or_else(Vec::new, |quantity| self.units(&quantity, key));
        let quantity = quantity.map(|quantity| Quantity {
            min: Cost::total(quantity.min),
            want: Cost::total(quantity.want),
            charges: &units,
        });
        let (kind, quantity) = (HoldKind::Reservation, quantity.as_ref());
        let hold = HoldSpec { id, ttl, expiry, kind, quantity };
        self.decide(tidegate::Op::Hold(hold), uses, parts)
    }

    fn decide(
        &self,
        op: tidegate::Op<'_>,
        uses: CellUses,
        parts: &[ModelCharge],
    ) -> Result<Decision, EngineError> {
        let charge = |part: &ModelCharge| Charge {
            limit: self.limits[part.cell].of(uses[part.cell]),
            key: Key::from(&*self.key),
            cost: Cost::total(part.cost),
            caller: None,
        };
        let charges: Vec<Charge<'_>> = parts.iter().map(charge).collect();
        let call = tidegate::Call { op, charges: &charges, idempotency_key: None };
        let decision = (self.wait)(self.engine.decide(call))?;
        let held = charges.iter().any(|charge| op.holds(charge.limit));
        assert_eq!(decision.hold().is_some(), held && decision.allowed(), "{op:?}: {decision:?}");
        Ok(decision)
    }
}

/// The limit of a cell, as rules that differ in what a reservation does with them.
struct CellLimits {
    released: Arc<RuleLimit>,
    charging: Arc<RuleLimit>,
    charged: Arc<RuleLimit>,
}

impl CellLimits {
    fn of(&self, held: Option<Expiry>) -> &Arc<RuleLimit> {
        match held {
            Some(Expiry::Release) => &self.released,
            Some(Expiry::Charge) => &self.charging,
            None => &self.charged,
        }
    }
}

/// No cell is charged when a hold is made.
const ALL_HELD: CellUses = [Some(Expiry::Release); MAX_CELLS];

fn name_of(cell: usize) -> String {
    format!("cell-{cell}")
}

fn names() -> [String; MAX_CELLS] {
    std::array::from_fn(name_of)
}

/// The costs of these rules, with or without their key.
fn rule_costs<'a>(
    id: u128,
    names: &'a [String],
    key: Key<'a>,
    costs: [Option<u64>; MAX_CELLS],
) -> Vec<RuleCost<'a>> {
    let key = id.is_multiple_of(2).then_some(key);
    let each = names.iter().zip(costs).filter_map(|(rule, cost)| {
        Some(RuleCost { rule, key, cost: Cost::total(cost?), if_held: false })
    });
    each.collect()
}

/// These costs of a hold of so many cells, in the shortest form.
fn costs_of<'a>(each: &'a [RuleCost<'a>], cells: usize) -> Costs<'a> {
    let is_cancel = each.len() == cells && each.iter().all(|cost| cost.cost.is_zero());
    match each {
        [] => Costs::AsHeld,
        [only] if cells == 1 => Costs::All(only.cost),
        [first, ..] if is_cancel => Costs::All(first.cost),
        each => Costs::Each(each),
    }
}

fn limits(cell: usize, spec: &Spec, class: SharingClass) -> CellLimits {
    let rule = || {
        let limit = spec.limit().expect("a valid limit");
        let rule = match class {
            SharingClass::Policies => Rule::new(&name_of(cell), [limit]),
            SharingClass::Calls => Rule::per_call(&name_of(cell), [limit]),
        };
        rule.expect("a valid rule")
    };
    let first = |rule: Rule| rule.limits()[0].clone();
    CellLimits {
        released: first(rule()),
        charging: first(rule().on_expiry(Expiry::Charge)),
        charged: first(rule().on_reserve(OnReserve::Charge)),
    }
}

fn settled(cost: &SettledCost) -> ModelSettled {
    ModelSettled {
        reserved: cost.reserved.get(),
        charged: cost.charged.get(),
        uncharged: cost.uncharged.get(),
    }
}

impl<W> System for EngineSystem<W>
where
    W: Fn(tidegate::EngineFuture<'_, Decision>) -> Result<Decision, EngineError>,
{
    fn apply(&mut self, call: &ModelCall) -> ModelAnswer {
        self.clock.set(Micros::new(call.now));
        let parts = &call.parts;
        let key = self.key.clone();
        let key = Key::from(&*key);
        let decision = match call.op {
            ModelOp::Check => self.decide(tidegate::Op::Check, ALL_HELD, parts),
            ModelOp::Peek => self.decide(tidegate::Op::Peek, ALL_HELD, parts),
            ModelOp::Record => self.decide(tidegate::Op::Record, ALL_HELD, parts),
            ModelOp::Refund => self.decide(tidegate::Op::Refund, ALL_HELD, parts),
            ModelOp::Reset => self.decide(tidegate::Op::Reset, ALL_HELD, parts),
            ModelOp::Hold { .. } => self.hold(call.op, parts, key),
            ModelOp::Enter { id, ttl } => {
                let (id, ttl) = (id.into(), Micros::new(ttl));
                self.decide(tidegate::Op::enter(id, ttl), ALL_HELD, parts)
            }
            ModelOp::Settle { id, costs, .. } => {
                let names = names();
                let each = rule_costs(id, &names, key, costs);
                let costs = costs_of(&each, parts.len());
                let op = tidegate::Op::Settle { id: self.made[&id], costs };
                self.decide(op, ALL_HELD, &[])
            }
            ModelOp::Renew { id, ttl, .. } => {
                let ttl = Micros::new(ttl);
                let op = tidegate::Op::Renew { id: self.made[&id], ttl };
                self.decide(op, ALL_HELD, &[])
            }
            ModelOp::Extend { id, totals, min, ttl, .. } => {
                let names = names();
                let totals = &rule_costs(id, &names, key, totals);
                let (min, ttl) = (min.map(Cost::total), ttl.map(Micros::new));
                let to = Extension { totals, min, ttl };
                let op = tidegate::Op::Extend { id: self.made[&id], to };
                self.decide(op, ALL_HELD, &[])
            }
            ModelOp::Change(spec) => {
                let cell = parts[0].cell;
                self.limits[cell] = limits(cell, &spec, self.class);
                self.decide(tidegate::Op::Peek, ALL_HELD, parts)
            }
            ModelOp::Swap(spec) => {
                let cell = parts[0].cell;
                self.limits[cell] = limits(cell, &spec, self.class);
                return ModelAnswer::default();
            }
        };
        if let Err(EngineError::Refused(Refusal::HoldExpired)) = decision {
            return ModelAnswer { expired: true, ..ModelAnswer::default() };
        }
        let decision = decision.unwrap_or_else(|error| panic!("{call:?}: {error}"));
        self.made.extend(decision.hold().map(|id| (id.get(), id)));
        ModelAnswer {
            verdicts: decision.verdicts.to_vec(),
            refunded: decision.refunded().get(),
            expired: decision.expired(),
            settled: decision.settled().iter().map(settled).collect(),
            reserved: decision.reserved().iter().map(|cost| cost.get()).collect(),
            granted: decision.granted().map(Cost::get),
        }
    }
}
