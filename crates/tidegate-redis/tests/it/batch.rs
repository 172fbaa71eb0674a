//! Checks that are sent in one batch are decided as if they had been sent one by one.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use testkit::redis::RedisServer;
use testkit::timing::{HANG, compare_with_goal};
use tidegate::{
    Call, Charge, Cost, Decision, Engine, EngineError, EngineFuture, Limit, Limiter, ManualClock,
    Memory, Micros, Op, Rule, RuleLimit, Verdict,
};
use tidegate_model::print_line;
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const TIMEOUT: Duration = HANG;
const TASKS: u64 = 512;
const SIZE: u64 = 100;
/// Nothing recovers while a test counts.
const PLENTY: &str = "fixed-window 1000000/30d first-hit";

/// One of each algorithm, with a hundred permits and hardly any recovery.
const HUNDRED: [&str; 9] = [
    "100/30d",
    "100/30d every 30d",
    "leaky-bucket 100/30d",
    "leaky-bucket 100/30d queue",
    "fixed-window 100/month",
    "fixed-window 100/30d first-hit",
    "sliding-log 100/30d",
    "sliding-window 100/30d",
    "sliding-window 100/30d approximate",
];

fn engine(server: &RedisServer) -> Redis {
    Redis::builder(&server.url()).deadline(TIMEOUT).build().unwrap()
}

fn limiter(engine: &Arc<Redis>, limit: &str) -> Limiter {
    Limiter::new(Arc::clone(engine), limit.parse::<Limit>().unwrap())
}

/// Number of scripts called since the last time.
fn scripts(server: &RedisServer) -> u64 {
    let calls = server.script_calls();
    server.cli(&["CONFIG", "RESETSTAT"]);
    calls
}

/// Results of `count` tasks that call at the same time.
async fn at_once(
    count: u64,
    call: impl Fn(u64) -> EngineFuture<'static, Decision>,
) -> Vec<Result<Decision, EngineError>> {
    let mut tasks = JoinSet::new();
    for nth in 0..count {
        let result = call(nth);
        tasks.spawn(async move { (nth, result.await) });
    }
    let mut results = timeout(TIMEOUT, tasks.join_all()).await.expect("a caller hangs");
    results.sort_by_key(|(nth, _)| *nth);
    results.into_iter().map(|(_, result)| result).collect()
}

fn check(limiter: &Limiter, key: &str, cost: u64) -> EngineFuture<'static, Decision> {
    let (limiter, key) = (limiter.clone(), key.to_owned());
    EngineFuture::Pending(Box::pin(async move { limiter.check(&key).cost(cost).await }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_limit_passes_however_many_call_at_once() {
    let server = RedisServer::start();
    for cross_slot in [false, true] {
        let mut builder = Redis::builder(&server.url()).deadline(TIMEOUT);
        if cross_slot {
            builder = builder.test_force_cross_slot();
        }
        let engine = Arc::new(builder.build().unwrap());
        for text in HUNDRED {
            let limiter = limiter(&engine, text);
            let key = format!("hot {cross_slot}");
            limiter.check("warm up").await.unwrap();
            scripts(&server);
            let results = at_once(TASKS, |_| check(&limiter, &key, 1)).await;
            let sent = scripts(&server);
            let decisions: Vec<Decision> = results.into_iter().map(Result::unwrap).collect();
            let (passed, denied): (Vec<_>, Vec<_>) = decisions.iter().partition(|d| d.allowed());
            assert_eq!(passed.len() as u64, SIZE, "{text}");
            let mut left: Vec<u64> = passed.iter().map(|d| d.remaining()).collect();
            left.sort_unstable();
            assert_eq!(left, (0..SIZE).collect::<Vec<_>>(), "{text}: each reports what it left");
            assert!(denied.iter().all(|d| d.remaining() == 0 && d.retry_after().span().is_some()));
            let mut delays: Vec<Micros> = passed.iter().map(|d| d.delay()).collect();
            delays.sort_unstable();
            delays.dedup();
            let queues = text.ends_with("queue");
            assert_eq!(delays.len() as u64, if queues { SIZE } else { 1 }, "{text}: delays");
            let inspected = limiter.inspect(&key).await.unwrap();
            assert_eq!(inspected[0].standing.used, SIZE, "{text}");
            assert!(sent < TASKS / 2, "{text}: {sent} scripts for {TASKS} checks");
            print_line(&format!(
                "{TASKS} at once on one key, {text}: {SIZE} passed, {sent} scripts"
            ));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_limits_are_charged_all_or_none() {
    let server = RedisServer::start();
    let engine = Arc::new(engine(&server));
    let limits = ["50/30d", "fixed-window 30/month", "sliding-log 40/30d"];
    let shadow: Limit = "leaky-bucket 20/30d".parse().unwrap();
    let deciding = limits.map(|limit| limit.parse().unwrap());
    let rule = Rule::with_shadow("several", deciding, [shadow]).unwrap();
    let limits: Vec<Arc<RuleLimit>> = rule.limits().to_vec();
    let results = at_once(TASKS, |_| decide(&engine, &limits, "k", 1)).await;
    let decisions: Vec<Decision> = results.into_iter().map(Result::unwrap).collect();
    assert_eq!(decisions.iter().filter(|d| d.allowed()).count(), 30);
    let by_shadow = decisions.iter().filter(|d| d.allowed() && d.shadow()[0].allowed).count();
    assert_eq!(by_shadow, 20, "the shadow limit counts separately");
    let used = [30, 30, 30, 20];
    for (limit, used) in limits.iter().zip(used) {
        let found = engine.inspect(limit, "k".into()).await.unwrap();
        assert_eq!(found.standing.used, used, "{}", limit.state());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_held_by_another_engine_are_not_given_away() {
    let server = RedisServer::start();
    let (holder, caller) = (Arc::new(engine(&server)), Arc::new(engine(&server)));
    for text in HUNDRED {
        let kept = limiter(&holder, text).reserve("k", 30).await.unwrap().keep();
        let limiter = limiter(&caller, text);
        let results = at_once(TASKS, |_| check(&limiter, "k", 1)).await;
        let passed =
            results.into_iter().filter(|result| result.as_ref().unwrap().allowed()).count();
        assert_eq!(passed, 70, "{text}");
        limiter.reservation(kept).cancel().await.unwrap();
        let results = at_once(TASKS, |_| check(&limiter, "k", 1)).await;
        let passed =
            results.into_iter().filter(|result| result.as_ref().unwrap().allowed()).count();
        assert_eq!(passed, 30, "{text}: the released permits");
    }
}

/// A check of these limits, all with the same key.
fn decide(
    engine: &Arc<impl Engine>,
    limits: &[Arc<RuleLimit>],
    key: &str,
    cost: u64,
) -> EngineFuture<'static, Decision> {
    let (engine, limits, key) = (Arc::clone(engine), limits.to_vec(), key.to_owned());
    EngineFuture::Pending(Box::pin(async move {
        let cost = Cost::new(cost).unwrap();
        let charge = |limit| Charge { limit, key: key.as_str().into(), cost, caller: None };
        let charges: Vec<Charge<'_>> = limits.iter().map(charge).collect();
        engine.decide(Call { op: Op::Check, charges: &charges, idempotency_key: None }).await
    }))
}

/// Tasks of this runtime run in the order in which they were spawned. The order of two batches is
/// lost if the connection is replaced between them, which happens on a busy machine.
#[tokio::test]
async fn earlier_calls_are_allowed_first() {
    let server = RedisServer::start();
    let engine = Arc::new(engine(&server));
    for text in HUNDRED {
        let limiter = limiter(&engine, text);
        limiter.check("warm up").await.unwrap();
        let mut in_order = false;
        for attempt in 0..5 {
            let key = format!("k{attempt}");
            let results = at_once(TASKS, |_| check(&limiter, &key, 1)).await;
            let decisions: Vec<_> = results.into_iter().map(Result::unwrap).collect();
            let allowed = decisions.iter().filter(|decision| decision.allowed()).count();
            assert_eq!(allowed as u64, SIZE, "{text}");
            in_order = (0..TASKS).zip(&decisions).all(|(nth, decision)| {
                decision.allowed() == (nth < SIZE)
                    && decision.remaining() == SIZE.saturating_sub(nth + 1)
            });
            if in_order {
                break;
            }
        }
        assert!(in_order, "{text}");
    }
}

/// The same calls, batched to Redis and one by one in memory, at the same instants.
#[tokio::test]
async fn a_batch_decides_as_sequential_calls_would() {
    const ROUNDS: u64 = 120;
    const CALLS: u64 = 100;
    let server = RedisServer::start();
    let clock = ManualClock::new(Micros::from_secs(1_700_000_000));
    let engine = || {
        let builder = Redis::builder(&server.url()).deadline(TIMEOUT).test_clock(clock.clone());
        Arc::new(builder.build().unwrap())
    };
    let memory = Arc::new(Memory::builder().clock(clock.clone()).build());
    let rules: Vec<Vec<Arc<RuleLimit>>> = [
        &["20/s burst 30"][..],
        &["leaky-bucket 20/s queue"],
        &["fixed-window 40/s"],
        &["sliding-log 40/2s"],
        &["sliding-window 50/s approximate"],
        &["10/s every 100ms", "sliding-window 30/s", "fixed-window 100/min"],
    ]
    .iter()
    .enumerate()
    .map(|(nth, limits)| {
        let limits: Vec<Limit> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        Rule::new(&format!("rule-{nth}"), limits).unwrap().limits().to_vec()
    })
    .collect();
    // A batch whose script the server does not have yet is sent again, after later batches.
    let first = engine();
    for limits in &rules {
        decide(&first, limits, "warm up", 1).await.unwrap();
    }
    scripts(&server);
    let (mut seed, mut allowed) = (7_u64, 0);
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for round in 0..ROUNDS {
        clock.advance(Duration::from_micros(random(300_000)));
        let calls: Vec<(usize, String, u64)> = (0..CALLS)
            .map(|_| {
                let cost = [0, 1, 1, 1, 1, 1, 1, 2, 5, 41][random(10) as usize];
                (random(6) as usize, format!("k{}", random(2)), cost)
            })
            .collect();
        // Once a second a call checks the secret of the namespace first, and later calls overtake
        // it. A new engine does so before the round.
        let redis = engine();
        decide(&redis, &rules[0], "warm up", 1).await.unwrap();
        let results = at_once(CALLS, |nth| {
            let (rule, key, cost) = &calls[nth as usize];
            decide(&redis, &rules[*rule], key, *cost)
        });
        for ((rule, key, cost), result) in calls.iter().zip(results.await) {
            let decision = result.unwrap();
            let expected = decide(&memory, &rules[*rule], key, *cost).await.unwrap();
            let what = format!("round {round}: rule {rule}, {key}, cost {cost}");
            assert_eq!(decision.verdicts.len(), expected.verdicts.len(), "{what}");
            for (verdict, expected) in decision.verdicts.iter().zip(&expected.verdicts) {
                // `reset_after` also covers the charges of later calls of the batch.
                assert!(verdict.reset_after >= expected.reset_after, "{what}");
                let reset_after = expected.reset_after;
                assert_eq!(Verdict { reset_after, ..*verdict }, *expected, "{what}");
            }
            allowed += u64::from(decision.allowed());
        }
    }
    let sent = scripts(&server);
    let checks = ROUNDS * CALLS;
    print_line(&format!(
        "batch = one by one: {checks} checks in {sent} scripts, {allowed} allowed"
    ));
    assert!(sent < checks / 4 && allowed > checks / 20 && allowed < checks * 19 / 20);
}

/// A dropped call may have been charged, and does not affect other calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_calls_do_not_affect_the_others() {
    const CALLS: u64 = 10_000;
    let server = RedisServer::start();
    let engine = Arc::new(engine(&server));
    let limiter = limiter(&engine, PLENTY);
    limiter.check("warm up").await.unwrap();
    let (admitted, dropped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..100 {
        let (limiter, admitted, dropped) = (limiter.clone(), admitted.clone(), dropped.clone());
        tasks.spawn(async move {
            for call in 0..CALLS / 100 {
                // A third is kept; the others are dropped after a few turns of the runtime.
                let turns = (task * 37 + call * 101) % 60;
                let drop_after = async {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                    if turns % 3 == 0 {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    biased;
                    result = check(&limiter, "k", 1) => assert!(result.unwrap().allowed()),
                    () = drop_after => {
                        dropped.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                }
                admitted.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    timeout(TIMEOUT, tasks.join_all()).await.expect("a caller hangs");
    let (admitted, dropped) = (admitted.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed));
    // Sent after everything else.
    limiter.check("last").await.unwrap();
    let charged = limiter.inspect("k").await.unwrap()[0].standing.used;
    print_line(&format!(
        "{CALLS} calls: {admitted} admitted, {dropped} dropped, {charged} charged"
    ));
    assert!(dropped > CALLS / 100, "hardly any call was dropped");
    assert!(charged >= admitted && charged <= admitted + dropped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_in_one_check_does_not_affect_the_others() {
    let server = RedisServer::start();
    let engine = Arc::new(engine(&server));
    let limiter = limiter(&engine, "sliding-log 1000/30d");
    limiter.check("bad").await.unwrap();
    for key in server.cli(&["KEYS", "tg:{*"]).lines() {
        server.cli(&["DEL", key]);
        server.cli(&["SADD", key, "unexpected"]);
    }
    scripts(&server);
    let key = |nth: u64| if nth % 8 == 3 { "bad".to_owned() } else { format!("good {}", nth % 8) };
    let results = at_once(TASKS, |nth| check(&limiter, &key(nth), 1)).await;
    assert!(scripts(&server) < TASKS / 4, "not sent in batches");
    for (nth, result) in (0..TASKS).zip(results) {
        match result {
            Ok(decision) => assert!(decision.allowed() && key(nth) != "bad"),
            Err(EngineError::Unavailable(why)) => {
                assert!(key(nth) == "bad" && why.to_string().contains("WRONGTYPE"), "{why}");
            }
            Err(other) => panic!("{other}"),
        }
    }
    for nth in (0..8).filter(|nth| nth % 8 != 3) {
        let used = limiter.inspect(&key(nth)).await.unwrap()[0].standing.used;
        assert_eq!(used, TASKS / 8);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_scripts_are_flushed_repeatedly_charges_each_call_once() {
    let server = Arc::new(RedisServer::start());
    let engine = Arc::new(engine(&server));
    let limiter = limiter(&engine, PLENTY);
    let flushing = {
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || {
            (0..60).for_each(|_| {
                server.cli(&["SCRIPT", "FLUSH"]);
            });
        })
    };
    let mut calls = 0;
    while !flushing.is_finished() || calls == 0 {
        let results = at_once(TASKS, |nth| check(&limiter, &format!("k{}", nth % 4), 1)).await;
        assert!(results.into_iter().all(|result| result.unwrap().allowed()));
        calls += TASKS;
    }
    for nth in 0..4 {
        let used = limiter.inspect(&format!("k{nth}")).await.unwrap()[0].standing.used;
        assert_eq!(used, calls / 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_a_frozen_server_wait_until_their_own_deadlines() {
    const DEADLINE: Duration = Duration::from_millis(200);
    let server = RedisServer::start();
    let builder = Redis::builder(&server.url()).deadline(DEADLINE);
    let engine = Arc::new(builder.build().unwrap());
    let limiter = limiter(&engine, PLENTY);
    while limiter.check("k").await.is_err() {}
    let used = async || loop {
        if let Ok(found) = limiter.inspect("k").await {
            return found[0].standing.used;
        }
    };
    let before = used().await;
    server.freeze();
    let begun = Instant::now();
    let results = at_once(TASKS, |nth| {
        let call = check(&limiter, "k", 1);
        EngineFuture::Pending(Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(nth % 100)).await;
            let begun = Instant::now();
            let result = timeout(TIMEOUT, call).await.expect("waits for the frozen server");
            compare_with_goal("a call to a frozen server", begun.elapsed(), 2 * DEADLINE);
            result
        }))
    })
    .await;
    let took = begun.elapsed();
    server.thaw();
    let is_ambiguous = |result: &&Result<_, _>| matches!(result, Err(EngineError::Ambiguous(_)));
    let passed = results.iter().filter(|result| result.is_ok()).count();
    let ambiguous = results.iter().filter(is_ambiguous).count();
    assert_eq!(passed, 0);
    assert!(ambiguous > 0, "none was sent");
    let working = async { while limiter.check("other").await.is_err() {} };
    timeout(TIMEOUT, working).await.expect("no decision after the freeze");
    let charged = used().await - before;
    print_line(&format!(
        "frozen: {TASKS} callers in {took:?}, {ambiguous} ambiguous, {charged} charged"
    ));
    assert!(charged <= ambiguous as u64, "a call that was not sent was charged");
}

#[tokio::test]
async fn without_a_server_every_error_says_that_nothing_was_sent() {
    let server = RedisServer::stopped(&[]);
    let builder = Redis::builder(&server.url()).deadline(Duration::from_millis(100));
    let engine = Arc::new(builder.build().unwrap());
    let limiter = limiter(&engine, "10/s");
    for result in at_once(TASKS, |_| check(&limiter, "k", 1)).await {
        let Err(EngineError::Unavailable(why)) = result else { panic!("{result:?}") };
        assert!(why.to_string().contains("nothing was sent"), "{why}");
    }
}

/// A future that is polled once and never again keeps its send permit until its deadline.
#[tokio::test]
async fn futures_that_are_no_longer_polled_do_not_block_the_others() {
    const DEADLINE: Duration = Duration::from_secs(2);
    let server = RedisServer::start();
    let builder = Redis::builder(&server.url()).deadline(DEADLINE);
    let engine = Arc::new(builder.build().unwrap());
    let limiter = limiter(&engine, PLENTY);
    while limiter.check("k").await.is_err() {}
    let mut abandoned: Vec<_> = (0..8).map(|_| check(&limiter, "k", 1)).collect();
    for call in &mut abandoned {
        let pending = poll_fn(|cx| Poll::Ready(Pin::new(&mut *call).poll(cx).is_pending())).await;
        assert!(pending, "decided at the first poll");
    }
    tokio::time::sleep(DEADLINE).await;
    let begun = Instant::now();
    for _ in 0..100 {
        limiter.check("k").await.unwrap();
    }
    let took = begun.elapsed();
    drop(abandoned);
    print_line(&format!("100 checks next to 8 abandoned ones: {took:?}"));
    compare_with_goal("100 checks next to abandoned ones", took, DEADLINE);
}

/// Calls that wait behind a call of a stopped runtime are sent by the next call.
#[test]
fn a_stopped_runtime_does_not_block_calls_of_another() {
    let server = RedisServer::start();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let engine = first.block_on(async { Arc::new(engine(&server)) });
    let limiter = limiter(&engine, PLENTY);
    first.block_on(async { limiter.check("k").await.unwrap() });
    for _ in 0..200 {
        let limiter = limiter.clone();
        first.spawn(async move { while limiter.check("k").await.is_ok() {} });
    }
    let others = second.spawn({
        let limiter = limiter.clone();
        async move {
            let results = at_once(TASKS, |_| check(&limiter, "other", 1)).await;
            results.into_iter().filter(|result| matches!(result, Ok(d) if d.allowed())).count()
        }
    });
    first.shutdown_background();
    let decided = second.block_on(async {
        let decided = timeout(TIMEOUT, others).await.expect("a caller hangs").unwrap();
        let again = async { while limiter.check("k").await.is_err() {} };
        timeout(TIMEOUT, again).await.expect("no decision after the stop");
        decided
    });
    print_line(&format!("a runtime stopped: {decided} of {TASKS} calls of another were decided"));
}
