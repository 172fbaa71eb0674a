//! The tests: all seeds, determinism, and the broken layers.

use std::fmt::Write as _;
use std::ops::Range;

use tidegate::{Clock, SystemClock};
use tidegate_model::{PrintOnPanic, print_line, run_size};

use crate::fault_simulation::broken_layers::Mutation;
use crate::fault_simulation::faults::Fault;
use crate::fault_simulation::run::{Report, Totals, digest, run};
use crate::fault_simulation::time::BEGIN;

/// The seeds to run; `TIDEGATE_SEED` selects one.
fn seeds() -> Range<u64> {
    let set = |name: &str| std::env::var(name).ok();
    match set("TIDEGATE_SEED").and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => match set("TIDEGATE_SEEDS").and_then(|count| count.parse().ok()) {
            Some(count) => 0..count,
            None => 0..run_size(10_000, 10_000, 200_000),
        },
    }
}

#[test]
fn every_claim_holds_under_faults() {
    let _kept = keep_memory();
    let began = SystemClock.elapsed();
    let (mut totals, mut violations) = (Totals::default(), 0);
    for seed in seeds() {
        let _named = PrintOnPanic(format!("TIDEGATE_SEED={seed}"));
        let report = run(seed, Mutation::Nothing);
        totals.add(&report.totals);
        if !report.violations.is_empty() || seeds().count() == 1 {
            violations += report.violations.len();
            print_line(&event_report(seed, &report));
        }
        assert!(violations < 5, "enough");
    }
    let took = SystemClock.elapsed().saturating_sub(began).get() / 1_000;
    print_line(&summary(&totals, violations, took));
    assert_eq!(violations, 0);
    let sources: u64 = totals.sources.values().sum();
    assert_eq!(sources, totals.decisions, "a decision without a source");
    let without = totals.given_up + totals.died + totals.errors;
    assert_eq!(totals.decisions + without, totals.requests, "a request without an end");
    if seeds().count() > 1_000 {
        for name in Fault::NAMES {
            assert!(totals.faults.contains_key(name), "{name}: never happened");
        }
        assert!(totals.full > totals.intervals / 1_000, "too few intervals reached the bound");
    }
}

/// In one process. Between processes, one or two of a thousand may differ, where two keys of a
/// `DenyCache` share a counter. One more denial is then dropped, and the store is called again.
#[test]
fn the_same_seed_gives_the_same_decisions() {
    let _kept = keep_memory();
    for seed in 0..200 {
        let [first, second] = [(); 2].map(|()| digest(&run(seed, Mutation::Nothing).world));
        assert_eq!(first, second, "TIDEGATE_SEED={seed}");
    }
}

/// Each bug must be found within so many seeds, by the claim that it breaks.
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
    print_line(&format!("mutants found:\n{}", found.join("\n")));
}

/// Layers have large tables, and every process of every history builds its own. The allocator
/// returns such memory to the system each time, which dominates the run time. Freeing one large
/// block raises its threshold for that, and a small block above it keeps the heap from shrinking.
fn keep_memory() -> Box<[u8]> {
    drop(std::hint::black_box(vec![1_u8; 30 << 20]));
    let large = std::hint::black_box(vec![1_u8; 28 << 20]);
    let kept = vec![1_u8; 1 << 10].into_boxed_slice();
    drop(large);
    kept
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
        totals.max_opened,
        totals.executions,
        totals.intervals,
        totals.full,
        millis / 1_000,
        millis % 1_000,
    )
}

/// The events before the first violation; all events if `TIDEGATE_SEED` is set.
fn event_report(seed: u64, report: &Report) -> String {
    const LAST: usize = 40;
    let (plan, state) = (&report.world.plan, report.world.state());
    let mut event_report = format!(
        "seed {seed}; all of it: TIDEGATE_SEED={seed} cargo test -p tidegate --test it fault_simulation\n\
         {:?}, {:?}, clocks {:?}\n",
        plan.layers, plan.links, plan.paces
    );
    for subject in &plan.subjects {
        let limit = &subject.limit;
        let (lease, alone) = (limit.lease_size(), limit.on_store_failure());
        _ = writeln!(event_report, "{}: {}, {lease:?}, {alone:?}", limit.rule(), limit.limit());
    }
    let mut events: Vec<(u64, String)> = Vec::new();
    events.extend(plan.faults.iter().map(|(at, fault)| (*at, format!("FAULT {fault}"))));
    for (number, row) in state.log.rows.iter().enumerate() {
        let (kind, charges) = (&row.request.kind, &row.request.charges);
        let label = format!("request {number}, process {} ({})", row.request.node, row.incarnation);
        events.push((row.start, format!("{label}: {kind:?} {charges:?}")));
        if let (Some(end), Some(outcome)) = (row.end, row.outcome) {
            events.push((end, format!("{label} ends: {outcome:?}")));
        }
    }
    for execution in &state.log.executions {
        let packet = &execution.packet;
        let label = format!("store: for {:?} of {}", packet.row, packet.incarnation);
        let (op, charges) = (packet.op, &packet.charges);
        let allowed = execution.reply.as_ref().map(|d| (d.allowed(), d.remaining()));
        events.push((execution.at, format!("{label}: {op:?} {charges:?}: {allowed:?}")));
    }
    events.sort_by_key(|event| event.0);
    let first = report.violations.iter().map(|violation| violation.at).min();
    let all = seeds().count() == 1;
    let until = first.filter(|_| !all).unwrap_or(u64::MAX);
    events.retain(|(at, _)| *at <= until);
    let skipped = if all { 0 } else { events.len().saturating_sub(LAST) };
    for (at, what) in &events[skipped..] {
        _ = writeln!(event_report, "{:>9} {what}", at - BEGIN);
    }
    for violation in report.violations.iter().take(5) {
        _ = writeln!(event_report, "VIOLATION {violation}");
    }
    event_report
}
