//! Random traffic from processes that die, on links that lose things.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Call, Engine, Op, Rule};
use tidegate_model::{OnPanic, Rng, say};

use crate::promise::{Case, FAMILIES};
use crate::world::{Node, Quality, World, charge, run};

/// The seeds to try; one of them again with `TIDEGATE_SEED`.
fn seeds() -> Range<u64> {
    let set = |name: &str| std::env::var(name).ok();
    match set("TIDEGATE_SEED").and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None if set("TIDEGATE_LONG").is_some_and(|value| value == "1") => 0..500,
        None => 0..30,
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
async fn live(case: &Case, rng: &mut Rng, totals: &mut Totals) {
    let world = World::new(case.limits.clone());
    let quality = Quality {
        latency: rng.pick(&[0, 1_000, 20_000]),
        loses_one_in: rng.pick(&[0, 0, 7, 40]),
        drift: rng.pick(&[0, 10, 100]),
    };
    let count = rng.between(1, 4);
    let mut nodes: Vec<Arc<Node>> =
        (0..count).map(|_| Arc::new(Node::new(&world, quality, rng.any()))).collect();
    // Which limit each of them knows of.
    let mut knows = vec![0; nodes.len()];
    let mut changed = (0, 0);
    let rule = Rule::new("other", ["50/s".parse().unwrap()]).unwrap();
    let other = &rule.limits()[0];
    let denials: Arc<AtomicU64> = Arc::default();
    let mut paused = false;
    let steps = 700;
    for step in 0..steps {
        let of = usize::try_from(rng.below(nodes.len() as u64)).unwrap();
        let newest = step * case.limits.len() / steps;
        if newest != changed.0 {
            changed = (newest, world.now());
        }
        // Some learn of it late, but not so late that what was lent before has ended long ago: somebody with
        // an old limit and a key that has recovered would bring it back into force.
        if rng.one_in(10) || world.now() - changed.1 > 1_000_000 {
            knows[of] = newest;
        }
        let limit = case.limits[knows[of]].clone();
        let burst = if rng.one_in(30) { rng.magnitude(200) } else { rng.below(6) };
        for _ in 0..burst {
            let cost = if rng.one_in(8) { rng.magnitude(40) } else { 1 };
            let both = rng.one_in(6).then(|| format!("call {}", totals.checks));
            totals.checks += 1;
            let (node, world, limit) = (nodes[of].clone(), world.clone(), limit.clone());
            let (denials, other) = (denials.clone(), other.clone());
            tokio::spawn(async move {
                let answer = match both {
                    Some(name) => node.check_both(&world, &limit, &other, (&name, cost)).await,
                    None => node.check(&world, &limit, cost).await,
                };
                denials.fetch_add(u64::from(answer.is_ok_and(|d| !d.allowed())), Ordering::Relaxed);
            });
        }
        if rng.one_in(300) || paused && rng.one_in(2) {
            // All at once, all there is.
            let part = limit.limit().capacity().div_ceil(20);
            for node in nodes.iter().flat_map(|node| [node; 20]) {
                for cost in [part, part / 7 + 1, 1, 1] {
                    let (node, world, limit) = (node.clone(), world.clone(), limit.clone());
                    tokio::spawn(async move { drop(node.check(&world, &limit, cost).await) });
                }
            }
        }
        let op = match rng.below(200) {
            0 => Some(Op::Refund),
            1 => Some(Op::Record),
            _ => None,
        };
        if let Some(op) = op {
            let (node, cost) = (nodes[of].clone(), rng.magnitude(100));
            tokio::spawn(async move {
                let charges = [charge(&limit, "k", cost)];
                drop(node.lease.decide(Call { op, charges: &charges, once: None }).await);
            });
        }
        if rng.one_in(200) {
            let fresh = Arc::new(Node::new(&world, quality, rng.any()));
            let old = std::mem::replace(&mut nodes[of], fresh);
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
        world.pass(Duration::from_micros(span)).await;
    }
    for node in &nodes {
        totals.calls += node.calls();
        let closing = node.clone();
        let closed = tokio::spawn(async move { closing.lease.close().await });
        world.pass(Duration::from_secs(4)).await;
        assert!(closed.is_finished(), "a process does not come to an end");
        assert_eq!(node.unspent(), 0, "something is still borrowed");
    }
    // A minute and a debt's worth of time: whatever was taken has come back.
    world.pass(Duration::from_secs(60)).await;
    let limit = &case.limits[case.limits.len() - 1];
    let standing = world.store.inspect(limit, "k".into()).now().unwrap().standing;
    assert_eq!((standing.used, standing.held), (0, 0), "something has leaked");
    let (intervals, full) = case.judge(&world.log.lock().unwrap());
    totals.intervals += intervals;
    totals.full += full;
    totals.admitted += world.admitted();
    totals.denials += denials.load(Ordering::Relaxed);
    totals.local += world.local.load(Ordering::Relaxed);
}

fn simulate(what: &str, changes: u64) {
    for family in &FAMILIES {
        let mut totals = Totals::default();
        for seed in seeds() {
            let _named = OnPanic(format!("{what}: {}: seed {seed}", family.0));
            let mut rng = Rng::new(seed);
            let case = Case::draw(family, &mut rng, changes);
            run(live(&case, &mut rng, &mut totals));
        }
        let Totals { intervals, full, checks, local, denials, admitted, deaths, calls } = totals;
        if seeds().count() == 1 {
            continue;
        }
        assert!(local > checks / 8, "{what}: {}: hardly anything was lent", family.0);
        assert!(denials > checks / 100, "{what}: {}: nobody was denied", family.0);
        // What may be had twice in a window is had in the worst case only.
        let is_sharp =
            !["fixed-window first-hit", "sliding-window approximate"].contains(&family.0);
        assert!(full > 0 || !is_sharp, "{what}: {}: nobody was near the limit", family.0);
        say(&format!(
            "{what}: {}: {} histories, {checks} checks ({local} decided locally, {denials} \
             denied), {admitted} permits, \
             {deaths} deaths, {calls} store calls, {intervals} intervals ({full} full), 0 over the bound",
            family.0,
            seeds().count()
        ));
    }
}

#[test]
fn what_passes_under_leases_obeys_the_limit_through_deaths_and_losses() {
    simulate("leases", 0);
}

#[test]
fn a_limit_that_changes_lets_pass_no_more_than_it_grew() {
    simulate("leases, changing limits", 3);
}
