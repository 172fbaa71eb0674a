//! The shards of a Redis Cluster fail independently: the engine knows the shards of a call, and a
//! call on a shard that is down leaves nothing on the others.

use std::sync::Arc;
use std::time::Duration;

use testkit::cluster::{PRIMARIES, RedisCluster, SLOTS};
use testkit::engine::TEST_SECRET;
use testkit::load::hash_tag;
use testkit::redis::RedisServer;
use tidegate::{
    Call, Charge, Cost, Costs, Decision, Engine as _, EngineError, Expiry, HoldId, IdempotencyKey,
    Micros, Op, Rule, RuleLimit, Shards,
};
use tidegate_model::print_line;
use tidegate_redis::Redis;
use tokio::time::{Instant, sleep, timeout};

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn one_server_is_one_shard() {
    let server = RedisServer::start();
    let engine = Redis::builder(&server.url()).deadline(TIMEOUT).build().unwrap();
    let limit = limit();
    for _ in 0..2 {
        let shards = shards_of(&engine, &limit, &["a", "b", "c"]);
        assert_eq!(shards, Shards::ONE);
        check(&engine, &limit, &["a"]).await.unwrap();
    }
}

#[tokio::test]
async fn the_shards_of_a_call_are_the_nodes_of_its_subjects() {
    let cluster = RedisCluster::start();
    let engine =
        Redis::builder(&cluster.url()).secret(TEST_SECRET).deadline(TIMEOUT).build().unwrap();
    let limit = limit();
    let [one, other, third] = subjects(&cluster);
    let of = |keys: &[&str]| shards_of(&engine, &limit, keys);
    assert_eq!(of(&[&one, &other]), Shards::ONE, "nothing is known yet");
    until_decided(&engine, &limit, &[&one, &other, &third]).await;

    let numbers: Vec<usize> = [&one, &other, &third].map(|key| number(of(&[key]))).to_vec();
    let [first, second, last] = numbers[..] else { panic!("{numbers:?}") };
    assert!(first != second && second != last && last != first, "{numbers:?}");
    assert!(!numbers.contains(&0), "0 stands for an unknown shard: {numbers:?}");
    let (both, of_both) = (of(&[&one, &third, &one]), of(&[&one, &other]));
    assert_eq!(both, Shards::NONE.and(first).and(last));

    let hold = hold(&engine, &limit, &[&other]).await.unwrap().hold().unwrap();
    let settle = Call {
        op: Op::Settle { id: hold, costs: Costs::AsHeld },
        charges: &[],
        idempotency_key: None,
    };
    assert_eq!(engine.shards(&settle), Shards::NONE.and(second));
    let renew = Op::Renew { id: hold, ttl: Micros::from_secs(1) };
    let renew = Call { op: renew, charges: &[], idempotency_key: None };
    assert_eq!(engine.shards(&renew), Shards::NONE.and(second));

    // A failover moves the slots to another node, and then back to the first.
    for (nth, same) in [(PRIMARIES, false), (0, true)] {
        cluster.until_primary(nth);
        let begun = Instant::now();
        while (number(of(&[&one])) == first) != same {
            assert!(begun.elapsed() < TIMEOUT, "the shard number does not follow the node");
            let _ = check(&engine, &limit, &[&one]).await;
            sleep(Duration::from_millis(10)).await;
        }
        cluster.until_settled();
        until_decided(&engine, &limit, &[&one]).await;
        assert_eq!(number(of(&[&other])), second);
    }
    let begun = Instant::now();
    let calls = 1000;
    (0..calls).for_each(|_| assert_eq!(of(&[&one, &other]), of_both));
    print_line(&format!("shards: {:?} for a call of two subjects", begun.elapsed() / calls));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_shard_is_down_a_call_over_several_leaves_nothing_on_the_others() {
    let mut cluster = RedisCluster::start();
    cluster.configure("cluster-require-full-coverage", "no");
    let deadline = Duration::from_secs(1);
    let engine =
        Redis::builder(&cluster.url()).secret(TEST_SECRET).deadline(deadline).build().unwrap();
    let limit = limit();
    let [live, dead, _] = subjects(&cluster);
    let keys = [&*live, &*dead];
    until_decided(&engine, &limit, &[&live, &dead]).await;
    let used = engine.inspect(&limit, (&*live).into()).await.unwrap().standing.used;
    let slot = cluster.slot_of(&format!("{{{}}}", hash_tag(&dead)));
    let primary = cluster.primary_of(slot);
    for replica in cluster.replicas_of(primary) {
        cluster.kill(replica);
    }
    cluster.kill(primary);
    let begun = Instant::now();
    while !matches!(check(&engine, &limit, &[&dead]).await, Err(EngineError::Unavailable(_))) {
        assert!(begun.elapsed() < TIMEOUT, "the shard is not down");
    }

    let (mut certain, mut longest) = (0, Duration::ZERO);
    for nth in 0..9 {
        let begun = Instant::now();
        let result = match nth % 3 {
            0 => check(&engine, &limit, &keys).await,
            1 => check_once(&engine, &limit, &keys, &format!("call-{nth}")).await,
            _ => hold(&engine, &limit, &keys).await,
        };
        longest = longest.max(begun.elapsed());
        match result {
            Err(EngineError::Unavailable(_)) => certain += 1,
            Err(EngineError::Ambiguous(_)) => {}
            other => panic!("call {nth}: {other:?}"),
        }
        let standing = engine.inspect(&limit, (&*live).into()).await.unwrap().standing;
        assert_eq!((standing.used, standing.held), (used, 0), "call {nth}");
    }
    print_line(&format!(
        "shards: one is down: {certain} of 9 calls over two are known to be uncharged, longest \
         {longest:?}"
    ));
    // On a busy machine a hold may be dropped too late to say so.
    assert!(certain >= 5, "nothing was charged, and most errors say so: {certain}");
    assert!(longest <= TIMEOUT, "{longest:?}");
}

fn limit() -> Arc<RuleLimit> {
    let rule =
        Rule::new("shards", ["fixed-window 1000000/365d first-hit".parse().unwrap()]).unwrap();
    rule.limits()[0].clone()
}

/// A subject on each of the primaries, in their order.
fn subjects(cluster: &RedisCluster) -> [String; PRIMARIES] {
    std::array::from_fn(|shard| {
        let is_on_shard = |name: &String| {
            let slot = cluster.slot_of(&format!("{{{}}}", hash_tag(name)));
            usize::from(slot) * PRIMARIES / usize::from(SLOTS) == shard
        };
        (0..100).map(|nth| format!("user-{nth}")).find(is_on_shard).unwrap()
    })
}

fn charges<'a>(limit: &'a Arc<RuleLimit>, keys: &[&'a str]) -> Vec<Charge<'a>> {
    let cost = Cost::new(1).unwrap();
    keys.iter().map(|key| Charge { limit, key: (*key).into(), cost, caller: None }).collect()
}

fn shards_of(engine: &Redis, limit: &Arc<RuleLimit>, keys: &[&str]) -> Shards {
    engine.shards(&Call { op: Op::Check, charges: &charges(limit, keys), idempotency_key: None })
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
    engine
        .decide(Call { op: Op::Check, charges: &charges(limit, keys), idempotency_key: None })
        .await
}

async fn check_once(
    engine: &Redis,
    limit: &Arc<RuleLimit>,
    keys: &[&str],
    id: &str,
) -> Result<Decision, EngineError> {
    let once = Some(IdempotencyKey::new(id).unwrap());
    engine
        .decide(Call { op: Op::Check, charges: &charges(limit, keys), idempotency_key: once })
        .await
}

async fn hold(
    engine: &Redis,
    limit: &Arc<RuleLimit>,
    keys: &[&str],
) -> Result<Decision, EngineError> {
    let (id, ttl) = (HoldId::random().unwrap(), Micros::from_secs(60));
    let op = Op::hold(id, ttl, Expiry::Release);
    engine.decide(Call { op, charges: &charges(limit, keys), idempotency_key: None }).await
}

async fn until_decided(engine: &Redis, limit: &Arc<RuleLimit>, keys: &[&str]) {
    let decided = async {
        for key in keys {
            while check(engine, limit, &[key]).await.is_err() {
                sleep(Duration::from_millis(10)).await;
            }
        }
    };
    timeout(TIMEOUT, decided).await.expect("no decision");
}
