//! No call passes before replicas have acknowledged its charge, if that is required.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use testkit::engine::{TEST_SECRET, TEST_TIMEOUT};
use testkit::redis::RedisServer;
use testkit::replicas::{PrimaryAndReplica, decide, limit, used_and_held};
use testkit::timing::{HANG, compare_with_goal};
use tidegate::{
    Call, Charge, Cost, Costs, Engine as _, EngineError, Expiry, HoldId, Key, Micros, Op, RuleLimit,
};
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// Deadline of calls that are not acknowledged.
const SHORT: Duration = Duration::from_secs(1);
const MINUTE: Micros = Micros::new(60_000_000);

fn hold() -> Op<'static> {
    Op::hold(HoldId::random().unwrap(), MINUTE, Expiry::Release)
}

/// The error says that replicas did not acknowledge the call.
#[track_caller]
fn assert_unconfirmed<T: std::fmt::Debug>(result: &Result<T, EngineError>) {
    match result {
        Err(EngineError::Ambiguous(why)) if why.to_string().contains("replica") => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn redis_passes_the_conformance_suite_while_replicas_acknowledge() {
    let pair = PrimaryAndReplica::start();
    for cross_slot in [false, true] {
        pair.primary.cli(&["FLUSHALL"]);
        tidegate::conformance::run(|clock| {
            let builder = pair.builder(1, TEST_TIMEOUT).test_clock(clock);
            if cross_slot { builder.test_force_cross_slot() } else { builder }.build().unwrap()
        })
        .await;
    }
}

#[tokio::test]
async fn while_the_replica_is_frozen_nothing_passes_and_charges_stay() {
    let pair = PrimaryAndReplica::start();
    let (hasty, patient) = (pair.builder(1, SHORT), pair.builder(1, TEST_TIMEOUT));
    let (hasty, patient) = (hasty.build().unwrap(), patient.build().unwrap());
    let (wide, narrow) =
        (limit("wide", "fixed-window 1000/365d"), limit("narrow", "fixed-window 1/365d first-hit"));
    for key in ["k", "other"] {
        assert!(decide(&patient, Op::Check, &wide, key, None).await.unwrap().allowed());
        assert!(decide(&patient, Op::Check, &narrow, key, None).await.unwrap().allowed());
    }
    let kept = decide(&patient, hold(), &wide, "held", None).await.unwrap().hold().unwrap();
    until_ready(&hasty, &narrow).await;
    assert_eq!(hasty.health().warning, None);

    pair.replica.freeze();
    for (op, once) in [
        (Op::Check, None),
        (Op::Check, Some("id")),
        (Op::Record, None),
        (hold(), None),
        (Op::enter(HoldId::random().unwrap(), MINUTE), None),
        (Op::Renew { id: kept, ttl: MINUTE }, None),
        (Op::Settle { id: kept, costs: Costs::AsHeld }, None),
        (Op::Refund, None),
    ] {
        let begun = Instant::now();
        let result = timeout(HANG, decide(&hasty, op, &wide, "k", once)).await;
        assert_unconfirmed(&result.expect("waits for the frozen replica"));
        compare_with_goal(
            format_args!("{op:?} without an acknowledgement"),
            begun.elapsed(),
            2 * SHORT,
        );
        // An idle server ends a WAIT up to 100 ms late.
        sleep(Duration::from_millis(150)).await;
    }
    let warning = hasty.health().warning.unwrap();
    assert!(warning.contains("replica"), "{warning}");
    // Denials and peeks need no acknowledgement.
    assert!(!decide(&patient, Op::Check, &narrow, "k", None).await.unwrap().allowed());
    assert!(!decide(&patient, Op::Check, &narrow, "k", Some("new")).await.unwrap().allowed());
    assert!(decide(&patient, Op::Peek, &wide, "k", None).await.unwrap().allowed());
    // Two checks, a record and an enter are charged; the refund takes one back.
    assert_eq!(used_and_held(&patient, &wide, "k").await, (1 + 4 - 1, 0), "no hold is left");
    assert_eq!(used_and_held(&patient, &wide, "held").await, (1, 0));

    pair.replica.thaw();
    assert!(decide(&patient, Op::Check, &wide, "k", None).await.unwrap().allowed());
    assert_eq!(used_and_held(&patient, &wide, "k").await.0, 5);
    until_ready(&hasty, &wide).await;
    assert_eq!(hasty.health().warning, None);
}

/// Waits until the engine has its connections and the script.
async fn until_ready(engine: &Redis, narrow: &std::sync::Arc<RuleLimit>) {
    let ready = async {
        while decide(engine, Op::Check, narrow, "k", None).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TEST_TIMEOUT, ready).await.expect("no connection");
}

/// Many calls of two kinds at once: sent ones stay charged, the others were not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_unacknowledged_calls_all_end_at_their_deadline() {
    let pair = PrimaryAndReplica::start();
    let engine = std::sync::Arc::new(pair.builder(1, SHORT).build().unwrap());
    let wide = limit("wide", "fixed-window 1000000/365d");
    until_ready(&engine, &wide).await;
    let patient = pair.builder(1, TEST_TIMEOUT).build().unwrap();
    let before = used_and_held(&patient, &wide, "k").await.0;
    pair.replica.freeze();
    let mut tasks = JoinSet::new();
    for nth in 0..200 {
        let (engine, wide) = (engine.clone(), wide.clone());
        let op = if nth % 10 == 0 { Op::Record } else { Op::Check };
        tasks.spawn(async move {
            let begun = Instant::now();
            (decide(&engine, op, &wide, "k", None).await, begun.elapsed())
        });
    }
    let all = timeout(TEST_TIMEOUT, tasks.join_all()).await.expect("a call hangs");
    let mut ambiguous = 0;
    for (result, took) in all {
        compare_with_goal("a call without an acknowledgement", took, 2 * SHORT);
        match result {
            Err(EngineError::Ambiguous(_)) => ambiguous += 1,
            Err(EngineError::Unavailable(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    pair.replica.thaw();
    assert!(decide(&patient, Op::Check, &wide, "other", None).await.unwrap().allowed());
    let charged = used_and_held(&patient, &wide, "k").await.0 - before;
    assert!((1..=ambiguous).contains(&charged), "{charged} charged, {ambiguous} ambiguous");
}

#[tokio::test]
async fn a_repeated_call_waits_for_the_acknowledgement_of_the_first() {
    let pair = PrimaryAndReplica::start();
    let engine = |deadline| pair.builder(1, deadline).build().unwrap();
    let (first, second, patient) = (engine(SHORT), engine(SHORT), engine(TEST_TIMEOUT));
    let wide = limit("wide", "fixed-window 1000/365d");
    let kept = decide(&patient, hold(), &wide, "held", None).await.unwrap().hold().unwrap();
    let settle = Op::Settle { id: kept, costs: Costs::All(Cost::ONE) };
    for engine in [&first, &second] {
        until_ready(engine, &wide).await;
    }
    let before = used_and_held(&patient, &wide, "k").await.0;

    pair.replica.freeze();
    for engine in [&first, &second] {
        assert_unconfirmed(&decide(engine, Op::Check, &wide, "k", Some("id")).await);
        assert_unconfirmed(&decide(engine, settle, &wide, "held", None).await);
        let reserved = decide(engine, hold(), &wide, "k", Some("reservation")).await;
        assert_unconfirmed(&reserved);
        sleep(Duration::from_millis(150)).await;
    }
    assert_eq!(used_and_held(&patient, &wide, "k").await, (before + 1, 1));

    pair.replica.thaw();
    for (op, key, id) in
        [(Op::Check, "k", Some("id")), (hold(), "k", Some("reservation")), (settle, "held", None)]
    {
        let offset = pair.offset();
        let decision = decide(&patient, op, &wide, key, id).await.unwrap();
        assert!(decision.allowed() && (id.is_none() || decision.repeated()), "{decision:?}");
        // Newer servers WAIT only for writes of this connection, so the call has to write.
        assert!(pair.offset() > offset, "{op:?} was acknowledged without a write");
    }
    assert_eq!(used_and_held(&patient, &wide, "k").await, (before + 1, 1), "charged once");
}

/// A call over several slots holds everything and waits for acknowledgements before it charges.
#[tokio::test]
async fn a_call_over_several_slots_passes_when_all_slots_are_acknowledged() {
    let pair = PrimaryAndReplica::start();
    let engine = |deadline| pair.builder(1, deadline).test_force_cross_slot().build().unwrap();
    let (hasty, patient) = (engine(SHORT), engine(TEST_TIMEOUT));
    let wide = limit("wide", "fixed-window 1000/365d");
    let keys = ["a", "b", "c"];
    let check = async |engine: &Redis, once: Option<&str>| {
        let charge =
            |key| Charge { limit: &wide, key: Key::from(key), cost: Cost::ONE, caller: None };
        let charges = keys.map(charge);
        let once = once.map(|id| tidegate::IdempotencyKey::new(id).unwrap());
        engine.decide(Call { op: Op::Check, charges: &charges, idempotency_key: once }).await
    };
    assert!(check(&patient, None).await.unwrap().allowed());
    assert!(check(&patient, Some("before")).await.unwrap().allowed());
    until_ready(&hasty, &wide).await;
    pair.replica.freeze();
    for id in [None, Some("id"), Some("before")] {
        assert_unconfirmed(&check(&hasty, id).await);
        sleep(Duration::from_millis(150)).await;
    }
    pair.replica.thaw();
    assert!(check(&patient, Some("before")).await.unwrap().repeated());
    assert!(check(&patient, Some("id")).await.unwrap().allowed());
    let begun = Instant::now();
    for key in keys {
        // Holds of failed calls are dropped, or charged when they expire.
        while used_and_held(&patient, &wide, key).await.1 > 0 {
            assert!(begun.elapsed() < TEST_TIMEOUT, "holds do not end");
            sleep(Duration::from_millis(20)).await;
        }
        let used = used_and_held(&patient, &wide, key).await.0;
        assert!((3..=5).contains(&used), "{used} of {key}");
    }
}

/// The reply to a dropped call is not read by the next call on its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_to_a_dropped_call_does_not_reach_the_next() {
    const CALLS: u64 = 400;
    let pair = PrimaryAndReplica::start();
    let engine = std::sync::Arc::new(pair.builder(1, TEST_TIMEOUT).build().unwrap());
    let wide = limit("wide", "fixed-window 1000000/365d");
    until_ready(&engine, &wide).await;
    let mut tasks = JoinSet::new();
    for nth in 1..=CALLS {
        let (engine, wide) = (engine.clone(), wide.clone());
        tasks.spawn(async move {
            let key = format!("key {nth}");
            let cost = Cost::new(nth).unwrap();
            let charge = Charge { limit: &wide, key: Key::from(&key), cost, caller: None };
            let op = if nth % 3 == 0 { Op::Record } else { Op::Check };
            let charges = [charge];
            let mut call =
                pin!(engine.decide(Call { op, charges: &charges, idempotency_key: None }));
            if nth % 2 == 0 {
                let decision = call.await.unwrap();
                return Some((nth, decision.remaining()));
            }
            for _ in 0..nth % 7 {
                let polled = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
                if polled.is_ready() {
                    break;
                }
                sleep(Duration::from_micros(nth * 10)).await;
            }
            None
        });
    }
    let all = timeout(3 * TEST_TIMEOUT, tasks.join_all()).await.expect("a call hangs");
    let decided: Vec<_> = all.into_iter().flatten().collect();
    assert_eq!(decided.len() as u64, CALLS / 2);
    for (cost, remaining) in decided {
        assert_eq!(remaining, 1_000_000 - cost, "the reply of another call");
    }
    // All connections are idle again.
    for _ in 0..8 {
        assert!(decide(&engine, Op::Record, &wide, "k", None).await.unwrap().allowed());
    }
}

/// Number of connections, without the one that lists them.
fn connections(server: &RedisServer) -> usize {
    let clients = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]);
    clients.lines().filter(|line| !line.contains("cmd=client")).count()
}

#[tokio::test]
async fn extra_connections_are_opened_only_for_acknowledgements() {
    let wide = limit("wide", "fixed-window 1000/365d");
    for (replicas, max) in [(0, 1), (1, 5)] {
        let pair = PrimaryAndReplica::start();
        let engine = pair.builder(replicas, TEST_TIMEOUT).build().unwrap();
        let mut tasks = JoinSet::new();
        let engine = std::sync::Arc::new(engine);
        for nth in 0..64 {
            let (engine, wide) = (engine.clone(), wide.clone());
            tasks.spawn(async move {
                decide(&engine, Op::Record, &wide, &format!("{nth}"), None).await
            });
        }
        assert!(tasks.join_all().await.iter().all(Result::is_ok));
        assert_eq!(connections(&pair.primary), max, "{replicas} replicas");
    }
}

#[tokio::test]
async fn an_error_says_why_a_call_was_not_acknowledged() {
    let wide = limit("wide", "fixed-window 1000/365d");
    // No replica.
    let alone = RedisServer::start();
    let builder = Redis::builder(&alone.url()).secret(TEST_SECRET).connect_deadline(TEST_TIMEOUT);
    let engine = builder.deadline(SHORT).wait_for_replicas(1).build().unwrap();
    let why = loop {
        match decide(&engine, Op::Check, &wide, "k", None).await {
            Err(EngineError::Ambiguous(why)) => break why.to_string(),
            Err(EngineError::Unavailable(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(why.contains("1 replica"), "{why}");
    // Fewer replicas than required.
    let pair = PrimaryAndReplica::start();
    let engine = pair.builder(2, TEST_TIMEOUT).deadline(5 * SHORT).build().unwrap();
    let error = decide(&engine, Op::Check, &wide, "k", None).await.unwrap_err();
    assert!(error.to_string().contains("2 replicas"), "{error}");
    // No permission for WAIT.
    let user = |words: &str| {
        let words: Vec<&str> = "ACL SETUSER u".split(' ').chain(words.split(' ')).collect();
        assert_eq!(pair.primary.cli(&words), "OK");
    };
    user("reset on >change-me ~* &* +@all -wait");
    let url = format!("redis://u:change-me@127.0.0.1:{}/", pair.primary.port());
    let builder = Redis::builder(&url).secret(TEST_SECRET).connect_deadline(TEST_TIMEOUT);
    let engine = builder.deadline(TEST_TIMEOUT).wait_for_replicas(1).build().unwrap();
    let error = decide(&engine, Op::Check, &wide, "k", None).await.unwrap_err();
    assert!(matches!(error, EngineError::Ambiguous(_)), "{error}");
    assert!(error.to_string().contains("+wait"), "{error}");
    user("+wait");
    assert!(decide(&engine, Op::Check, &wide, "k", None).await.unwrap().allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_calls_follow_the_primary() {
    let mut setup = testkit::sentinel::SentinelSetup::start();
    let builder = Redis::builder(&setup.url()).secret(TEST_SECRET).deadline(Duration::from_secs(1));
    let engine = builder.wait_for_replicas(1).build().unwrap();
    let wide = limit("wide", "fixed-window 1000000/365d first-hit");
    let mut admitted = 0;
    for round in 0..2 {
        let begun = Instant::now();
        let mut in_a_row = 0;
        while in_a_row < 50 {
            let result = decide(&engine, Op::Check, &wide, "k", None).await;
            let passes = result.is_ok_and(|decision| decision.allowed());
            in_a_row = if passes { in_a_row + 1 } else { 0 };
            admitted += u64::from(passes);
            assert!(
                begun.elapsed() < 3 * TEST_TIMEOUT,
                "the primary is not found in round {round}"
            );
        }
        if round == 0 {
            let primary = setup.primary_index();
            setup.servers[primary].kill();
        }
    }
    let used = used_and_held(&engine, &wide, "k").await.0;
    assert!(used >= admitted, "{used} charged, {admitted} admitted");
}
