//! The seeds.

use std::fmt::Write as _;
use std::ops::Range;

use tidegate::{Clock, SystemClock};
use tidegate_model::{OnPanic, say};

use crate::faults::Fault;
use crate::mutants::Mutation;
use crate::run::{Report, Totals, digest, run};
use crate::time::BEGIN;

/// The seeds to try; one of them again with `TIDEGATE_SEED`.
fn seeds() -> Range<u64> {
    let set = |name: &str| std::env::var(name).ok();
    match set("TIDEGATE_SEED").and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => match set("TIDEGATE_SEEDS").and_then(|count| count.parse().ok()) {
            Some(count) => 0..count,
            None if set("TIDEGATE_LONG").is_some_and(|value| value == "1") => 0..200_000,
            None => 0..10_000,
        },
    }
}

#[test]
fn every_claim_holds_whatever_goes_wrong() {
    let _kept = keep_memory();
    let began = SystemClock.elapsed();
    let (mut totals, mut violations) = (Totals::default(), 0);
    for seed in seeds() {
        let _named = OnPanic(format!("TIDEGATE_SEED={seed}"));
        let report = run(seed, Mutation::Nothing);
        totals.add(&report.totals);
        if !report.violations.is_empty() || seeds().count() == 1 {
            violations += report.violations.len();
            say(&story(seed, &report));
        }
        assert!(violations < 5, "enough");
    }
    let took = SystemClock.elapsed().saturating_sub(began).get() / 1_000;
    say(&summary(&totals, violations, took));
    assert_eq!(violations, 0);
    let sources: u64 = totals.sources.values().sum();
    assert_eq!(sources, totals.decisions, "a decision without a source");
    let without = totals.given_up + totals.died + totals.errors;
    assert_eq!(totals.decisions + without, totals.requests, "a request without an end");
    if seeds().count() > 1_000 {
        for name in Fault::NAMES {
            assert!(totals.faults.contains_key(name), "{name}: never happened");
        }
        assert!(totals.full > totals.intervals / 1_000, "nobody was near a limit");
    }
}

/// In one process. In another one or two of a thousand may differ, where two keys of a `DenyCache` happen to
/// share a counter: a denial more is forgotten then, and asked for again.
#[test]
fn the_same_seed_gives_the_same_decisions() {
    let _kept = keep_memory();
    for seed in 0..200 {
        let [first, second] = [(); 2].map(|()| digest(&run(seed, Mutation::Nothing).world));
        assert_eq!(first, second, "TIDEGATE_SEED={seed}");
    }
}

/// Each has so many seeds to be found, and by the claim that it breaks.
#[test]
fn every_mutant_is_found() {
    let _kept = keep_memory();
    let mut found = Vec::new();
    for (mutation, claim) in Mutation::ALL {
        let breaks = |seed: &u64| {
            let report = run(*seed, mutation);
            report.violations.iter().any(|violation| violation.claim == claim)
        };
        let seed = (0..5_000).find(breaks);
        let seed = seed.unwrap_or_else(|| panic!("{mutation:?} does not break: {claim}"));
        found.push(format!("  {mutation:?}: {claim}: seed {seed}"));
    }
    say(&format!("mutants found:\n{}", found.join("\n")));
}

/// Layers have large tables, and every process of every history makes its own. The allocator returns them
/// to the system and asks for them again each time, which takes most of the time, unless it has seen that
/// such large pieces come and go, and somebody keeps what lies behind them.
fn keep_memory() -> Box<[u8]> {
    drop(std::hint::black_box(vec![1_u8; 30 << 20]));
    let large = std::hint::black_box(vec![1_u8; 28 << 20]);
    let behind = vec![1_u8; 1 << 10].into_boxed_slice();
    drop(large);
    behind
}

fn summary(totals: &Totals, violations: usize, millis: u64) -> String {
    let list = |counts: &std::collections::BTreeMap<&str, u64>| {
        let each: Vec<String> = counts.iter().map(|(name, n)| format!("{name} {n}")).collect();
        each.join(", ")
    };
    format!(
        "simulation: {} seeds, {} requests, {} decisions ({}), {} given up, {} died, {} errors\n  \
         faults: {}\n  circuits opened {} times, {} at most in one process\n  \
         {} store calls, {} intervals ({} full), {violations} violations, {}.{:03} s",
        seeds().count(),
        totals.requests,
        totals.decisions,
        list(&totals.sources),
        totals.given_up,
        totals.died,
        totals.errors,
        list(&totals.faults),
        totals.opened,
        totals.most_opened,
        totals.executions,
        totals.intervals,
        totals.full,
        millis / 1_000,
        millis % 1_000,
    )
}

/// What happened before the first violation; all of it if somebody asks for this very seed.
fn story(seed: u64, report: &Report) -> String {
    const LAST: usize = 40;
    let (plan, state) = (&report.world.plan, report.world.state());
    let mut story = format!(
        "seed {seed}; all of it: TIDEGATE_SEED={seed} cargo test -p tidegate --test simulation every_claim\n\
         {:?}, {:?}, clocks {:?}\n",
        plan.layers, plan.links, plan.paces
    );
    for subject in &plan.subjects {
        let limit = &subject.limit;
        let (lease, alone) = (limit.lease_size(), limit.on_store_failure());
        _ = writeln!(story, "{}: {}, {lease:?}, {alone:?}", limit.rule(), limit.limit());
    }
    let mut events: Vec<(u64, String)> = Vec::new();
    events.extend(plan.faults.iter().map(|(at, fault)| (*at, format!("FAULT {fault}"))));
    for (number, row) in state.log.rows.iter().enumerate() {
        let (kind, charges) = (&row.request.kind, &row.request.charges);
        let who = format!("request {number}, process {} ({})", row.request.node, row.life);
        events.push((row.start, format!("{who} asks {kind:?} {charges:?}")));
        if let (Some(end), Some(outcome)) = (row.end, row.outcome) {
            events.push((end, format!("{who} is told {outcome:?}")));
        }
    }
    for execution in &state.log.executions {
        let packet = &execution.packet;
        let who = format!("store: for {:?} of {}", packet.row, packet.life);
        let (op, charges) = (packet.op, &packet.charges);
        let allowed = execution.answer.as_ref().map(|d| (d.allowed(), d.remaining()));
        events.push((execution.at, format!("{who}: {op:?} {charges:?}: {allowed:?}")));
    }
    events.sort_by_key(|event| event.0);
    let first = report.violations.iter().map(|violation| violation.at).min();
    let all = seeds().count() == 1;
    let until = first.filter(|_| !all).unwrap_or(u64::MAX);
    events.retain(|(at, _)| *at <= until);
    let skipped = if all { 0 } else { events.len().saturating_sub(LAST) };
    for (at, what) in &events[skipped..] {
        _ = writeln!(story, "{:>9} {what}", at - BEGIN);
    }
    for violation in report.violations.iter().take(5) {
        _ = writeln!(story, "VIOLATION {violation}");
    }
    story
}
