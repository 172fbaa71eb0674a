//! Random traffic from processes that die, on links that lose calls and replies.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Call, Engine, Op, Rule};
use tidegate_model::{PrintOnPanic, TraceRng, print_line, run_size};

use super::bound::{Case, LIMIT_FAMILIES};
use super::cluster_of_processes::{LeaseCluster, Node, Quality, charge, run};

/// The seeds to run; `TIDEGATE_SEED` selects one.
fn seeds() -> Range<u64> {
    let set = |name: &str| std::env::var(name).ok();
    match set("TIDEGATE_SEED").and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        // Fewer do not reach every bound.
        None => 0..run_size(30, 30, 500).max(10),
    }
}

#[derive(Default)]
struct Totals {
    intervals: u64,
    full: u64,
    checks: u64,
    local: u64,
    denials: u64,
    admitted: u64,
    deaths: u64,
    calls: u64,
}

/// One history of one to four processes.
async fn run_history(case: &Case, rng: &mut TraceRng, totals: &mut Totals) {
    let cluster = LeaseCluster::new(case.limits.clone());
    let quality = Quality {
        latency: rng.pick(&[0, 1_000, 20_000]),
        loses_one_in: rng.pick(&[0, 0, 7, 40]),
        drift: rng.pick(&[0, 10, 100]),
    };
    let count = rng.between(1, 4);
    let mut nodes: Vec<Arc<Node>> =
        (0..count).map(|_| Arc::new(Node::new(&cluster, quality, rng.any()))).collect();
    // Index of the limit that each process knows.
    let mut known_limit = vec![0; nodes.len()];
    let mut changed = (0, 0);
    let rule = Rule::new("other", ["50/s".parse().unwrap()]).unwrap();
    let other = &rule.limits()[0];
    let denials: Arc<AtomicU64> = Arc::default();
    let mut paused = false;
    let steps = 700;
    for step in 0..steps {
        let node_index = usize::try_from(rng.below(nodes.len() as u64)).unwrap();
        let newest = step * case.limits.len() / steps;
        if newest != changed.0 {
            changed = (newest, cluster.now());
        }
        // Some processes learn of the change late, but not after the loans of the old limit have
        // ended. A process with an old limit and a recovered key would make the old limit active
        // again.
        if rng.one_in(10) || cluster.now() - changed.1 > 1_000_000 {
            known_limit[node_index] = newest;
        }
        let limit = case.limits[known_limit[node_index]].clone();
        let burst = if rng.one_in(30) { rng.magnitude(200) } else { rng.below(6) };
        for _ in 0..burst {
            let cost = if rng.one_in(8) { rng.magnitude(40) } else { 1 };
            let both = rng.one_in(6).then(|| format!("call {}", totals.checks));
            totals.checks += 1;
            let (node, cluster, limit) =
                (nodes[node_index].clone(), cluster.clone(), limit.clone());
            let (denials, other) = (denials.clone(), other.clone());
            tokio::spawn(async move {
                let result = match both {
                    Some(name) => node.check_both(&cluster, &limit, &other, (&name, cost)).await,
                    None => node.check(&cluster, &limit, cost).await,
                };
                denials.fetch_add(u64::from(result.is_ok_and(|d| !d.allowed())), Ordering::Relaxed);
            });
        }
        if rng.one_in(300) || paused && rng.one_in(2) {
            // A burst of all processes for the whole capacity.
            let part = limit.limit().capacity().div_ceil(20);
            for node in nodes.iter().flat_map(|node| [node; 20]) {
                for cost in [part, part / 7 + 1, 1, 1] {
                    let (node, cluster, limit) = (node.clone(), cluster.clone(), limit.clone());
                    tokio::spawn(async move { drop(node.check(&cluster, &limit, cost).await) });
                }
            }
        }
        let op = match rng.below(200) {
            0 => Some(Op::Refund),
            1 => Some(Op::Record),
            _ => None,
        };
        if let Some(op) = op {
            let (node, cost) = (nodes[node_index].clone(), rng.magnitude(100));
            tokio::spawn(async move {
                let charges = [charge(&limit, "k", cost)];
                drop(
                    node.lease.decide(Call { op, charges: &charges, idempotency_key: None }).await,
                );
            });
        }
        if rng.one_in(200) {
            let fresh = Arc::new(Node::new(&cluster, quality, rng.any()));
            let old = std::mem::replace(&mut nodes[node_index], fresh);
            totals.calls += old.calls();
            totals.deaths += 1;
            old.kill();
        }
        let span = match rng.below(100) {
            0 => rng.between(1, 3_000_000),
            1..30 => 0,
            30..35 => rng.magnitude(100_000),
            _ => rng.between(1, 3_000),
        };
        paused = span > 300_000;
        cluster.pass(Duration::from_micros(span)).await;
    }
    for node in &nodes {
        totals.calls += node.calls();
        let closing = node.clone();
        let closed = tokio::spawn(async move { closing.lease.close().await });
        cluster.pass(Duration::from_secs(4)).await;
        assert!(closed.is_finished(), "a process does not close");
        assert_eq!(node.unspent(), 0, "something is still borrowed");
    }
    // After a minute and the time of a debt, every permit has recovered.
    cluster.pass(Duration::from_secs(60)).await;
    let limit = &case.limits[case.limits.len() - 1];
    let standing = cluster.store.inspect(limit, "k".into()).now().unwrap().standing;
    assert_eq!((standing.used, standing.held), (0, 0), "something has leaked");
    let (intervals, full) = case.check_intervals(&cluster.log.lock().unwrap());
    totals.intervals += intervals;
    totals.full += full;
    totals.admitted += cluster.admitted();
    totals.denials += denials.load(Ordering::Relaxed);
    totals.local += cluster.local.load(Ordering::Relaxed);
}

fn simulate(what: &str, changes: u64) {
    for family in &LIMIT_FAMILIES {
        let mut totals = Totals::default();
        for seed in seeds() {
            let _named = PrintOnPanic(format!("{what}: {}: seed {seed}", family.0));
            let mut rng = TraceRng::new(seed);
            let case = Case::draw(family, &mut rng, changes);
            run(run_history(&case, &mut rng, &mut totals));
        }
        let Totals { intervals, full, checks, local, denials, admitted, deaths, calls } = totals;
        if seeds().count() == 1 {
            continue;
        }
        assert!(local > checks / 8, "{what}: {}: too few loans", family.0);
        assert!(denials > checks / 100, "{what}: {}: too few denials", family.0);
        // The bounds with twice the limit are reached only in the worst case.
        let is_sharp =
            !["fixed-window first-hit", "sliding-window approximate"].contains(&family.0);
        assert!(full > 0 || !is_sharp, "{what}: {}: no interval reached the bound", family.0);
        print_line(&format!(
            "{what}: {}: {} histories, {checks} checks ({local} decided locally, {denials} \
             denied), {admitted} permits, \
             {deaths} deaths, {calls} store calls, {intervals} intervals ({full} full), 0 over the bound",
            family.0,
            seeds().count()
        ));
    }
}

#[test]
fn admissions_under_leases_stay_within_the_bound_through_deaths_and_losses() {
    simulate("leases", 0);
}

#[test]
fn a_limit_that_changes_admits_no_more_than_it_grew() {
    simulate("leases, changing limits", 3);
}
