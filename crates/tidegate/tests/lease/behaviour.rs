//! One claim at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{
    Answer, Call, CallId, Charge, Clock, Cost, Decision, DenyCache, Engine, EngineError, Fallback,
    Health, HoldId, Inspection, Key, Lease, LeaseSize, Limiter, ManualClock, Memory, Micros, Op,
    PolicyRule, Refusal, Rule, RuleLimit, Source, StoreEvent,
};
use tidegate_model::say;

use crate::world::{Node, World, charge, leased, quiet, run};

const HOUR: &str = "fixed-window 10000/1h";

/// A node that has borrowed something, at a thousand a second.
async fn warmed(notation: &str) -> (Arc<World>, Node, Arc<RuleLimit>) {
    let limit = leased(notation, LeaseSize::Auto);
    let world = World::new(vec![limit.clone()]);
    let node = Node::good(&world);
    warm(&world, &node, &limit).await;
    (world, node, limit)
}

async fn warm(world: &Arc<World>, node: &Node, limit: &Arc<RuleLimit>) {
    for _ in 0..300 {
        drive(world, node.check(world, limit, 1)).await.unwrap();
        world.pass(Duration::from_millis(1)).await;
    }
    assert!(node.unspent() > 0, "nothing was borrowed");
}

/// Turns the clock until it is done.
async fn drive<T>(world: &World, what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    loop {
        tokio::select! {
            biased;
            done = &mut what => return done,
            () = world.pass(Duration::from_micros(100)) => {}
        }
    }
}

async fn ask(world: &World, node: &Node, op: Op, charges: &[Charge<'_>]) -> Decision {
    drive(world, node.lease.decide(Call { op, charges, once: None })).await.unwrap()
}

fn used_and_held(world: &World, limit: &Arc<RuleLimit>) -> (u64, u64) {
    let standing = world.store.inspect(limit, "k".into()).now().unwrap().standing;
    (standing.used, standing.held)
}

#[test]
fn what_nobody_spends_is_given_back_and_nobody_stays_to_look() {
    run(async {
        let (world, node, limit) = warmed(HOUR).await;
        world.pass(Duration::from_millis(500)).await;
        assert_eq!(node.unspent(), 0);
        assert_eq!(used_and_held(&world, &limit), (300, 0));
        world.pass(Duration::from_secs(3)).await;
        assert_eq!(world.clock.next_wake(), None, "somebody still waits for something");
        warm(&world, &node, &limit).await;
    });
}

#[test]
fn whoever_closes_gives_everything_back_and_borrows_no_more() {
    run(async {
        let (world, node, limit) = warmed(HOUR).await;
        drive(&world, node.lease.close()).await;
        assert_eq!((node.unspent(), used_and_held(&world, &limit)), (0, (300, 0)));
        for _ in 0..300 {
            let decision = drive(&world, node.check(&world, &limit, 1)).await.unwrap();
            assert_eq!(decision.source, Source::Memory);
        }
        assert_eq!(used_and_held(&world, &limit), (600, 0));
    });
}

#[test]
fn whoever_goes_without_a_word_gives_back_what_can_be_given_back() {
    run(async {
        let (world, node, limit) = warmed(HOUR).await;
        drop(node);
        world.pass(Duration::from_millis(10)).await;
        assert_eq!(used_and_held(&world, &limit), (300, 0));
    });
}

#[test]
fn of_a_process_that_dies_all_that_was_lent_is_charged() {
    run(async {
        let (world, node, limit) = warmed(HOUR).await;
        world.pass(Duration::from_millis(5)).await;
        let lost = node.kill();
        let (used, held) = used_and_held(&world, &limit);
        assert!(lost > 0 && used + held >= 300 + lost);
        world.pass(Duration::from_secs(3)).await;
        assert_eq!(used_and_held(&world, &limit), (300 + lost, 0));
    });
}

/// Whoever does not lose anything on the way can account for every permit.
#[test]
fn every_permit_is_admitted_or_lent_or_left() {
    run(async {
        let limit = leased(HOUR, LeaseSize::Auto);
        let world = World::new(vec![limit.clone()]);
        let nodes = [(); 3].map(|()| Node::good(&world));
        let (mut most, mut at_first) = (0, None);
        for step in 0.. {
            let node = &nodes[step % nodes.len()];
            let decision = drive(&world, node.check(&world, &limit, 1)).await.unwrap();
            let denied = !decision.allowed();
            if step % 5 == 0 {
                world.pass(Duration::from_micros(200)).await;
            }
            if step % 100 == 0 || denied {
                // Nothing is on its way; what was spent and not told yet is held.
                world.pass(Duration::from_millis(2)).await;
                let unspent: u64 = nodes.iter().map(Node::unspent).sum();
                let (admitted, remaining) = (world.admitted(), world.remaining(&limit));
                assert_eq!(admitted + unspent + remaining, 10_000, "after {step} checks");
                most = most.max(unspent);
                if denied {
                    at_first.get_or_insert(10_000 - admitted);
                }
            }
            let left = world.remaining(&limit) + nodes.iter().map(Node::unspent).sum::<u64>();
            if denied && left == 0 {
                break;
            }
        }
        assert_eq!(world.admitted(), 10_000, "those who had borrowed have spent it");
        let calls: u64 = nodes.iter().map(Node::calls).sum();
        say(&format!(
            "under-use: 10000 permits, 3 nodes: at most {most} lent and not spent, {} of them when the \
             first was denied, 0 in the end, {calls} calls in all",
            at_first.unwrap()
        ));
    });
}

#[test]
fn some_limits_and_some_calls_are_asked_of_the_store_every_time() {
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
        let (world, node, limit) = warmed("sliding-log 10000/1h").await;
        let one = [charge(&limit, "k", 1)];
        let named = [Charge { who: Some("alice"), ..one[0] }];
        let nothing = [charge(&limit, "k", 0)];
        let twice = [one[0], one[0]];
        let id = Some(CallId::new("id").unwrap());
        for (op, charges, once) in [
            (Op::Check, &one[..], id),
            (Op::Check, &named[..], None),
            (Op::Check, &nothing[..], None),
            (Op::Check, &twice[..], None),
            (Op::Peek, &one[..], None),
        ] {
            let decision = node.lease.decide(Call { op, charges, once });
            let decision = drive(&world, decision).await.unwrap();
            assert_eq!((decision.source, decision.allowed()), (Source::Memory, true), "{op:?}");
        }
        let seen = drive(&world, node.lease.inspect(&limit, "k".into())).await.unwrap();
        assert!(
            seen.standing.held > 0 && seen.entries.iter().any(|e| e.0.as_deref() == Some("alice"))
        );
        let decision = drive(&world, node.check(&world, &limit, 1)).await.unwrap();
        assert_eq!(decision.source, Source::Lease);
    });
}

#[test]
fn without_a_runtime_nothing_is_borrowed() {
    let limit = leased("100000/s", LeaseSize::Auto);
    let lease = Lease::new(Memory::builder().clock(ManualClock::default()).build());
    for _ in 0..1_000 {
        let one = [charge(&limit, "k", 1)];
        let answer = lease.decide(Call { op: Op::Check, charges: &one, once: None });
        assert_eq!(answer.now().unwrap().source, Source::Memory);
    }
    assert!(lease.outstanding().is_empty());
}

#[test]
fn a_call_with_a_limit_that_is_not_leased_is_the_stores_all_or_nothing() {
    run(async {
        let (world, node, limit) = warmed(HOUR).await;
        let rule = Rule::new("narrow", ["fixed-window 5/1h".parse().unwrap()]).unwrap();
        let narrow = &rule.limits()[0];
        let both = [charge(narrow, "k", 1), charge(&limit, "k", 2)];
        let before = node.unspent();
        for left in (0..5).rev() {
            let decision = ask(&world, &node, Op::Check, &both).await;
            let remaining: Vec<u64> = decision.verdicts.iter().map(|v| v.remaining).collect();
            assert!(decision.allowed());
            assert_eq!(remaining[0], left);
            assert!((9_000..9_700).contains(&remaining[1]), "{remaining:?}");
        }
        assert_eq!(node.unspent(), before);
        let calls = node.calls();
        let denied = ask(&world, &node, Op::Check, &both).await;
        let allowed: Vec<bool> = denied.verdicts.iter().map(|v| v.allowed).collect();
        assert_eq!((allowed, denied.speaker()), (vec![false, true], 0));
        assert_eq!((node.unspent(), node.calls()), (before, calls + 1));
        let seen = world.store.inspect(narrow, "k".into()).now().unwrap().standing;
        assert_eq!((seen.used, seen.held), (5, 0));
        drive(&world, node.lease.close()).await;
        assert_eq!(used_and_held(&world, &limit), (300 + 10, 0));
    });
}

#[test]
fn two_leased_limits_are_spent_together_without_the_store() {
    run(async {
        let rules = ["200000/s", "sliding-window 100000/s"].map(|limit| limit.parse().unwrap());
        let rule = Rule::new("both", rules).unwrap().lease(LeaseSize::Auto);
        let world = World::new(Vec::new());
        let node = Node::good(&world);
        let both = [0, 1].map(|i| charge(&rule.limits()[i], "k", 1));
        for _ in 0..300 {
            assert!(ask(&world, &node, Op::Check, &both).await.allowed());
            world.pass(Duration::from_millis(1)).await;
        }
        let answer = node.lease.decide(Call { op: Op::Check, charges: &both, once: None });
        let decision = answer.now().unwrap();
        assert_eq!((decision.source, decision.verdicts.len()), (Source::Lease, 2));
        drive(&world, node.lease.close()).await;
        for limit in rule.limits() {
            let standing = world.store.inspect(limit, "k".into()).now().unwrap().standing;
            assert_eq!(standing.held, 0);
        }
    });
}

#[test]
fn whoever_enters_is_charged_and_takes_a_place_in_the_store() {
    run(async {
        let (world, node, limit) = warmed(HOUR).await;
        let rule = Rule::new("places", ["concurrency 2".parse().unwrap()]).unwrap();
        let both = [charge(&limit, "k", 1), charge(&rule.limits()[0], "k", 1)];
        let enter = || Op::Enter { id: HoldId::random().unwrap(), ttl: Micros::from_secs(60) };
        let before = node.unspent();
        let first = ask(&world, &node, enter(), &both).await;
        assert!(first.allowed() && first.hold().is_some());
        assert!(ask(&world, &node, enter(), &both).await.allowed());
        assert!(!ask(&world, &node, enter(), &both).await.allowed());
        assert_eq!(node.unspent(), before);
        let leave = Op::Settle { id: first.hold().unwrap(), cost: Some(Cost::ZERO) };
        ask(&world, &node, leave, &[]).await;
        assert!(ask(&world, &node, enter(), &both).await.allowed());
    });
}

#[test]
fn a_changed_limit_ends_what_was_borrowed_under_the_old_one() {
    // What is used under the old limit is used under the new one, as far as it goes; what is told
    // after that is a debt.
    let cases =
        [("fixed-window 200/1h", false, 200..=300), ("fixed-window 2000/1h", true, 301..=301)];
    for (notation, allowed, used) in cases {
        run(async {
            let (world, node, old) = warmed(HOUR).await;
            let new = leased(notation, LeaseSize::Auto);
            let decision = drive(&world, node.check(&world, &new, 1)).await.unwrap();
            assert_eq!((decision.source, decision.allowed()), (Source::Memory, allowed));
            // A call that was on its way brings nothing back.
            let late = drive(&world, node.check(&world, &old, 2_000)).await.unwrap();
            assert_eq!((late.source, late.allowed()), (Source::Memory, false));
            drive(&world, node.lease.close()).await;
            let (now_used, held) = used_and_held(&world, &new);
            assert!(used.contains(&now_used) && held == 0, "{now_used} used, {held} held");
        });
    }
    run(async {
        // Made anew and the same: nothing ends.
        let (world, node, _) = warmed(HOUR).await;
        let before = node.unspent();
        let same = leased(HOUR, LeaseSize::Auto);
        let decision = drive(&world, node.check(&world, &same, 1)).await.unwrap();
        assert_eq!((decision.source, node.unspent()), (Source::Lease, before - 1));
    });
}

#[test]
fn records_refunds_and_resets_come_after_what_was_spent() {
    for (op, used) in [(Op::Record, 350), (Op::Refund, 250), (Op::Reset, 0)] {
        run(async {
            let (world, node, limit) = warmed(HOUR).await;
            let decision = ask(&world, &node, op, &[charge(&limit, "k", 50)]).await;
            assert_eq!(used_and_held(&world, &limit), (used, 0), "{op:?}");
            assert_eq!(decision.verdict().remaining, 10_000 - used, "{op:?}");
            assert_eq!(node.unspent(), 0);
        });
    }
}

#[test]
fn near_the_limit_every_permit_is_asked_for() {
    run(async {
        let limit = leased("fixed-window 2000/1h", LeaseSize::Auto);
        let world = World::new(vec![limit.clone()]);
        let node = Node::good(&world);
        let mut last = Source::Policy;
        for admitted in 0..2_001 {
            let decision = drive(&world, node.check(&world, &limit, 1)).await.unwrap();
            assert_eq!(decision.allowed(), admitted < 2_000, "number {admitted}");
            last = decision.source;
            world.pass(Duration::from_micros(500)).await;
        }
        assert_eq!(last, Source::Memory);
        assert_eq!(used_and_held(&world, &limit), (2_000, 0));
        let local = world.local.load(Ordering::Relaxed);
        assert!(local > 1_800, "{local}");
        say(&format!("2000 permits in a row: {local} locally, {} calls", node.calls()));
    });
}

/// A store that has no quick way, and may have only this to say about the end of a loan.
struct Plain {
    memory: Memory,
    recorded: Arc<AtomicU64>,
    settled: Option<EngineError>,
}

impl Engine for Plain {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        match (call.op, &self.settled) {
            (Op::Settle { .. }, Some(error)) => Answer::Ready(Err(error.clone())),
            (Op::Record, _) => {
                self.recorded.fetch_add(call.charges[0].cost.get(), Ordering::Relaxed);
                self.memory.decide(call)
            }
            _ => self.memory.decide(call),
        }
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
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
fn what_was_spent_from_a_hold_that_the_store_has_lost_is_recorded() {
    run(async {
        let recorded = Arc::new(AtomicU64::new(0));
        let memory = Memory::builder().clock(ManualClock::default()).build();
        // As one does that was promoted before it had heard of it.
        let settled = Some(Refusal::UnknownHold.into());
        let lease = Lease::new(Plain { memory, recorded: recorded.clone(), settled });
        let limit = leased("fixed-window 100000/1h", LeaseSize::Auto);
        let mut local = 0;
        for _ in 0..200 {
            let one = [charge(&limit, "k", 1)];
            let decision = lease.decide(Call { op: Op::Check, charges: &one, once: None }).await;
            local += u64::from(decision.unwrap().source == Source::Lease);
            quiet().await;
        }
        lease.close().await;
        assert!(local > 100);
        assert_eq!(recorded.load(Ordering::Relaxed), local);
    });
}

#[test]
fn nobody_waits_until_a_store_that_does_not_answer_has_heard_of_a_loan() {
    let silent = || EngineError::unavailable(std::io::Error::other("no answer"));
    for op in [Op::Record, Op::Refund, Op::Reset] {
        run(async {
            let memory = Memory::builder().clock(ManualClock::default()).build();
            let settled = Some(silent());
            let lease = Lease::new(Plain { memory, recorded: Arc::default(), settled });
            let limit = leased("fixed-window 100000/1h", LeaseSize::Auto);
            let one = [charge(&limit, "k", 1)];
            for _ in 0..200 {
                lease.decide(Call { op: Op::Check, charges: &one, once: None }).await.unwrap();
                quiet().await;
            }
            assert!(lease.outstanding()[limit.rule()] > 0);
            // The clock stands still, and it is told again only when that moves on.
            tokio::select! {
                biased;
                answer = lease.decide(Call { op, charges: &one, once: None }) => drop(answer.unwrap()),
                () = quiet() => panic!("{op:?} waits"),
            }
        });
    }
}

#[test]
fn a_flood_of_keys_takes_no_more_room_than_there_is() {
    run(async {
        let limit = leased("1000/s", LeaseSize::Auto);
        let world = World::new(vec![limit.clone()]);
        let node = Node::good(&world);
        let before = node.lease.health().memory_bytes;
        for key in 0..20_000 {
            let key = format!("key {key}");
            assert_eq!(node.lease.check_one(&charge(&limit, &key, 1)), None);
            let one = [charge(&limit, &key, 1)];
            drive(&world, node.lease.decide(Call { op: Op::Check, charges: &one, once: None }))
                .await
                .unwrap();
        }
        assert_eq!(node.lease.health().memory_bytes, before);
        assert!(before < 2 << 20, "{before}");
        warm(&world, &node, &limit).await;
        let borrowed = node.lease.health().memory_bytes - before;
        assert!((100..1_000).contains(&borrowed), "{borrowed} bytes for one key");
    });
}

#[test]
fn it_works_between_a_fallback_and_a_cache_of_denials() {
    run(async {
        let clock = ManualClock::default();
        let memory = Memory::builder().clock(clock.clone()).build();
        let store = Plain { memory, recorded: Arc::default(), settled: None };
        let lease = Arc::new(Lease::new(DenyCache::new(store)));
        let events: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = events.clone();
        let watch = move |event: StoreEvent<'_>| told.lock().unwrap().push(format!("{event:?}"));
        let engine = Fallback::new(lease.clone()).watched_by(watch);
        let rule = Rule::new("r", ["1000/s burst 2000".parse().unwrap()]).unwrap();
        let limiter = Limiter::with_rules(engine, [rule.lease(LeaseSize::Auto)]).unwrap();
        let mut sources = Vec::new();
        for _ in 0..2_001 {
            let decision = limiter.check("k").await.unwrap();
            sources.push(decision.source);
            quiet().await;
        }
        assert_eq!(limiter.check("k").await.unwrap().source, Source::DenyCache);
        let count = |source| sources.iter().filter(|s| **s == source).count();
        assert!(count(Source::Lease) > 1_800, "{}", count(Source::Lease));
        assert_eq!(count(Source::Lease) + count(Source::Memory), 2_001);
        // Whoever waits gets what comes next.
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire("k", Duration::from_secs(1)).await.is_ok() }
        });
        for _ in 0..20 {
            quiet().await;
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
                    let call = Call { op: Op::Check, charges: &one, once: None };
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
        // On a machine that stands still for seconds, a loan may be charged whole.
        assert!(standing.used >= admitted && standing.held == 0, "{standing:?}");
        assert!(admitted <= LIMIT && admitted > LIMIT - LIMIT / 4, "{admitted}");
        say(&format!(
            "4 threads: {admitted} of {LIMIT} admitted, {local} locally, all accounted for"
        ));
    });
}
