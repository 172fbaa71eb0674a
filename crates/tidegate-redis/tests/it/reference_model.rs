//! The scripts against the reference model of `docs/understand/algorithms.md`, on random traces.
//!
//! `TIDEGATE_SEED=n` runs one trace, `TIDEGATE_LONG=1` runs 10^7 decisions of each algorithm.

use std::io::{Write as _, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use testkit::redis::has_functions;
use tidegate::{Decision, EngineFuture, ManualClock};
use tidegate_model::{
    ChangeModel, EngineSystem, Profile, SharingClass, Spec, Stats, run, run_size,
};
use tidegate_redis::{Redis, RedisBuilder};

/// In the year 2112 Redis's clock has used half of the range of instants. Limits flip freely.
const fn profile(class: SharingClass) -> Profile {
    let model = ChangeModel::Shared(class);
    Profile { last_instant: 1 << 52, model, returns: true, ..Profile::ENGINE }
}

/// Several threads, so that the server and not the round trip limits the run.
const THREADS: usize = 6;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Runs traces from `seeds` on, until `enough`.
fn traces(
    builder: RedisBuilder,
    class: SharingClass,
    min_len: u64,
    seeds: &AtomicU64,
    mut enough: impl FnMut(&Stats) -> bool,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = ManualClock::default();
    let builder = builder.deadline(Duration::from_secs(10));
    let engine = runtime.block_on(async { builder.test_clock(clock.clone()).build().unwrap() });
    let engine = Arc::new(engine);
    loop {
        let seed = seeds.fetch_add(1, Ordering::Relaxed);
        let make = |specs: &[Spec]| {
            let wait = |decision: EngineFuture<'_, Decision>| runtime.block_on(decision);
            let key = format!("trace-{seed}");
            let system = EngineSystem::new(engine.clone(), clock.clone(), specs, key, wait);
            match class {
                SharingClass::Policies => system,
                SharingClass::Calls => system.with_limits_of_calls(specs),
            }
        };
        let profile = Profile { min_len, ..profile(class) };
        let stats = run(seed, profile, make).unwrap_or_else(|mismatch| panic!("{mismatch}"));
        if enough(&stats) {
            return;
        }
    }
}

/// About 3,300 traces.
#[test]
fn the_scripts_decide_as_the_model_does() {
    compare_each(SharingClass::Policies, run_size(10_000, 10_000, 10_000_000));
}

/// Traces beyond those of a short run, each of which once differed after a clock step back. 5698
/// and 18459: a limit got an entry under which nothing was used any more, and its usage was stored.
/// In 17925 the sub-windows of a limit that counts nothing moved those of another.
#[test]
fn long_traces_with_clock_steps_are_decided_as_the_model_does() {
    let server = testkit::redis::RedisServer::start();
    for seed in [5_698, 17_925, 18_459] {
        let (builder, min_len) = (Redis::builder(&server.url()), Profile::ENGINE.min_len);
        traces(builder, SharingClass::Policies, min_len, &AtomicU64::new(seed), |_| true);
    }
}

#[test]
fn limits_that_come_with_calls_are_decided_as_the_model_does() {
    compare_each(SharingClass::Calls, run_size(10_000, 10_000, 1_000_000));
}

#[test]
fn budgets_in_long_traces_are_decided_as_the_model_does() {
    let wanted = run_size(2_500, 5_000, 1_000_000);
    compare(SharingClass::Policies, 50, |all| all.calls >= wanted);
}

/// Traces beyond those of a short run: a hold on a log was charged to no limit if it ended during a
/// call under a limit of 0.
#[test]
fn budgets_of_logs_beside_a_limit_of_zero_are_decided_as_the_model_does() {
    let server = testkit::redis::RedisServer::start();
    for seed in [4_251, 4_764, 5_699] {
        let builder = Redis::builder(&server.url());
        traces(builder, SharingClass::Policies, 50, &AtomicU64::new(seed), |_| true);
    }
}

/// Compares so many verdicts of each algorithm.
fn compare_each(class: SharingClass, wanted: u64) {
    // Only direct callers of the core can use made-up time zones.
    compare(class, Profile::ENGINE.min_len, |all| {
        all.verdicts.len() >= 11 && all.verdicts.values().all(|count| *count >= wanted)
    });
}

/// Compares traces of at least so many calls, until `enough`.
fn compare(class: SharingClass, min_len: u64, enough: impl Fn(&Stats) -> bool + Sync) {
    let server = testkit::redis::RedisServer::start();
    let url = server.url();
    if let Some(seed) = variable("TIDEGATE_SEED") {
        return traces(Redis::builder(&url), class, min_len, &AtomicU64::new(seed), |_| true);
    }
    let (seeds, all) = (AtomicU64::new(0), Mutex::new(Stats::default()));
    // The general script is a function for one half of the threads, and a script for the other.
    let work = &|thread: usize| {
        let builder = Redis::builder(&url);
        let builder = if thread.is_multiple_of(2) { builder } else { builder.test_no_functions() };
        traces(builder, class, min_len, &seeds, |stats| {
            let mut all = all.lock().unwrap();
            all.add(stats);
            enough(&all)
        });
    };
    std::thread::scope(|scope| {
        (0..THREADS).for_each(|thread| drop(scope.spawn(move || work(thread))));
    });
    assert!(server.calls("fcall") > 0 || !has_functions(&server));
    let all = all.into_inner().unwrap();
    let mut err = stderr().lock();
    for (name, count) in &all.verdicts {
        writeln!(err, "scripts = model, {class:?}: {name}: {count} verdicts, 0 mismatches")
            .unwrap();
    }
    let Stats { calls, changes, extensions, partial_grants, .. } = all;
    let traces = seeds.into_inner();
    writeln!(
        err,
        "scripts = model, {class:?}: {calls} decisions in {traces} traces with {changes} changed \
         limits and {extensions} extensions and {partial_grants} partial grants, 0 mismatches"
    )
    .unwrap();
    assert!(changes > calls / 100, "{changes} changes");
    assert!(extensions > calls / 200, "{extensions} extensions");
    assert!(partial_grants > calls / 1_000, "{partial_grants} partial grants");
}
