//! Nobody passes before replicas have what was charged for it, if they are asked.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::{replicas, sentinel, server};
use replicas::{PATIENCE, Pair, SECRET, ask, limit, standing};
use server::Server;
use tidegate::{
    Call, Charge, Cost, Engine as _, EngineError, Expiry, HoldId, Key, Micros, Op, RuleLimit,
};
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// For calls that are not to be confirmed.
const SHORT: Duration = Duration::from_millis(300);
/// A busy machine may stand still for so long.
const SLACK: Duration = Duration::from_secs(2);
const MINUTE: Micros = Micros::new(60_000_000);

fn hold() -> Op {
    Op::Hold { id: HoldId::random().unwrap(), ttl: MINUTE, expiry: Expiry::Release }
}

/// Not confirmed, and says so.
#[track_caller]
fn assert_unconfirmed<T: std::fmt::Debug>(answer: &Result<T, EngineError>) {
    match answer {
        Err(EngineError::Ambiguous(why)) if why.to_string().contains("replica") => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn redis_keeps_every_claim_while_replicas_confirm() {
    let pair = Pair::start();
    for apart in [false, true] {
        pair.primary.cli(&["FLUSHALL"]);
        tidegate::conformance::run(|clock| {
            let builder = pair.builder(1, PATIENCE).test_clock(clock);
            if apart { builder.test_slots_apart() } else { builder }.build().unwrap()
        })
        .await;
    }
}

#[tokio::test]
async fn while_the_replica_stands_still_nothing_passes_and_all_is_burned() {
    let pair = Pair::start();
    let (hasty, patient) = (pair.builder(1, SHORT), pair.builder(1, PATIENCE));
    let (hasty, patient) = (hasty.build().unwrap(), patient.build().unwrap());
    let (wide, narrow) =
        (limit("wide", "fixed-window 1000/365d"), limit("narrow", "fixed-window 1/365d first-hit"));
    for key in ["k", "other"] {
        assert!(ask(&patient, Op::Check, &wide, key, None).await.unwrap().allowed());
        assert!(ask(&patient, Op::Check, &narrow, key, None).await.unwrap().allowed());
    }
    let kept = ask(&patient, hold(), &wide, "held", None).await.unwrap().hold().unwrap();
    hasty_is_ready(&hasty, &narrow).await;
    assert_eq!(hasty.health().warning, None);

    pair.replica.freeze();
    for (op, once) in [
        (Op::Check, None),
        (Op::Check, Some("id")),
        (Op::Record, None),
        (hold(), None),
        (Op::Enter { id: HoldId::random().unwrap(), ttl: MINUTE }, None),
        (Op::Renew { id: kept, ttl: MINUTE }, None),
        (Op::Settle { id: kept, cost: None }, None),
        (Op::Refund, None),
    ] {
        let begun = Instant::now();
        let answer = ask(&hasty, op, &wide, "k", once).await;
        assert_unconfirmed(&answer);
        assert!(begun.elapsed() < SHORT + SLACK, "{op:?} took {:?}", begun.elapsed());
        // A server with nothing to do ends a WAIT up to a tenth of a second late.
        sleep(Duration::from_millis(150)).await;
    }
    let warning = hasty.health().warning.unwrap();
    assert!(warning.contains("replica"), "{warning}");
    // Whoever is denied, or only looks, waits for nobody.
    assert!(!ask(&hasty, Op::Check, &narrow, "k", None).await.unwrap().allowed());
    assert!(!ask(&hasty, Op::Check, &narrow, "k", Some("new")).await.unwrap().allowed());
    assert!(ask(&hasty, Op::Peek, &wide, "k", None).await.unwrap().allowed());
    // One check, the one under an id, the record, the entry: all charged, but for the refund.
    assert_eq!(standing(&hasty, &wide, "k").await, (1 + 4 - 1, 0), "and no hold is left");
    assert_eq!(standing(&hasty, &wide, "held").await, (1, 0));

    pair.replica.thaw();
    assert!(ask(&patient, Op::Check, &wide, "k", None).await.unwrap().allowed());
    assert!(ask(&hasty, Op::Check, &wide, "k", None).await.is_ok_and(|d| d.allowed()));
    assert_eq!(hasty.health().warning, None);
    assert_eq!(standing(&patient, &wide, "k").await.0, 6);
}

/// Has its connections, and the script.
async fn hasty_is_ready(engine: &Redis, narrow: &std::sync::Arc<RuleLimit>) {
    let ready = async {
        while ask(engine, Op::Check, narrow, "k", None).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, ready).await.expect("it does not connect");
}

/// Many at once, of several kinds: those that were sent are burned, the others were not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_wait_in_vain_all_end_in_time() {
    let pair = Pair::start();
    let engine = std::sync::Arc::new(pair.builder(1, SHORT).build().unwrap());
    let wide = limit("wide", "fixed-window 1000000/365d");
    hasty_is_ready(&engine, &wide).await;
    let before = standing(&engine, &wide, "k").await.0;
    pair.replica.freeze();
    let mut tasks = JoinSet::new();
    for nth in 0..200 {
        let (engine, wide) = (engine.clone(), wide.clone());
        let op = if nth % 10 == 0 { Op::Record } else { Op::Check };
        tasks.spawn(async move {
            let begun = Instant::now();
            (ask(&engine, op, &wide, "k", None).await, begun.elapsed())
        });
    }
    let all = timeout(PATIENCE, tasks.join_all()).await.expect("a call hangs");
    let mut perhaps = 0;
    for (answer, took) in all {
        assert!(took < SHORT + SLACK, "{took:?}");
        match answer {
            Err(EngineError::Ambiguous(_)) => perhaps += 1,
            Err(EngineError::Unavailable(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    pair.replica.thaw();
    let patient = pair.builder(1, PATIENCE).build().unwrap();
    assert!(ask(&patient, Op::Check, &wide, "other", None).await.unwrap().allowed());
    let burned = standing(&patient, &wide, "k").await.0 - before;
    assert!((1..=perhaps).contains(&burned), "{burned} burned, {perhaps} were told perhaps");
}

#[tokio::test]
async fn what_was_done_before_is_confirmed_when_it_is_asked_for_again() {
    let pair = Pair::start();
    let engine = |deadline| pair.builder(1, deadline).build().unwrap();
    let (first, second, patient) = (engine(SHORT), engine(SHORT), engine(PATIENCE));
    let wide = limit("wide", "fixed-window 1000/365d");
    let kept = ask(&patient, hold(), &wide, "held", None).await.unwrap().hold().unwrap();
    let settle = Op::Settle { id: kept, cost: Some(Cost::ONE) };
    for engine in [&first, &second] {
        hasty_is_ready(engine, &wide).await;
    }
    let before = standing(&patient, &wide, "k").await.0;

    pair.replica.freeze();
    for engine in [&first, &second] {
        assert_unconfirmed(&ask(engine, Op::Check, &wide, "k", Some("id")).await);
        assert_unconfirmed(&ask(engine, settle, &wide, "held", None).await);
        let reserved = ask(engine, hold(), &wide, "k", Some("reservation")).await;
        assert_unconfirmed(&reserved);
        sleep(Duration::from_millis(150)).await;
    }
    assert_eq!(standing(&patient, &wide, "k").await, (before + 1, 1));

    pair.replica.thaw();
    for (op, key, id) in
        [(Op::Check, "k", Some("id")), (hold(), "k", Some("reservation")), (settle, "held", None)]
    {
        let offset = pair.offset();
        let answer = ask(&patient, op, &wide, key, id).await.unwrap();
        assert!(answer.allowed() && (id.is_none() || answer.repeated()), "{answer:?}");
        // Newer servers ask for what this connection has written, so something must be.
        assert!(pair.offset() > offset, "{op:?} was confirmed without a write");
    }
    assert_eq!(standing(&patient, &wide, "k").await, (before + 1, 1), "charged once");
}

/// In several slots everything is held and confirmed first.
#[tokio::test]
async fn a_call_over_several_slots_passes_when_all_of_it_is_confirmed() {
    let pair = Pair::start();
    let engine = |deadline| pair.builder(1, deadline).test_slots_apart().build().unwrap();
    let (hasty, patient) = (engine(SHORT), engine(PATIENCE));
    let wide = limit("wide", "fixed-window 1000/365d");
    let keys = ["a", "b", "c"];
    let check = async |engine: &Redis, once: Option<&str>| {
        let charge = |key| Charge { limit: &wide, key: Key::from(key), cost: Cost::ONE, who: None };
        let charges = keys.map(charge);
        let once = once.map(|id| tidegate::CallId::new(id).unwrap());
        engine.decide(Call { op: Op::Check, charges: &charges, once }).await
    };
    assert!(check(&patient, None).await.unwrap().allowed());
    assert!(check(&patient, Some("before")).await.unwrap().allowed());
    hasty_is_ready(&hasty, &wide).await;
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
        // What was held in vain is dropped, or charged at its end.
        while standing(&patient, &wide, key).await.1 > 0 {
            assert!(begun.elapsed() < PATIENCE, "held for ever");
            sleep(Duration::from_millis(20)).await;
        }
        let used = standing(&patient, &wide, key).await.0;
        assert!((3..=5).contains(&used), "{used} of {key}");
    }
}

/// A connection that a dropped call leaves behind owes an answer to nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_call_leaves_no_answer_to_the_next() {
    const CALLS: u64 = 400;
    let pair = Pair::start();
    let engine = std::sync::Arc::new(pair.builder(1, PATIENCE).build().unwrap());
    let wide = limit("wide", "fixed-window 1000000/365d");
    hasty_is_ready(&engine, &wide).await;
    let mut tasks = JoinSet::new();
    for nth in 1..=CALLS {
        let (engine, wide) = (engine.clone(), wide.clone());
        tasks.spawn(async move {
            let key = format!("key {nth}");
            let cost = Cost::new(nth).unwrap();
            let charge = Charge { limit: &wide, key: Key::from(&key), cost, who: None };
            let op = if nth % 3 == 0 { Op::Record } else { Op::Check };
            let charges = [charge];
            let mut call = pin!(engine.decide(Call { op, charges: &charges, once: None }));
            if nth % 2 == 0 {
                let answer = call.await.unwrap();
                return Some((nth, answer.remaining()));
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
    let all = timeout(3 * PATIENCE, tasks.join_all()).await.expect("a call hangs");
    let answered: Vec<_> = all.into_iter().flatten().collect();
    assert_eq!(answered.len() as u64, CALLS / 2);
    for (cost, remaining) in answered {
        assert_eq!(remaining, 1_000_000 - cost, "another call's answer");
    }
    // All connections are free again.
    for _ in 0..8 {
        assert!(ask(&engine, Op::Record, &wide, "k", None).await.unwrap().allowed());
    }
}

/// How many connections there are, those of tools aside.
fn connections(server: &Server) -> usize {
    let clients = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]);
    clients.lines().filter(|line| !line.contains("cmd=client")).count()
}

#[tokio::test]
async fn connections_are_made_only_if_replicas_are_asked() {
    let wide = limit("wide", "fixed-window 1000/365d");
    for (replicas, most) in [(0, 1), (1, 5)] {
        let pair = Pair::start();
        let engine = pair.builder(replicas, PATIENCE).build().unwrap();
        let mut tasks = JoinSet::new();
        let engine = std::sync::Arc::new(engine);
        for nth in 0..64 {
            let (engine, wide) = (engine.clone(), wide.clone());
            tasks.spawn(
                async move { ask(&engine, Op::Record, &wide, &format!("{nth}"), None).await },
            );
        }
        assert!(tasks.join_all().await.iter().all(Result::is_ok));
        assert_eq!(connections(&pair.primary), most, "confirmed by {replicas}");
    }
}

#[tokio::test]
async fn who_cannot_be_confirmed_is_told_why() {
    let wide = limit("wide", "fixed-window 1000/365d");
    // There is none.
    let alone = Server::start();
    let builder = Redis::builder(&alone.url()).secret(SECRET).connect_deadline(PATIENCE);
    let engine = builder.deadline(SHORT).confirmed_by(1).build().unwrap();
    let why = loop {
        match ask(&engine, Op::Check, &wide, "k", None).await {
            Err(EngineError::Ambiguous(why)) => break why.to_string(),
            Err(EngineError::Unavailable(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(why.contains("1 replica"), "{why}");
    // There are fewer.
    let pair = Pair::start();
    let engine = pair.builder(2, PATIENCE).deadline(Duration::from_secs(1)).build().unwrap();
    let error = ask(&engine, Op::Check, &wide, "k", None).await.unwrap_err();
    assert!(error.to_string().contains("2 replicas"), "{error}");
    // The user may not ask.
    let user = |words: &str| {
        let words: Vec<&str> = "ACL SETUSER u".split(' ').chain(words.split(' ')).collect();
        assert_eq!(pair.primary.cli(&words), "OK");
    };
    user("reset on >change-me ~* &* +@all -wait");
    let url = format!("redis://u:change-me@127.0.0.1:{}/", pair.primary.port());
    let builder = Redis::builder(&url).secret(SECRET).connect_deadline(PATIENCE);
    let engine = builder.deadline(PATIENCE).confirmed_by(1).build().unwrap();
    let error = ask(&engine, Op::Check, &wide, "k", None).await.unwrap_err();
    assert!(matches!(error, EngineError::Ambiguous(_)), "{error}");
    assert!(error.to_string().contains("+wait"), "{error}");
    user("+wait");
    assert!(ask(&engine, Op::Check, &wide, "k", None).await.unwrap().allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_calls_follow_the_primary() {
    let mut watched = sentinel::Watched::start();
    let builder = Redis::builder(&watched.url()).secret(SECRET).deadline(Duration::from_secs(1));
    let engine = builder.confirmed_by(1).build().unwrap();
    let wide = limit("wide", "fixed-window 1000000/365d first-hit");
    let mut admitted = 0;
    for round in 0..2 {
        let begun = Instant::now();
        let mut in_a_row = 0;
        while in_a_row < 50 {
            let answer = ask(&engine, Op::Check, &wide, "k", None).await;
            let passes = answer.is_ok_and(|decision| decision.allowed());
            in_a_row = if passes { in_a_row + 1 } else { 0 };
            admitted += u64::from(passes);
            assert!(
                begun.elapsed() < 3 * PATIENCE,
                "it does not find the primary in round {round}"
            );
        }
        if round == 0 {
            let primary = watched.primary_index();
            watched.servers[primary].kill();
        }
    }
    let used = standing(&engine, &wide, "k").await.0;
    assert!(used >= admitted, "{used} charged, {admitted} admitted");
}
