//! Checks that are sent together are decided as if they had come one by one.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::{server, traffic};
use server::Server;
use tidegate::{
    Answer, Call, Charge, Cost, Decision, Engine, EngineError, Limit, Limiter, ManualClock, Memory,
    Micros, Op, Rule, RuleLimit, Verdict,
};
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use traffic::say;

const PATIENCE: Duration = Duration::from_secs(60);
const TASKS: u64 = 512;
const SIZE: u64 = 100;
/// Nothing of it recovers while a test counts.
const PLENTY: &str = "fixed-window 1000000/30d first-hit";

/// One of each kind, with room for a hundred and hardly any recovery.
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

fn engine(server: &Server) -> Redis {
    Redis::builder(&server.url()).deadline(PATIENCE).build().unwrap()
}

fn limiter(engine: &Arc<Redis>, limit: &str) -> Limiter {
    Limiter::new(Arc::clone(engine), limit.parse::<Limit>().unwrap())
}

/// How many scripts have been called since the last time.
fn scripts(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    server.cli(&["CONFIG", "RESETSTAT"]);
    let calls = |name: &str| {
        let rest = stats.split_once(&format!("cmdstat_{name}:calls=")).map_or("0", |(_, r)| r);
        rest.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    calls("evalsha") + calls("eval")
}

/// What `count` tasks are answered that ask at once.
async fn at_once(
    count: u64,
    ask: impl Fn(u64) -> Answer<'static, Decision>,
) -> Vec<Result<Decision, EngineError>> {
    let mut tasks = JoinSet::new();
    for nth in 0..count {
        let answer = ask(nth);
        tasks.spawn(async move { (nth, answer.await) });
    }
    let mut said = timeout(PATIENCE, tasks.join_all()).await.expect("a caller hangs");
    said.sort_by_key(|(nth, _)| *nth);
    said.into_iter().map(|(_, said)| said).collect()
}

fn check(limiter: &Limiter, key: &str, cost: u64) -> Answer<'static, Decision> {
    let (limiter, key) = (limiter.clone(), key.to_owned());
    Answer::Later(Box::pin(async move { limiter.check(&key).cost(cost).await }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_limit_passes_however_many_ask_at_once() {
    let server = Server::start();
    for slots_apart in [false, true] {
        let mut builder = Redis::builder(&server.url()).deadline(PATIENCE);
        if slots_apart {
            builder = builder.test_slots_apart();
        }
        let engine = Arc::new(builder.build().unwrap());
        for text in HUNDRED {
            let limiter = limiter(&engine, text);
            let key = format!("hot {slots_apart}");
            limiter.check("warm up").await.unwrap();
            scripts(&server);
            let said = at_once(TASKS, |_| check(&limiter, &key, 1)).await;
            let sent = scripts(&server);
            let said: Vec<Decision> = said.into_iter().map(Result::unwrap).collect();
            let (passed, denied): (Vec<_>, Vec<_>) = said.iter().partition(|d| d.allowed());
            assert_eq!(passed.len() as u64, SIZE, "{text}");
            let mut left: Vec<u64> = passed.iter().map(|d| d.remaining()).collect();
            left.sort_unstable();
            assert_eq!(left, (0..SIZE).collect::<Vec<_>>(), "{text}: each is told what he left");
            assert!(denied.iter().all(|d| d.remaining() == 0 && d.retry_after().span().is_some()));
            let mut turns: Vec<Micros> = passed.iter().map(|d| d.delay()).collect();
            turns.sort_unstable();
            turns.dedup();
            let queues = text.ends_with("queue");
            assert_eq!(turns.len() as u64, if queues { SIZE } else { 1 }, "{text}: turns");
            let inspected = limiter.inspect(&key).await.unwrap();
            assert_eq!(inspected[0].standing.used, SIZE, "{text}");
            assert!(sent < TASKS / 2, "{text}: {sent} scripts for {TASKS} checks");
            say(&format!("{TASKS} at once on one key, {text}: {SIZE} passed, {sent} scripts"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_limits_are_charged_all_or_none() {
    let server = Server::start();
    let engine = Arc::new(engine(&server));
    let limits = ["50/30d", "fixed-window 30/month", "sliding-log 40/30d"];
    let shadow: Limit = "leaky-bucket 20/30d".parse().unwrap();
    let deciding = limits.map(|limit| limit.parse().unwrap());
    let rule = Rule::with_shadow("several", deciding, [shadow]).unwrap();
    let limits: Vec<Arc<RuleLimit>> = rule.limits().to_vec();
    let said = at_once(TASKS, |_| decide(&engine, &limits, "k", 1)).await;
    let said: Vec<Decision> = said.into_iter().map(Result::unwrap).collect();
    assert_eq!(said.iter().filter(|d| d.allowed()).count(), 30);
    let by_shadow = said.iter().filter(|d| d.allowed() && d.shadow()[0].allowed).count();
    assert_eq!(by_shadow, 20, "what looks on counts for itself");
    let used = [30, 30, 30, 20];
    for (limit, used) in limits.iter().zip(used) {
        let found = engine.inspect(limit, "k".into()).await.unwrap();
        assert_eq!(found.standing.used, used, "{}", limit.state());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_else_holds_is_not_given_away() {
    let server = Server::start();
    let (holder, asker) = (Arc::new(engine(&server)), Arc::new(engine(&server)));
    for text in HUNDRED {
        let kept = limiter(&holder, text).reserve("k", 30).await.unwrap().keep();
        let limiter = limiter(&asker, text);
        let said = at_once(TASKS, |_| check(&limiter, "k", 1)).await;
        let passed = said.into_iter().filter(|said| said.as_ref().unwrap().allowed()).count();
        assert_eq!(passed, 70, "{text}");
        limiter.reservation(kept).cancel().await.unwrap();
        let said = at_once(TASKS, |_| check(&limiter, "k", 1)).await;
        let passed = said.into_iter().filter(|said| said.as_ref().unwrap().allowed()).count();
        assert_eq!(passed, 30, "{text}: what was released");
    }
}

/// A check of these limits, all on one key.
fn decide(
    engine: &Arc<impl Engine>,
    limits: &[Arc<RuleLimit>],
    key: &str,
    cost: u64,
) -> Answer<'static, Decision> {
    let (engine, limits, key) = (Arc::clone(engine), limits.to_vec(), key.to_owned());
    Answer::Later(Box::pin(async move {
        let cost = Cost::new(cost).unwrap();
        let charge = |limit| Charge { limit, key: key.as_str().into(), cost, who: None };
        let charges: Vec<Charge<'_>> = limits.iter().map(charge).collect();
        engine.decide(Call { op: Op::Check, charges: &charges, once: None }).await
    }))
}

/// Tasks of this runtime run in the order in which they were spawned.
#[tokio::test]
async fn who_comes_first_is_allowed_first() {
    let server = Server::start();
    let engine = Arc::new(engine(&server));
    for text in HUNDRED {
        let limiter = limiter(&engine, text);
        limiter.check("warm up").await.unwrap();
        let said = at_once(TASKS, |_| check(&limiter, "k", 1)).await;
        for (nth, said) in (0..TASKS).zip(said) {
            let said = said.unwrap();
            assert_eq!(said.allowed(), nth < SIZE, "{text}: number {nth}");
            assert_eq!(said.remaining(), SIZE.saturating_sub(nth + 1), "{text}: number {nth}");
        }
    }
}

/// The same calls, at once through the batcher and one by one in memory, at the same instants.
#[tokio::test]
async fn a_batch_decides_as_one_after_the_other_would() {
    const ROUNDS: u64 = 120;
    const CALLS: u64 = 100;
    let server = Server::start();
    let clock = ManualClock::new(Micros::from_secs(1_700_000_000));
    let builder = Redis::builder(&server.url()).deadline(PATIENCE).test_clock(clock.clone());
    let redis = Arc::new(builder.build().unwrap());
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
    decide(&redis, &rules[0], "warm up", 0).await.unwrap();
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
        let said = at_once(CALLS, |nth| {
            let (rule, key, cost) = &calls[nth as usize];
            decide(&redis, &rules[*rule], key, *cost)
        });
        for ((rule, key, cost), said) in calls.iter().zip(said.await) {
            let said = said.unwrap();
            let expected = decide(&memory, &rules[*rule], key, *cost).await.unwrap();
            let what = format!("round {round}: rule {rule}, {key}, cost {cost}");
            assert_eq!(said.verdicts.len(), expected.verdicts.len(), "{what}");
            for (said, expected) in said.verdicts.iter().zip(&expected.verdicts) {
                // He is told when all is recovered, with what those behind him have taken.
                assert!(said.reset_after >= expected.reset_after, "{what}");
                let reset_after = expected.reset_after;
                assert_eq!(Verdict { reset_after, ..*said }, *expected, "{what}");
            }
            allowed += u64::from(said.allowed());
        }
    }
    let sent = scripts(&server);
    let checks = ROUNDS * CALLS;
    say(&format!("batch = one by one: {checks} checks in {sent} scripts, {allowed} allowed"));
    assert!(sent < checks / 4 && allowed > checks / 20 && allowed < checks * 19 / 20);
}

/// Whoever goes away may have been charged, and nobody else notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_go_away_leave_the_others_alone() {
    const CALLS: u64 = 10_000;
    let server = Server::start();
    let engine = Arc::new(engine(&server));
    let limiter = limiter(&engine, PLENTY);
    limiter.check("warm up").await.unwrap();
    let (admitted, dropped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..100 {
        let (limiter, admitted, dropped) = (limiter.clone(), admitted.clone(), dropped.clone());
        tasks.spawn(async move {
            for call in 0..CALLS / 100 {
                // Some stay, and the others go after a few turns of the runtime.
                let turns = (task * 37 + call * 101) % 60;
                let goes = async {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                    if turns % 3 == 0 {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    biased;
                    answer = check(&limiter, "k", 1) => assert!(answer.unwrap().allowed()),
                    () = goes => {
                        dropped.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                }
                admitted.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    timeout(PATIENCE, tasks.join_all()).await.expect("a caller hangs");
    let (admitted, dropped) = (admitted.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed));
    // Behind everything that was sent before it.
    limiter.check("last").await.unwrap();
    let charged = limiter.inspect("k").await.unwrap()[0].standing.used;
    say(&format!("{CALLS} calls: {admitted} admitted, {dropped} dropped, {charged} charged"));
    assert!(dropped > CALLS / 100, "hardly any was dropped");
    assert!(charged >= admitted && charged <= admitted + dropped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_in_one_check_leaves_the_others_alone() {
    let server = Server::start();
    let engine = Arc::new(engine(&server));
    let limiter = limiter(&engine, "sliding-log 1000/30d");
    limiter.check("bad").await.unwrap();
    for key in server.cli(&["KEYS", "tg:{*"]).lines() {
        server.cli(&["DEL", key]);
        server.cli(&["SADD", key, "what nobody expects"]);
    }
    scripts(&server);
    let key = |nth: u64| if nth % 8 == 3 { "bad".to_owned() } else { format!("good {}", nth % 8) };
    let said = at_once(TASKS, |nth| check(&limiter, &key(nth), 1)).await;
    assert!(scripts(&server) < TASKS / 4, "they were not sent together");
    for (nth, said) in (0..TASKS).zip(said) {
        match said {
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
async fn a_server_that_forgets_the_script_again_and_again_charges_each_once() {
    let server = Arc::new(Server::start());
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
    let mut asked = 0;
    while !flushing.is_finished() || asked == 0 {
        let said = at_once(TASKS, |nth| check(&limiter, &format!("k{}", nth % 4), 1)).await;
        assert!(said.into_iter().all(|said| said.unwrap().allowed()));
        asked += TASKS;
    }
    for nth in 0..4 {
        let used = limiter.inspect(&format!("k{nth}")).await.unwrap()[0].standing.used;
        assert_eq!(used, asked / 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_waited_for_until_each_callers_own_deadline() {
    const DEADLINE: Duration = Duration::from_millis(200);
    let server = Server::start();
    let builder = Redis::builder(&server.url()).deadline(DEADLINE);
    let engine = Arc::new(builder.build().unwrap());
    let limiter = limiter(&engine, PLENTY);
    while limiter.check("k").await.is_err() {}
    let before = limiter.inspect("k").await.unwrap()[0].standing.used;
    server.freeze();
    let begun = Instant::now();
    let said = at_once(TASKS, |nth| {
        let ask = check(&limiter, "k", 1);
        Answer::Later(Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(nth % 100)).await;
            let begun = Instant::now();
            let said = ask.await;
            let took = begun.elapsed();
            assert!(took < DEADLINE + Duration::from_secs(2), "took {took:?}");
            said
        }))
    })
    .await;
    let took = begun.elapsed();
    server.thaw();
    let perhaps = |said: &&Result<_, _>| matches!(said, Err(EngineError::Ambiguous(_)));
    let (passed, perhaps) =
        (said.iter().filter(|s| s.is_ok()).count(), said.iter().filter(perhaps).count());
    assert_eq!(passed, 0);
    assert!(perhaps > 0, "none was sent");
    let working = async { while limiter.check("other").await.is_err() {} };
    timeout(PATIENCE, working).await.expect("it does not work again");
    let inspected = async {
        loop {
            if let Ok(found) = limiter.inspect("k").await {
                return found[0].standing.used;
            }
        }
    };
    let charged = inspected.await - before;
    say(&format!("frozen: {TASKS} callers in {took:?}, {perhaps} perhaps, {charged} charged"));
    assert!(charged <= perhaps as u64, "what was not sent was charged");
}

#[tokio::test]
async fn without_a_server_every_caller_is_told_that_nothing_was_sent() {
    let server = Server::stopped(&[]);
    let builder = Redis::builder(&server.url()).deadline(Duration::from_millis(100));
    let engine = Arc::new(builder.build().unwrap());
    let limiter = limiter(&engine, "10/s");
    for said in at_once(TASKS, |_| check(&limiter, "k", 1)).await {
        let Err(EngineError::Unavailable(why)) = said else { panic!("{said:?}") };
        assert!(why.to_string().contains("nothing was sent"), "{why}");
    }
}

/// A future that is polled once and then forgotten has a turn, and loses it with its deadline.
#[tokio::test]
async fn futures_that_nobody_polls_any_more_do_not_keep_the_others_waiting() {
    const DEADLINE: Duration = Duration::from_millis(300);
    let server = Server::start();
    let builder = Redis::builder(&server.url()).deadline(DEADLINE);
    let engine = Arc::new(builder.build().unwrap());
    let limiter = limiter(&engine, PLENTY);
    while limiter.check("k").await.is_err() {}
    let mut forgotten: Vec<_> = (0..8).map(|_| check(&limiter, "k", 1)).collect();
    for ask in &mut forgotten {
        let pending = poll_fn(|cx| Poll::Ready(Pin::new(&mut *ask).poll(cx).is_pending())).await;
        assert!(pending, "it was answered at once");
    }
    tokio::time::sleep(DEADLINE).await;
    let begun = Instant::now();
    for _ in 0..100 {
        limiter.check("k").await.unwrap();
    }
    let took = begun.elapsed();
    drop(forgotten);
    say(&format!("100 checks beside 8 forgotten ones: {took:?}"));
    assert!(took < 20 * DEADLINE, "{took:?}");
}

/// Those who waited behind a call whose runtime is gone are sent by whoever comes next.
#[test]
fn a_runtime_that_goes_takes_nobody_elses_calls_with_it() {
    let server = Server::start();
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
            let said = at_once(TASKS, |_| check(&limiter, "other", 1)).await;
            said.into_iter().filter(|said| matches!(said, Ok(d) if d.allowed())).count()
        }
    });
    first.shutdown_background();
    let heard = second.block_on(async {
        let heard = timeout(PATIENCE, others).await.expect("a caller hangs").unwrap();
        let again = async { while limiter.check("k").await.is_err() {} };
        timeout(PATIENCE, again).await.expect("it does not work again");
        heard
    });
    say(&format!("a runtime went away: {heard} of {TASKS} callers of another were answered"));
}
