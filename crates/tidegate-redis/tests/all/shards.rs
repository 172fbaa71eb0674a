//! The shards of a Cluster fail apart from each other: a call says which it asks, and one that asks a shard
//! that is down leaves nothing behind on the others.

use std::sync::Arc;
use std::time::Duration;

use crate::{cluster, server, traffic};
use cluster::{Cluster, PRIMARIES, SLOTS};
use server::Server;
use tidegate::{
    Call, CallId, Charge, Cost, Decision, Engine as _, EngineError, Expiry, HoldId, Micros, Op,
    Rule, RuleLimit, Shards,
};
use tidegate_redis::Redis;
use tokio::time::{Instant, sleep, timeout};
use traffic::{SECRET, say, tag};

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn one_server_is_one_shard() {
    let server = Server::start();
    let engine = Redis::builder(&server.url()).deadline(PATIENCE).build().unwrap();
    let limit = limit();
    for _ in 0..2 {
        let shards = of(&engine, &limit, &["a", "b", "c"]);
        assert_eq!(shards, Shards::ONE);
        check(&engine, &limit, &["a"]).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_asks_the_nodes_that_have_its_subjects() {
    let cluster = Cluster::start();
    let engine = Redis::builder(&cluster.url()).secret(SECRET).deadline(PATIENCE).build().unwrap();
    let limit = limit();
    let [one, other, third] = subjects(&cluster);
    let of = |keys: &[&str]| of(&engine, &limit, keys);
    assert_eq!(of(&[&one, &other]), Shards::ONE, "nothing is known yet");
    until_answered(&engine, &limit, &[&one, &other, &third]).await;

    let numbers: Vec<usize> = [&one, &other, &third].map(|key| number(of(&[key]))).to_vec();
    let [first, second, last] = numbers[..] else { panic!("{numbers:?}") };
    assert!(first != second && second != last && last != first, "{numbers:?}");
    assert!(!numbers.contains(&0), "what is not known has a number of its own: {numbers:?}");
    let (both, of_both) = (of(&[&one, &third, &one]), of(&[&one, &other]));
    assert_eq!(both, Shards::NONE.and(first).and(last));

    let hold = hold(&engine, &limit, &[&other]).await.unwrap().hold().unwrap();
    let settle = Call { op: Op::Settle { id: hold, cost: None }, charges: &[], once: None };
    assert_eq!(engine.shards(&settle), Shards::NONE.and(second));
    let renew = Op::Renew { id: hold, ttl: Micros::from_secs(1) };
    let renew = Call { op: renew, charges: &[], once: None };
    assert_eq!(engine.shards(&renew), Shards::NONE.and(second));

    // Another node has the slots, and then the first has them again.
    for (nth, same) in [(PRIMARIES, false), (0, true)] {
        cluster.until_primary(nth);
        let begun = Instant::now();
        while (number(of(&[&one])) == first) != same {
            assert!(begun.elapsed() < PATIENCE, "the number is that of the node");
            let _ = check(&engine, &limit, &[&one]).await;
            sleep(Duration::from_millis(10)).await;
        }
        cluster.until_settled();
        until_answered(&engine, &limit, &[&one]).await;
        assert_eq!(number(of(&[&other])), second);
    }
    let begun = Instant::now();
    let calls = 1000;
    (0..calls).for_each(|_| assert_eq!(of(&[&one, &other]), of_both));
    say(&format!("shards: {:?} for a call of two subjects", begun.elapsed() / calls));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_shard_is_down_a_call_over_several_leaves_nothing_on_the_others() {
    let mut cluster = Cluster::start();
    cluster.configure("cluster-require-full-coverage", "no");
    let deadline = Duration::from_secs(1);
    let engine = Redis::builder(&cluster.url()).secret(SECRET).deadline(deadline).build().unwrap();
    let limit = limit();
    let [living, dead, _] = subjects(&cluster);
    let keys = [&*living, &*dead];
    until_answered(&engine, &limit, &[&living, &dead]).await;
    let used = engine.inspect(&limit, (&*living).into()).await.unwrap().standing.used;
    let slot = cluster.slot_of(&format!("{{{}}}", tag(&dead)));
    let primary = cluster.primary_of(slot);
    for replica in cluster.replicas_of(primary) {
        cluster.kill(replica);
    }
    cluster.kill(primary);
    let begun = Instant::now();
    while !matches!(check(&engine, &limit, &[&dead]).await, Err(EngineError::Unavailable(_))) {
        assert!(begun.elapsed() < PATIENCE, "the shard is not down");
    }

    let (mut certain, mut longest) = (0, Duration::ZERO);
    for nth in 0..9 {
        let begun = Instant::now();
        let answer = match nth % 3 {
            0 => check(&engine, &limit, &keys).await,
            1 => check_once(&engine, &limit, &keys, &format!("call-{nth}")).await,
            _ => hold(&engine, &limit, &keys).await,
        };
        longest = longest.max(begun.elapsed());
        match answer {
            Err(EngineError::Unavailable(_)) => certain += 1,
            other => say(&format!("shards: call {nth}: {other:?}")),
        }
        let standing = engine.inspect(&limit, (&*living).into()).await.unwrap().standing;
        assert_eq!((standing.used, standing.held), (used, 0), "call {nth}");
    }
    say(&format!(
        "shards: one is down: {certain} of 9 calls over two are certain, longest {longest:?}"
    ));
    assert_eq!(certain, 9, "nothing was charged, and the caller is told so");
    assert!(longest <= 2 * deadline, "{longest:?}");
}

fn limit() -> Arc<RuleLimit> {
    let rule =
        Rule::new("shards", ["fixed-window 1000000/365d first-hit".parse().unwrap()]).unwrap();
    rule.limits()[0].clone()
}

/// A subject on each of the primaries, in their order.
fn subjects(cluster: &Cluster) -> [String; PRIMARIES] {
    std::array::from_fn(|shard| {
        let lies_there = |name: &String| {
            let slot = cluster.slot_of(&format!("{{{}}}", tag(name)));
            usize::from(slot) * PRIMARIES / usize::from(SLOTS) == shard
        };
        (0..100).map(|nth| format!("user-{nth}")).find(lies_there).unwrap()
    })
}

fn charges<'a>(limit: &'a Arc<RuleLimit>, keys: &[&'a str]) -> Vec<Charge<'a>> {
    let cost = Cost::new(1).unwrap();
    keys.iter().map(|key| Charge { limit, key: (*key).into(), cost, who: None }).collect()
}

fn of(engine: &Redis, limit: &Arc<RuleLimit>, keys: &[&str]) -> Shards {
    engine.shards(&Call { op: Op::Check, charges: &charges(limit, keys), once: None })
}

fn number(shards: Shards) -> usize {
    let numbers: Vec<usize> = shards.numbers().collect();
    assert_eq!(numbers.len(), 1, "{numbers:?}");
    numbers[0]
}

async fn check(
    engine: &Redis,
    limit: &Arc<RuleLimit>,
    keys: &[&str],
) -> Result<Decision, EngineError> {
    engine.decide(Call { op: Op::Check, charges: &charges(limit, keys), once: None }).await
}

async fn check_once(
    engine: &Redis,
    limit: &Arc<RuleLimit>,
    keys: &[&str],
    id: &str,
) -> Result<Decision, EngineError> {
    let once = Some(CallId::new(id).unwrap());
    engine.decide(Call { op: Op::Check, charges: &charges(limit, keys), once }).await
}

async fn hold(
    engine: &Redis,
    limit: &Arc<RuleLimit>,
    keys: &[&str],
) -> Result<Decision, EngineError> {
    let (id, ttl) = (HoldId::random().unwrap(), Micros::from_secs(60));
    let op = Op::Hold { id, ttl, expiry: Expiry::Release };
    engine.decide(Call { op, charges: &charges(limit, keys), once: None }).await
}

async fn until_answered(engine: &Redis, limit: &Arc<RuleLimit>, keys: &[&str]) {
    let answered = async {
        for key in keys {
            while check(engine, limit, &[key]).await.is_err() {
                sleep(Duration::from_millis(10)).await;
            }
        }
    };
    timeout(PATIENCE, answered).await.expect("no answer");
}
