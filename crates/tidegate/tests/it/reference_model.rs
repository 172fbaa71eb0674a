//! The memory engine compared with the reference model of `docs/understand/algorithms.md` on random
//! traces.
//!
//! `TIDEGATE_SEED=n` runs one trace, `TIDEGATE_LONG=1` runs 10^8 decisions.

use std::sync::Arc;

use tidegate::{Decision, EngineFuture, ManualClock, Memory};
use tidegate_model::{
    ChangeModel, EngineSystem, Profile, SharingClass, Spec, Stats, print_line, run, run_size,
};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Runs a trace of this seed.
fn trace(seed: u64, profile: Profile) -> Stats {
    let make = |specs: &[Spec]| {
        let clock = ManualClock::default();
        let memory = Memory::builder().clock(clock.clone()).build();
        let at_once = |decision: EngineFuture<'_, Decision>| decision.now();
        let system = EngineSystem::new(Arc::new(memory), clock, specs, "k".into(), at_once);
        match profile.model {
            ChangeModel::Shared(SharingClass::Calls) => system.with_limits_of_calls(specs),
            _ => system,
        }
    };
    run(seed, profile, make).unwrap_or_else(|mismatch| panic!("{mismatch}"))
}

/// Runs traces until there are so many decisions.
fn traces(what: &str, profile: Profile, wanted: u64) {
    if let Some(seed) = variable("TIDEGATE_SEED") {
        print_line(&format!("seed {seed}: {:?}", trace(seed, profile)));
        return;
    }
    let (mut stats, mut seed) = (Stats::default(), 0);
    while stats.calls < wanted {
        stats.add(&trace(seed, profile));
        seed += 1;
    }
    let Stats { calls, changes, extensions, partial_grants, .. } = stats;
    let verdicts = stats.verdicts.values().sum::<u64>();
    print_line(&format!(
        "{what}: {calls} decisions of {verdicts} verdicts in {seed} traces with {changes} changed \
         limits and {extensions} extensions and {partial_grants} partial grants, 0 mismatches"
    ));
    assert!(changes > calls / 1_000, "{changes} changes");
}

#[test]
fn memory_decides_as_the_model_does() {
    let wanted = run_size(30_000, 1_000_000, 100_000_000);
    traces("memory = model", Profile::ENGINE, wanted);
}

#[test]
fn budgets_in_long_traces_are_decided_as_the_model_does() {
    let profile = Profile { min_len: 50, ..Profile::ENGINE };
    traces("memory = model, at least 50 steps", profile, run_size(2_000, 20_000, 1_000_000));
}

#[test]
fn limits_that_come_with_calls_are_decided_as_the_model_does() {
    let model = ChangeModel::Shared(SharingClass::Calls);
    let profile = Profile { model, returns: true, ..Profile::ENGINE };
    let wanted = run_size(30_000, 300_000, 30_000_000);
    traces("memory = model, limits of calls", profile, wanted);
}

/// As long as a limit changes only after the one before it is out of use.
#[test]
fn memory_decides_as_redis_does_while_no_limit_returns() {
    let model = ChangeModel::Shared(SharingClass::Policies);
    let profile = Profile { model, ..Profile::ENGINE };
    let wanted = run_size(30_000, 300_000, 30_000_000);
    traces("memory = model of Redis", profile, wanted);
}
