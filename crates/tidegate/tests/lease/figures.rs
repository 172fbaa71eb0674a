//! What leases cost, and who gets what.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::{
    Call, Charge, Clock, Engine, Lease, LeaseSize, ManualClock, Memory, Micros, Op, RuleLimit,
    Source, SystemClock,
};
use tidegate_model::{Counting, Rng, say};

use crate::world::{Node, Quality, World, charge, leased, quiet, run};

/// Steady traffic of every node, so many checks a second, for this long. Every check is a task, as in a
/// server. What each of them was granted.
async fn steady(
    world: &Arc<World>,
    nodes: &[Arc<Node>],
    limit: &Arc<RuleLimit>,
    per_second: u64,
    seconds: u64,
) -> Vec<u64> {
    let granted: Vec<_> =
        nodes.iter().map(|_| Arc::new(std::sync::atomic::AtomicU64::new(0))).collect();
    let mut rng = Rng::new(5);
    let mut passed = 0;
    while passed < seconds * 1_000_000 {
        for of in [0, 1].map(|i| i ^ usize::try_from(rng.below(2)).unwrap()) {
            let Some(node) = nodes.get(of) else { continue };
            let (node, world, limit) = (node.clone(), world.clone(), limit.clone());
            let granted = granted[of].clone();
            tokio::spawn(async move {
                let answer = node.check(&world, &limit, 1).await;
                let allowed = answer.is_ok_and(|decision| decision.allowed());
                granted.fetch_add(u64::from(allowed), Ordering::Relaxed);
            });
        }
        let span = rng.below(2_000_000 / per_second);
        passed += span;
        world.pass(Duration::from_micros(span)).await;
    }
    granted.iter().map(|granted| granted.load(Ordering::Relaxed)).collect()
}

#[test]
fn a_hot_key_whose_limit_is_far_away_hardly_ever_asks_the_store() {
    for (per_second, latency) in [(1_000, 500), (5_000, 500), (5_000, 5_000)] {
        run(async {
            let limit = leased("1000000/s", LeaseSize::Auto);
            let world = World::new(vec![limit.clone()]);
            let quality = Quality { latency, loses_one_in: 0, drift: 0 };
            let node = Arc::new(Node::new(&world, quality, 1));
            let nodes = [node.clone()];
            let warm = steady(&world, &nodes, &limit, per_second, 1).await[0];
            let (before, began) = (node.calls(), world.now());
            let decisions = steady(&world, &nodes, &limit, per_second, 5).await[0];
            let calls = node.calls() - before;
            let share = calls * 10_000 / decisions;
            say(&format!(
                "hot key at {per_second}/s, {latency} us to the store: {before} calls for the first {warm} \
                 decisions, then {calls} for {decisions} in {} s: 0.{share:04} per decision",
                (world.now() - began) / 1_000_000
            ));
            assert!(calls * 100 <= decisions, "{calls} calls for {decisions} decisions");
        });
    }
}

#[test]
fn two_nodes_at_equal_demand_get_about_the_same() {
    let notations = [
        "1000/s burst 1000",
        "1000/s burst 100",
        "1000/s burst 1000 every 100ms",
        "leaky-bucket 1000/s capacity 500",
        "fixed-window 1000/s",
        "fixed-window 5000/5s",
        "sliding-log 1000/s",
        "sliding-window 1000/s precision 100ms",
        "sliding-window 1000/s approximate",
    ];
    let sizes = [LeaseSize::Auto, LeaseSize::Of(100.try_into().unwrap())];
    let mut least = 100;
    for notation in notations {
        let mut shares = Vec::new();
        for (per_second, size) in
            [(400, sizes[0]), (700, sizes[0]), (2_000, sizes[0]), (900, sizes[1])]
        {
            run(async {
                let limit = leased(notation, size);
                let world = World::new(vec![limit.clone()]);
                let quality = Quality { latency: 1_000, loses_one_in: 0, drift: 0 };
                let nodes = [1, 2].map(|seed| Arc::new(Node::new(&world, quality, seed)));
                let granted = steady(&world, &nodes, &limit, per_second, 4).await;
                let sum = granted[0] + granted[1];
                let percent = granted.iter().map(|one| one * 100 / sum).min().unwrap();
                let local = world.local.load(Ordering::Relaxed) * 100 / sum;
                shares.push(format!("{percent} % at 2 x {per_second}/s ({local} % locally)"));
                assert!(percent >= 40, "{notation}, {size:?}: {granted:?}");
                least = least.min(percent);
            });
        }
        say(&format!("fairness: {notation}: the lesser got {}", shares.join(", ")));
    }
    say(&format!("fairness: neither of two nodes got less than {least} %"));
}

/// A lease around a memory engine that has just borrowed plenty.
async fn borrowed(limit: &Arc<RuleLimit>, clock: impl Clock + Clone) -> Lease<Memory> {
    let lease = Lease::new(Memory::builder().clock(clock).build());
    for _ in 0..2_000 {
        let one = [charge(limit, "somebody", 1_000)];
        assert!(
            lease
                .decide(Call { op: Op::Check, charges: &one, once: None })
                .await
                .unwrap()
                .allowed()
        );
        quiet().await;
    }
    assert!(lease.outstanding()[limit.rule()] > 10_000);
    lease
}

#[test]
fn a_local_decision_takes_no_memory_and_no_waiting() {
    run(async {
        let limit = leased("1000000000/s", LeaseSize::Auto);
        let lease = borrowed(&limit, ManualClock::default()).await;
        let one: [Charge<'_>; 1] = [charge(&limit, "somebody", 1)];
        let call = Call { op: Op::Check, charges: &one, once: None };
        let before = Counting::allocations();
        for _ in 0..5_000 {
            let (source, verdict) = lease.check_one(black_box(&one[0])).unwrap();
            assert_eq!((source, verdict.allowed), (Source::Lease, true));
            assert_eq!(lease.decide(call).now().unwrap().source, Source::Lease);
        }
        let allocations = Counting::allocations() - before;
        assert_eq!(allocations, 0);
        say("local decisions: 10000, 0 allocations");
    });
}

#[test]
#[ignore = "prints how long a decision takes; run it with --release and --nocapture"]
fn a_local_decision_takes_tens_of_nanoseconds() {
    run(async {
        let limit = leased("1000000000/s", LeaseSize::Of(1_000_000.try_into().unwrap()));
        let mut rounds = Vec::new();
        for _ in 0..20 {
            let lease = borrowed(&limit, SystemClock).await;
            let one = charge(&limit, "somebody", 1);
            let began = SystemClock.elapsed();
            for _ in 0..100_000 {
                let (source, _) = lease.check_one(black_box(&one)).unwrap();
                assert_eq!(source, Source::Lease);
            }
            let took: Micros = SystemClock.elapsed().saturating_sub(began);
            rounds.push(took.get() / 100);
        }
        rounds.sort_unstable();
        say(&format!("a local decision: {} ns at best, {} ns usually", rounds[0], rounds[10]));
    });
}
