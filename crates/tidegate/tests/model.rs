//! The memory engine against the reference model of `docs/arithmetic.md`, on random traces.
//!
//! `TIDEGATE_SEED=n` runs one trace, `TIDEGATE_LONG=1` runs 10^8 decisions.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{Write as _, stderr};
use std::sync::Arc;

use tidegate::{
    Call, Charge, Cost, Decision, Engine, EngineError, HoldId, Key, ManualClock, Memory, Micros,
    Op, Rule, RuleLimit,
};
use tidegate_model as model;

/// Every cell is a rule of its own.
struct UnderTest {
    clock: ManualClock,
    memory: Memory,
    limits: Vec<Arc<RuleLimit>>,
}

impl UnderTest {
    fn new(specs: &[model::Spec]) -> Self {
        let clock = ManualClock::default();
        let memory = Memory::builder().clock(clock.clone()).build();
        let limits = specs.iter().enumerate().map(|(i, spec)| limit(i, spec)).collect();
        Self { clock, memory, limits }
    }

    fn decide(&self, op: Op, parts: &[model::Part]) -> Result<Decision, EngineError> {
        let charges: Vec<Charge<'_>> = parts
            .iter()
            .map(|part| Charge {
                limit: &self.limits[part.cell],
                key: Key::from("k"),
                cost: Cost::new(part.cost).unwrap(),
                who: None,
            })
            .collect();
        self.memory.decide(Call { op, charges: &charges, once: None }).now()
    }
}

fn limit(cell: usize, spec: &model::Spec) -> Arc<RuleLimit> {
    let rule = Rule::new(&format!("cell-{cell}"), [spec.limit().unwrap()]).unwrap();
    rule.limits()[0].clone()
}

impl model::Subject for UnderTest {
    fn apply(&mut self, call: &model::Call) -> model::Answer {
        self.clock.set(Micros::new(call.now));
        let parts = &call.parts;
        let decision = match call.op {
            model::Op::Check => self.decide(Op::Check, parts),
            model::Op::Peek => self.decide(Op::Peek, parts),
            model::Op::Record => self.decide(Op::Record, parts),
            model::Op::Refund => self.decide(Op::Refund, parts),
            model::Op::Reset => self.decide(Op::Reset, parts),
            model::Op::Hold { id, ttl, expiry } => {
                self.decide(Op::Hold { id: id.into(), ttl: Micros::new(ttl), expiry }, parts)
            }
            model::Op::Settle { id, cost, .. } => {
                let cost = cost.map(|cost| Cost::new(cost).unwrap());
                self.decide(Op::Settle { id: id.into(), cost }, &[])
            }
            model::Op::Renew { id, ttl } => {
                self.decide(Op::Renew { id: id.into(), ttl: Micros::new(ttl) }, &[])
            }
            model::Op::Change(spec) => {
                let cell = parts[0].cell;
                self.limits[cell] = limit(cell, &spec);
                self.decide(Op::Peek, parts)
            }
        };
        let decision = decision.unwrap_or_else(|error| panic!("{call:?}: {error}"));
        model::Answer {
            verdicts: decision.verdicts.to_vec(),
            refunded: decision.refunded.get(),
            expired: decision.expired,
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn memory_decides_as_the_model_does() {
    let profile = model::Profile {
        max_ttl: HoldId::MAX_TTL.get(),
        remembers: HoldId::REMEMBERED.get(),
        concurrency_is_charged: false,
        changes_with_holds: false,
        zones: false,
        forgets: true,
        // At the very end of time a hold could not be remembered for an hour.
        last_instant: Micros::MAX.get() - 4 * HoldId::REMEMBERED.get(),
        ..model::Profile::EVERYTHING
    };
    let run = |seed| match model::run(seed, profile, UnderTest::new) {
        Ok(stats) => stats,
        Err(mismatch) => panic!("{mismatch}"),
    };
    if let Some(seed) = variable("TIDEGATE_SEED") {
        writeln!(stderr(), "seed {seed}: {:?}", run(seed)).unwrap();
        return;
    }
    let wanted = match (variable("TIDEGATE_MUTANTS"), variable("TIDEGATE_LONG")) {
        (Some(1), _) => 30_000,
        (_, Some(1)) => 100_000_000,
        _ => 1_000_000,
    };
    let (mut stats, mut seed) = (model::Stats::default(), 0);
    while stats.calls < wanted {
        stats.add(&run(seed));
        seed += 1;
    }
    let (calls, verdicts) = (stats.calls, stats.verdicts.values().sum::<u64>());
    writeln!(
        stderr(),
        "memory = model: {calls} decisions of {verdicts} verdicts in {seed} traces, 0 mismatches"
    )
    .unwrap();
}
