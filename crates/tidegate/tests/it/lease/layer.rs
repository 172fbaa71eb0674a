//! Behaviour of the lease layer, one claim per test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{
    Call, Charge, Clock, Cost, Costs, Decision, DenyCache, Engine, EngineError, EngineFuture,
    Fallback, Health, HoldId, IdempotencyKey, Inspection, Key, Lease, LeaseSize, Limiter,
    ManualClock, Memory, Micros, Op, PolicyRule, Refusal, Rule, RuleLimit, Source, StoreEvent,
};
use tidegate_model::print_line;

use super::cluster_of_processes::{LeaseCluster, Node, charge, leased, run, run_ready_tasks};

const HOUR: &str = "fixed-window 10000/1h";

/// A node that has borrowed permits at a thousand checks a second.
async fn warmed(notation: &str) -> (Arc<LeaseCluster>, Node, Arc<RuleLimit>) {
    let limit = leased(notation, LeaseSize::Auto);
    let cluster = LeaseCluster::new(vec![limit.clone()]);
    let node = Node::reliable(&cluster);
    warm(&cluster, &node, &limit).await;
    (cluster, node, limit)
}

async fn warm(cluster: &Arc<LeaseCluster>, node: &Node, limit: &Arc<RuleLimit>) {
    for _ in 0..300 {
        drive(cluster, node.check(cluster, limit, 1)).await.unwrap();
        cluster.pass(Duration::from_millis(1)).await;
    }
    assert!(node.unspent() > 0, "nothing was borrowed");
}

/// Advances the clock until the future is done.
async fn drive<T>(cluster: &LeaseCluster, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        tokio::select! {
            biased;
            done = &mut future => return done,
            () = cluster.pass(Duration::from_micros(100)) => {}
        }
    }
}

async fn decide(
    cluster: &LeaseCluster,
    node: &Node,
    op: Op<'_>,
    charges: &[Charge<'_>],
) -> Decision {
    drive(cluster, node.lease.decide(Call { op, charges, idempotency_key: None })).await.unwrap()
}

fn used_and_held(cluster: &LeaseCluster, limit: &Arc<RuleLimit>) -> (u64, u64) {
    let standing = cluster.store.inspect(limit, "k".into()).now().unwrap().standing;
    (standing.used, standing.held)
}

#[test]
fn unspent_permits_are_returned_and_no_timer_remains() {
    run(async {
        let (cluster, node, limit) = warmed(HOUR).await;
        cluster.pass(Duration::from_millis(500)).await;
        assert_eq!(node.unspent(), 0);
        assert_eq!(used_and_held(&cluster, &limit), (300, 0));
        cluster.pass(Duration::from_secs(3)).await;
        assert_eq!(cluster.clock.next_wake(), None, "a task still sleeps");
        warm(&cluster, &node, &limit).await;
    });
}

#[test]
fn closing_returns_all_permits_and_borrows_no_more() {
    run(async {
        let (cluster, node, limit) = warmed(HOUR).await;
        drive(&cluster, node.lease.close()).await;
        assert_eq!((node.unspent(), used_and_held(&cluster, &limit)), (0, (300, 0)));
        for _ in 0..300 {
            let decision = drive(&cluster, node.check(&cluster, &limit, 1)).await.unwrap();
            assert_eq!(decision.source, Source::Memory);
        }
        assert_eq!(used_and_held(&cluster, &limit), (600, 0));
    });
}

#[test]
fn dropping_without_close_returns_the_unspent_permits() {
    run(async {
        let (cluster, node, limit) = warmed(HOUR).await;
        drop(node);
        cluster.pass(Duration::from_millis(10)).await;
        assert_eq!(used_and_held(&cluster, &limit), (300, 0));
    });
}

#[test]
fn all_loans_of_a_process_that_dies_are_charged() {
    run(async {
        let (cluster, node, limit) = warmed(HOUR).await;
        cluster.pass(Duration::from_millis(5)).await;
        let lost = node.kill();
        let (used, held) = used_and_held(&cluster, &limit);
        assert!(lost > 0 && used + held >= 300 + lost);
        cluster.pass(Duration::from_secs(3)).await;
        assert_eq!(used_and_held(&cluster, &limit), (300 + lost, 0));
    });
}

/// If no message is lost, every permit is accounted for.
#[test]
fn every_permit_is_admitted_or_lent_or_remaining() {
    run(async {
        let limit = leased(HOUR, LeaseSize::Auto);
        let cluster = LeaseCluster::new(vec![limit.clone()]);
        let nodes = [(); 3].map(|()| Node::reliable(&cluster));
        let (mut max_unspent, mut at_first) = (0, None);
        for step in 0.. {
            let node = &nodes[step % nodes.len()];
            let decision = drive(&cluster, node.check(&cluster, &limit, 1)).await.unwrap();
            let denied = !decision.allowed();
            if step % 5 == 0 {
                cluster.pass(Duration::from_micros(200)).await;
            }
            if step % 100 == 0 || denied {
                // No call is in flight; permits that are spent and not yet reported are held.
                cluster.pass(Duration::from_millis(2)).await;
                let unspent: u64 = nodes.iter().map(Node::unspent).sum();
                let (admitted, remaining) = (cluster.admitted(), cluster.remaining(&limit));
                assert_eq!(admitted + unspent + remaining, 10_000, "after {step} checks");
                max_unspent = max_unspent.max(unspent);
                if denied {
                    at_first.get_or_insert(10_000 - admitted);
                }
            }
            let left = cluster.remaining(&limit) + nodes.iter().map(Node::unspent).sum::<u64>();
            if denied && left == 0 {
                break;
            }
        }
        assert_eq!(cluster.admitted(), 10_000, "the borrowed permits were spent");
        let calls: u64 = nodes.iter().map(Node::calls).sum();
        print_line(&format!(
            "under-use: 10000 permits, 3 nodes: at most {max_unspent} lent and not spent, {} when the \
             first request was denied, 0 in the end, {calls} calls in all",
            at_first.unwrap()
        ));
    });
}

#[test]
fn some_limits_and_some_calls_always_go_to_the_store() {
    let rule = Rule::with_shadow(
        "r",
        ["10/s", "concurrency 5", "leaky-bucket 5/s queue"].map(|limit| limit.parse().unwrap()),
        ["100/s".parse().unwrap()],
    );
    let rule = rule.unwrap().lease(LeaseSize::Auto);
    let lent: Vec<bool> = rule.limits().iter().map(|limit| limit.lease_size().is_some()).collect();
    assert_eq!(lent, [true, false, false, false]);
    let plain = Rule::new("r", ["10/s".parse().unwrap()]).unwrap();
    assert_eq!(plain.limits()[0].lease_size(), None);
    let size = LeaseSize::Of(5.try_into().unwrap());
    assert_eq!(PolicyRule::from(plain).lease(size).rule().limits()[0].lease_size(), Some(size));

    run(async {
        let (cluster, node, limit) = warmed("sliding-log 10000/1h").await;
        let one = [charge(&limit, "k", 1)];
        let named = [Charge { caller: Some("alice"), ..one[0] }];
        let nothing = [charge(&limit, "k", 0)];
        let twice = [one[0], one[0]];
        let id = Some(IdempotencyKey::new("id").unwrap());
        for (op, charges, once) in [
            (Op::Check, &one[..], id),
            (Op::Check, &named[..], None),
            (Op::Check, &nothing[..], None),
            (Op::Check, &twice[..], None),
            (Op::Peek, &one[..], None),
        ] {
            let decision = node.lease.decide(Call { op, charges, idempotency_key: once });
            let decision = drive(&cluster, decision).await.unwrap();
            assert_eq!((decision.source, decision.allowed()), (Source::Memory, true), "{op:?}");
        }
        let seen = drive(&cluster, node.lease.inspect(&limit, "k".into())).await.unwrap();
        assert!(
            seen.standing.held > 0 && seen.entries.iter().any(|e| e.0.as_deref() == Some("alice"))
        );
        let decision = drive(&cluster, node.check(&cluster, &limit, 1)).await.unwrap();
        assert_eq!(decision.source, Source::Lease);
    });
}

#[test]
fn without_a_runtime_nothing_is_borrowed() {
    let limit = leased("100000/s", LeaseSize::Auto);
    let lease = Lease::new(Memory::builder().clock(ManualClock::default()).build());
    for _ in 0..1_000 {
        let one = [charge(&limit, "k", 1)];
        let decision = lease.decide(Call { op: Op::Check, charges: &one, idempotency_key: None });
        assert_eq!(decision.now().unwrap().source, Source::Memory);
    }
    assert!(lease.outstanding().is_empty());
}

#[test]
fn a_call_with_a_limit_that_is_not_leased_is_decided_by_the_store_all_or_nothing() {
    run(async {
        let (cluster, node, limit) = warmed(HOUR).await;
        let rule = Rule::new("narrow", ["fixed-window 5/1h".parse().unwrap()]).unwrap();
        let narrow = &rule.limits()[0];
        let both = [charge(narrow, "k", 1), charge(&limit, "k", 2)];
        let before = node.unspent();
        for left in (0..5).rev() {
            let decision = decide(&cluster, &node, Op::Check, &both).await;
            let remaining: Vec<u64> = decision.verdicts.iter().map(|v| v.remaining).collect();
            assert!(decision.allowed());
            assert_eq!(remaining[0], left);
            assert!((9_000..9_700).contains(&remaining[1]), "{remaining:?}");
        }
        assert_eq!(node.unspent(), before);
        let calls = node.calls();
        let denied = decide(&cluster, &node, Op::Check, &both).await;
        let allowed: Vec<bool> = denied.verdicts.iter().map(|v| v.allowed).collect();
        assert_eq!((allowed, denied.most_restrictive()), (vec![false, true], 0));
        assert_eq!((node.unspent(), node.calls()), (before, calls + 1));
        let seen = cluster.store.inspect(narrow, "k".into()).now().unwrap().standing;
        assert_eq!((seen.used, seen.held), (5, 0));
        drive(&cluster, node.lease.close()).await;
        assert_eq!(used_and_held(&cluster, &limit), (300 + 10, 0));
    });
}

#[test]
fn two_leased_limits_are_spent_together_without_the_store() {
    run(async {
        let rules = ["200000/s", "sliding-window 100000/s"].map(|limit| limit.parse().unwrap());
        let rule = Rule::new("both", rules).unwrap().lease(LeaseSize::Auto);
        let cluster = LeaseCluster::new(Vec::new());
        let node = Node::reliable(&cluster);
        let both = [0, 1].map(|i| charge(&rule.limits()[i], "k", 1));
        for _ in 0..300 {
            assert!(decide(&cluster, &node, Op::Check, &both).await.allowed());
            cluster.pass(Duration::from_millis(1)).await;
        }
        let decision =
            node.lease.decide(Call { op: Op::Check, charges: &both, idempotency_key: None });
        let decision = decision.now().unwrap();
        assert_eq!((decision.source, decision.verdicts.len()), (Source::Lease, 2));
        drive(&cluster, node.lease.close()).await;
        for limit in rule.limits() {
            let standing = cluster.store.inspect(limit, "k".into()).now().unwrap().standing;
            assert_eq!(standing.held, 0);
        }
    });
}

#[test]
fn enter_is_charged_and_takes_a_slot_in_the_store() {
    run(async {
        let (cluster, node, limit) = warmed(HOUR).await;
        let rule = Rule::new("slots", ["concurrency 2".parse().unwrap()]).unwrap();
        let both = [charge(&limit, "k", 1), charge(&rule.limits()[0], "k", 1)];
        let enter = || Op::enter(HoldId::random().unwrap(), Micros::from_secs(60));
        let before = node.unspent();
        let first = decide(&cluster, &node, enter(), &both).await;
        assert!(first.allowed() && first.hold().is_some());
        assert!(decide(&cluster, &node, enter(), &both).await.allowed());
        assert!(!decide(&cluster, &node, enter(), &both).await.allowed());
        assert_eq!(node.unspent(), before);
        let leave = Op::Settle { id: first.hold().unwrap(), costs: Costs::All(Cost::ZERO) };
        decide(&cluster, &node, leave, &[]).await;
        assert!(decide(&cluster, &node, enter(), &both).await.allowed());
    });
}

#[test]
fn a_changed_limit_ends_what_was_borrowed_under_the_old_one() {
    // Usage under the old limit carries over to the new one up to its capacity; usage that is
    // reported later is a debt.
    let cases =
        [("fixed-window 200/1h", false, 200..=300), ("fixed-window 2000/1h", true, 301..=301)];
    for (notation, allowed, used) in cases {
        run(async {
            let (cluster, node, old) = warmed(HOUR).await;
            let new = leased(notation, LeaseSize::Auto);
            let decision = drive(&cluster, node.check(&cluster, &new, 1)).await.unwrap();
            assert_eq!((decision.source, decision.allowed()), (Source::Memory, allowed));
            // A call with the old limit does not make it active again.
            let late = drive(&cluster, node.check(&cluster, &old, 2_000)).await.unwrap();
            assert_eq!((late.source, late.allowed()), (Source::Memory, false));
            drive(&cluster, node.lease.close()).await;
            let (now_used, held) = used_and_held(&cluster, &new);
            assert!(used.contains(&now_used) && held == 0, "{now_used} used, {held} held");
        });
    }
    run(async {
        // A rebuilt, equal limit ends no loan.
        let (cluster, node, _) = warmed(HOUR).await;
        let before = node.unspent();
        let same = leased(HOUR, LeaseSize::Auto);
        let decision = drive(&cluster, node.check(&cluster, &same, 1)).await.unwrap();
        assert_eq!((decision.source, node.unspent()), (Source::Lease, before - 1));
    });
}

#[test]
fn records_refunds_and_resets_come_after_the_spent_permits() {
    for (op, used) in [(Op::Record, 350), (Op::Refund, 250), (Op::Reset, 0)] {
        run(async {
            let (cluster, node, limit) = warmed(HOUR).await;
            let decision = decide(&cluster, &node, op, &[charge(&limit, "k", 50)]).await;
            assert_eq!(used_and_held(&cluster, &limit), (used, 0), "{op:?}");
            assert_eq!(decision.verdict().remaining, 10_000 - used, "{op:?}");
            assert_eq!(node.unspent(), 0);
        });
    }
}

#[test]
fn near_the_limit_every_permit_comes_from_the_store() {
    run(async {
        let limit = leased("fixed-window 2000/1h", LeaseSize::Auto);
        let cluster = LeaseCluster::new(vec![limit.clone()]);
        let node = Node::reliable(&cluster);
        let mut last = Source::Policy;
        for admitted in 0..2_001 {
            let decision = drive(&cluster, node.check(&cluster, &limit, 1)).await.unwrap();
            assert_eq!(decision.allowed(), admitted < 2_000, "number {admitted}");
            last = decision.source;
            cluster.pass(Duration::from_micros(500)).await;
        }
        assert_eq!(last, Source::Memory);
        assert_eq!(used_and_held(&cluster, &limit), (2_000, 0));
        let local = cluster.local.load(Ordering::Relaxed);
        assert!(local > 1_800, "{local}");
        print_line(&format!("2000 permits in a row: {local} locally, {} calls", node.calls()));
    });
}

/// A store without a fast path, with a fixed error for the end of a loan, if any.
struct StoreWithoutFastPath {
    memory: Memory,
    recorded: Arc<AtomicU64>,
    settled: Option<EngineError>,
}

impl Engine for StoreWithoutFastPath {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        match (call.op, &self.settled) {
            (Op::Settle { .. }, Some(error)) => EngineFuture::Ready(Err(error.clone())),
            (Op::Record, _) => {
                self.recorded.fetch_add(call.charges[0].cost.get(), Ordering::Relaxed);
                self.memory.decide(call)
            }
            _ => self.memory.decide(call),
        }
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.memory.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

#[test]
fn permits_spent_from_a_hold_that_the_store_lost_are_recorded() {
    run(async {
        let recorded = Arc::new(AtomicU64::new(0));
        let memory = Memory::builder().clock(ManualClock::default()).build();
        // As a replica that was promoted before it received the hold.
        let settled = Some(Refusal::UnknownHold.into());
        let lease =
            Lease::new(StoreWithoutFastPath { memory, recorded: recorded.clone(), settled });
        let limit = leased("fixed-window 100000/1h", LeaseSize::Auto);
        let mut local = 0;
        for _ in 0..200 {
            let one = [charge(&limit, "k", 1)];
            let decision =
                lease.decide(Call { op: Op::Check, charges: &one, idempotency_key: None }).await;
            local += u64::from(decision.unwrap().source == Source::Lease);
            run_ready_tasks().await;
        }
        lease.close().await;
        assert!(local > 100);
        assert_eq!(recorded.load(Ordering::Relaxed), local);
    });
}

#[test]
fn no_caller_waits_for_an_unavailable_store_to_settle_a_loan() {
    let unavailable = || EngineError::unavailable(std::io::Error::other("no reply"));
    for op in [Op::Record, Op::Refund, Op::Reset] {
        run(async {
            let memory = Memory::builder().clock(ManualClock::default()).build();
            let settled = Some(unavailable());
            let lease =
                Lease::new(StoreWithoutFastPath { memory, recorded: Arc::default(), settled });
            let limit = leased("fixed-window 100000/1h", LeaseSize::Auto);
            let one = [charge(&limit, "k", 1)];
            for _ in 0..200 {
                lease
                    .decide(Call { op: Op::Check, charges: &one, idempotency_key: None })
                    .await
                    .unwrap();
                run_ready_tasks().await;
            }
            assert!(lease.outstanding()[limit.rule()] > 0);
            // The clock is stopped, and the settlement is retried only when it advances.
            tokio::select! {
                biased;
                decision = lease.decide(Call { op, charges: &one, idempotency_key: None }) => drop(decision.unwrap()),
                () = run_ready_tasks() => panic!("{op:?} waits"),
            }
        });
    }
}

#[test]
fn a_flood_of_keys_takes_no_more_memory_than_the_table() {
    run(async {
        let limit = leased("1000/s", LeaseSize::Auto);
        let cluster = LeaseCluster::new(vec![limit.clone()]);
        let node = Node::reliable(&cluster);
        let before = node.lease.health().memory_bytes;
        for key in 0..20_000 {
            let key = format!("key {key}");
            let one = [charge(&limit, &key, 1)];
            drive(
                &cluster,
                node.lease.decide(Call { op: Op::Check, charges: &one, idempotency_key: None }),
            )
            .await
            .unwrap();
        }
        assert_eq!(node.lease.health().memory_bytes, before);
        assert!(before < 2 << 20, "{before}");
        warm(&cluster, &node, &limit).await;
        let borrowed = node.lease.health().memory_bytes - before;
        assert!((100..1_000).contains(&borrowed), "{borrowed} bytes for one key");
    });
}

#[test]
fn it_works_between_a_fallback_and_a_cache_of_denials() {
    run(async {
        let clock = ManualClock::default();
        let memory = Memory::builder().clock(clock.clone()).build();
        let store = StoreWithoutFastPath { memory, recorded: Arc::default(), settled: None };
        let lease = Arc::new(Lease::new(DenyCache::new(store)));
        let events: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = events.clone();
        let watch = move |event: StoreEvent<'_>| log.lock().unwrap().push(format!("{event:?}"));
        let engine = Fallback::new(lease.clone()).on_event(watch);
        let rule = Rule::new("r", ["1000/s burst 2000".parse().unwrap()]).unwrap();
        let limiter = Limiter::with_rules(engine, [rule.lease(LeaseSize::Auto)]).unwrap();
        let mut sources = Vec::new();
        for _ in 0..2_001 {
            let decision = limiter.check("k").await.unwrap();
            sources.push(decision.source);
            run_ready_tasks().await;
        }
        assert_eq!(limiter.check("k").await.unwrap().source, Source::DenyCache);
        let count = |source| sources.iter().filter(|s| **s == source).count();
        assert!(count(Source::Lease) > 1_800, "{}", count(Source::Lease));
        assert_eq!(count(Source::Lease) + count(Source::Memory), 2_001);
        // A waiting call gets the next permit.
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire("k", Duration::from_secs(1)).await.is_ok() }
        });
        for _ in 0..20 {
            run_ready_tasks().await;
            clock.advance(Duration::from_millis(1));
        }
        assert!(waiting.await.unwrap());
        assert_eq!(events.lock().unwrap().len(), 0);
    });
}

/// Threads that spend from the same loan at the same time.
#[test]
fn threads_together_spend_no_more_than_was_lent() {
    const LIMIT: u64 = 200_000;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let limit = leased(&format!("fixed-window {LIMIT}/36500d"), LeaseSize::Auto);
        let lease = Arc::new(Lease::new(Memory::default()));
        let tasks = [(); 4].map(|()| {
            let (lease, limit) = (lease.clone(), limit.clone());
            tokio::spawn(async move {
                let (mut admitted, mut local) = (0, 0);
                for step in 0..80_000 {
                    let one = [charge(&limit, "k", 1)];
                    let call = Call { op: Op::Check, charges: &one, idempotency_key: None };
                    let decision = lease.decide(call).await.unwrap();
                    admitted += u64::from(decision.allowed());
                    local += u64::from(decision.source == Source::Lease);
                    if step % 64 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                (admitted, local)
            })
        });
        let (mut admitted, mut local) = (0, 0);
        for task in tasks {
            let (more, more_local) = task.await.unwrap();
            admitted += more;
            local += more_local;
        }
        lease.close().await;
        let standing = lease.inspect(&limit, "k".into()).now().unwrap().standing;
        // On a machine that stalls for seconds, a loan may be charged in full.
        assert!(standing.used >= admitted && standing.held == 0, "{standing:?}");
        assert!(admitted <= LIMIT && admitted > LIMIT - LIMIT / 4, "{admitted}");
        print_line(&format!(
            "4 threads: {admitted} of {LIMIT} admitted, {local} locally, all accounted for"
        ));
    });
}
