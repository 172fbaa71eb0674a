//! Store calls, allocations and fairness of leases.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::{
    Call, Charge, Clock, Engine, Lease, LeaseSize, ManualClock, Memory, Micros, Op, RuleLimit,
    Source, SystemClock,
};
use tidegate_model::{CountingAllocator, TraceRng, print_line};

use super::cluster_of_processes::{
    LeaseCluster, Node, Quality, charge, leased, run, run_ready_tasks,
};

/// Steady traffic of every node, `per_second` checks a second. Every check is a task, as in a
/// server. Returns the permits granted to each node.
async fn steady(
    cluster: &Arc<LeaseCluster>,
    nodes: &[Arc<Node>],
    limit: &Arc<RuleLimit>,
    per_second: u64,
    seconds: u64,
) -> Vec<u64> {
    let granted: Vec<_> =
        nodes.iter().map(|_| Arc::new(std::sync::atomic::AtomicU64::new(0))).collect();
    let mut rng = TraceRng::new(5);
    let mut passed = 0;
    while passed < seconds * 1_000_000 {
        for node_index in [0, 1].map(|i| i ^ usize::try_from(rng.below(2)).unwrap()) {
            let Some(node) = nodes.get(node_index) else { continue };
            let (node, cluster, limit) = (node.clone(), cluster.clone(), limit.clone());
            let granted = granted[node_index].clone();
            tokio::spawn(async move {
                let result = node.check(&cluster, &limit, 1).await;
                let allowed = result.is_ok_and(|decision| decision.allowed());
                granted.fetch_add(u64::from(allowed), Ordering::Relaxed);
            });
        }
        let span = rng.below(2_000_000 / per_second);
        passed += span;
        cluster.pass(Duration::from_micros(span)).await;
    }
    granted.iter().map(|granted| granted.load(Ordering::Relaxed)).collect()
}

#[test]
fn a_hot_key_far_from_its_limit_rarely_calls_the_store() {
    for (per_second, latency) in [(1_000, 500), (5_000, 500), (5_000, 5_000)] {
        run(async {
            let limit = leased("1000000/s", LeaseSize::Auto);
            let cluster = LeaseCluster::new(vec![limit.clone()]);
            let quality = Quality { latency, loses_one_in: 0, drift: 0 };
            let node = Arc::new(Node::new(&cluster, quality, 1));
            let nodes = [node.clone()];
            let warm = steady(&cluster, &nodes, &limit, per_second, 1).await[0];
            let (before, began) = (node.calls(), cluster.now());
            let decisions = steady(&cluster, &nodes, &limit, per_second, 5).await[0];
            let calls = node.calls() - before;
            let share = calls * 10_000 / decisions;
            print_line(&format!(
                "hot key at {per_second}/s, {latency} us to the store: {before} calls for the first {warm} \
                 decisions, then {calls} for {decisions} in {} s: 0.{share:04} per decision",
                (cluster.now() - began) / 1_000_000
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
    let mut min_percent = 100;
    for notation in notations {
        let mut shares = Vec::new();
        for (per_second, size) in
            [(400, sizes[0]), (700, sizes[0]), (2_000, sizes[0]), (900, sizes[1])]
        {
            run(async {
                let limit = leased(notation, size);
                let cluster = LeaseCluster::new(vec![limit.clone()]);
                let quality = Quality { latency: 1_000, loses_one_in: 0, drift: 0 };
                let nodes = [1, 2].map(|seed| Arc::new(Node::new(&cluster, quality, seed)));
                let granted = steady(&cluster, &nodes, &limit, per_second, 4).await;
                let sum = granted[0] + granted[1];
                let percent = granted.iter().map(|one| one * 100 / sum).min().unwrap();
                let local = cluster.local.load(Ordering::Relaxed) * 100 / sum;
                shares.push(format!("{percent} % at 2 x {per_second}/s ({local} % locally)"));
                assert!(percent >= 40, "{notation}, {size:?}: {granted:?}");
                min_percent = min_percent.min(percent);
            });
        }
        print_line(&format!("fairness: {notation}: the smaller share was {}", shares.join(", ")));
    }
    print_line(&format!("fairness: neither of two nodes got less than {min_percent} %"));
}

/// A lease around a memory engine that has just borrowed many permits.
async fn borrowed(limit: &Arc<RuleLimit>, clock: impl Clock + Clone) -> Lease<Memory> {
    let lease = Lease::new(Memory::builder().clock(clock).build());
    for _ in 0..2_000 {
        let one = [charge(limit, "key", 1_000)];
        assert!(
            lease
                .decide(Call { op: Op::Check, charges: &one, idempotency_key: None })
                .await
                .unwrap()
                .allowed()
        );
        run_ready_tasks().await;
    }
    assert!(lease.outstanding()[limit.rule()] > 10_000);
    lease
}

#[test]
fn a_local_decision_neither_allocates_nor_waits() {
    run(async {
        let limit = leased("1000000000/s", LeaseSize::Auto);
        let lease = borrowed(&limit, ManualClock::default()).await;
        let one: [Charge<'_>; 1] = [charge(&limit, "key", 1)];
        let call = Call { op: Op::Check, charges: &one, idempotency_key: None };
        let before = CountingAllocator::allocations();
        for _ in 0..5_000 {
            let decision = lease.decide_now(black_box(&call)).unwrap();
            assert_eq!((decision.source, decision.allowed()), (Source::Lease, true));
        }
        let allocations = CountingAllocator::allocations() - before;
        assert_eq!(allocations, 0);
        print_line("local decisions: 5000, 0 allocations");
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
            let one = [charge(&limit, "key", 1)];
            let call = Call { op: Op::Check, charges: &one, idempotency_key: None };
            let began = SystemClock.elapsed();
            for _ in 0..100_000 {
                assert_eq!(lease.decide_now(black_box(&call)).unwrap().source, Source::Lease);
            }
            let took: Micros = SystemClock.elapsed().saturating_sub(began);
            rounds.push(took.get() / 100);
        }
        rounds.sort_unstable();
        print_line(&format!(
            "a local decision: {} ns at best, {} ns at the median",
            rounds[0], rounds[10]
        ));
    });
}
