//! The scripts against the reference model of `docs/arithmetic.md`, on random traces.
//!
//! `TIDEGATE_SEED=n` runs one trace, `TIDEGATE_LONG=1` runs 10^7 decisions of each algorithm.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/server.rs"]
mod server;

use std::io::{Write as _, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Answer, Decision, ManualClock};
use tidegate_model::{Profile, Spec, Stats, UnderTest, run};
use tidegate_redis::Redis;

/// Redis's clock has half of the range of instants behind it in the year 2112. Under another limit,
/// nothing is written before something is charged.
const PROFILE: Profile = Profile {
    last_instant: 1 << 52,
    changes_are_charged: true,
    calendars_with_holds: false,
    ..Profile::ENGINE
};
/// Several at a time, so that the server and not the way to it is what limits the run.
const THREADS: usize = 6;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Runs traces from `seeds` on, until `enough`.
fn traces(url: &str, seeds: &AtomicU64, mut enough: impl FnMut(&Stats) -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = ManualClock::default();
    let builder = Redis::builder(url).deadline(Duration::from_secs(10));
    let engine = runtime.block_on(async { builder.test_clock(clock.clone()).build().unwrap() });
    let engine = Arc::new(engine);
    loop {
        let seed = seeds.fetch_add(1, Ordering::Relaxed);
        let make = |specs: &[Spec]| {
            let wait = |answer: Answer<'_, Decision>| runtime.block_on(answer);
            UnderTest::new(engine.clone(), clock.clone(), specs, format!("trace-{seed}"), wait)
        };
        let stats = run(seed, PROFILE, make).unwrap_or_else(|mismatch| panic!("{mismatch}"));
        if enough(&stats) {
            return;
        }
    }
}

#[test]
fn the_scripts_decide_as_the_model_does() {
    let server = server::Server::start();
    let url = server.url();
    if let Some(seed) = variable("TIDEGATE_SEED") {
        return traces(&url, &AtomicU64::new(seed), |_| true);
    }
    let long = variable("TIDEGATE_LONG") == Some(1);
    let wanted = if long { 10_000_000 } else { 100_000 };
    let (seeds, all) = (AtomicU64::new(0), Mutex::new(Stats::default()));
    let work = || {
        traces(&url, &seeds, |stats| {
            let mut all = all.lock().unwrap();
            all.add(stats);
            // Made-up zones are for callers of the core alone.
            all.verdicts.len() >= 11 && all.verdicts.values().all(|count| *count >= wanted)
        });
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let all = all.into_inner().unwrap();
    let mut err = stderr().lock();
    for (name, count) in &all.verdicts {
        writeln!(err, "scripts = model: {name}: {count} verdicts, 0 mismatches").unwrap();
    }
    let (calls, traces) = (all.calls, seeds.into_inner());
    writeln!(err, "scripts = model: {calls} decisions in {traces} traces, 0 mismatches").unwrap();
}
