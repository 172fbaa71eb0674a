//! The memory engine against the reference model of `docs/arithmetic.md`, on random traces.
//!
//! `TIDEGATE_SEED=n` runs one trace, `TIDEGATE_LONG=1` runs 10^8 decisions.

use std::io::{Write as _, stderr};
use std::sync::Arc;

use tidegate::{Answer, Decision, ManualClock, Memory};
use tidegate_model::{Profile, Spec, Stats, UnderTest, run};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn memory_decides_as_the_model_does() {
    let run = |seed| {
        let make = |specs: &[Spec]| {
            let clock = ManualClock::default();
            let memory = Memory::builder().clock(clock.clone()).build();
            let at_once = |answer: Answer<'_, Decision>| answer.now();
            UnderTest::new(Arc::new(memory), clock, specs, "k".into(), at_once)
        };
        run(seed, Profile::ENGINE, make).unwrap_or_else(|mismatch| panic!("{mismatch}"))
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
    let (mut stats, mut seed) = (Stats::default(), 0);
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
