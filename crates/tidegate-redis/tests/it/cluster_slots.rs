//! The engine on a Redis Cluster: the conformance suite, and changes of the Cluster.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use testkit::cluster::{PRIMARIES, RedisCluster};
use testkit::engine::TEST_SECRET;
use testkit::load::{BackgroundLoad, LoadEntry, count, errors, hash_tag, quantiles};
use testkit::timing::{HANG, compare_with_goal};
use tidegate::{Limit, Limiter};
use tidegate_model::print_line;
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = HANG;
const PLENTY: &str = "fixed-window 1000000/365d first-hit";

#[tokio::test]
async fn a_cluster_passes_the_conformance_suite() {
    let cluster = RedisCluster::start();
    tidegate::conformance::run(|clock| {
        let builder = Redis::builder(&cluster.url()).deadline(Duration::from_secs(10));
        builder.test_clock(clock).build().unwrap()
    })
    .await;
}

/// A subject cannot choose its shard, whatever its bytes are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_subjects_spread_evenly() {
    const SUBJECTS: usize = 100_000;
    const CALLERS: usize = 256;
    let cluster = RedisCluster::start();
    let limiter = limiter(&cluster.url(), TIMEOUT, PLENTY);
    let next = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (limiter, next) = (limiter.clone(), Arc::clone(&next));
        callers.spawn(async move {
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                if nth >= SUBJECTS {
                    return;
                }
                let subject: Vec<u8> = match nth % 5 {
                    0 => format!("{{x}}{nth}").into(),
                    1 => format!("}}evil{{{nth}").into(),
                    2 => format!("{{}}{nth}").into(),
                    3 => format!("{{same}}\r\n{nth}\0").into(),
                    _ => [&[0xff, 0x00, b'{', 0x80, b'}'], &nth.to_le_bytes()[..]].concat(),
                };
                assert!(limiter.check(&subject[..]).await.unwrap().allowed());
            }
        });
    }
    timeout(10 * TIMEOUT, callers.join_all()).await.expect("stuck");
    let sizes: Vec<u64> = cluster.primaries().iter().map(|nth| cluster.size(*nth)).collect();
    let (sum, max) = (sizes.iter().sum::<u64>(), *sizes.iter().max().unwrap());
    let mean = sum as f64 / PRIMARIES as f64;
    let ratio = max as f64 / mean;
    print_line(&format!(
        "cluster: {SUBJECTS} hostile subjects on shards of {sizes:?} keys; the busiest has \
         {ratio:.3} x the mean"
    ));
    assert_eq!(sum, SUBJECTS as u64 + 1, "a key for each, and the secret");
    assert!(ratio <= 1.1, "{sizes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_live_seed_is_enough_and_none_is_needed_later() {
    let mut cluster = RedisCluster::start();
    let subjects = subjects(12);
    // A seed that is dead, one that is frozen, and one that is only a replica.
    cluster.kill(3);
    cluster.nodes[4].freeze();
    let begun = Instant::now();
    let limiter = limiter(&cluster.url_of(&[3, 4, 5]), TIMEOUT, PLENTY);
    for subject in &subjects {
        assert!(limiter.check(subject).await.unwrap().allowed());
    }
    print_line(&format!(
        "cluster: first decisions with one of three seeds alive: {:?}",
        begun.elapsed()
    ));
    assert!(limiter.engine().health().up);
    // All seeds are dead; the nodes found through them are not.
    cluster.kill(4);
    cluster.kill(5);
    let quick = run_load(&limiter, &subjects, 2 * SECOND).await;
    assert_eq!(count(&quick, |e| !e.is_decision()), 0, "{}", errors(&quick));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_is_used_and_one_that_leaves_causes_no_errors() {
    let mut cluster = RedisCluster::start();
    let subjects = subjects(12);
    let limiter = limiter(&cluster.url(), TIMEOUT, PLENTY);
    until_all_decided(&limiter, &subjects).await;
    let load =
        BackgroundLoad::start(slice::from_ref(&limiter), &subjects, Duration::from_millis(5));
    let new = cluster.add();
    let slots: Vec<u16> =
        subjects.iter().map(|s| cluster.slot_of(&format!("{{{}}}", hash_tag(s)))).collect();
    let homes: Vec<usize> = slots.iter().map(|slot| cluster.primary_of(*slot)).collect();
    for (slot, home) in slots.iter().zip(&homes) {
        cluster.migrate(*slot, *home, new);
    }
    sleep(SECOND / 2).await;
    assert_eq!(cluster.size(new), subjects.len() as u64, "all keys are there now");
    for (slot, home) in slots.iter().zip(&homes) {
        cluster.migrate(*slot, new, *home);
    }
    cluster.until_settled();
    cluster.remove(new);
    sleep(SECOND / 2).await;
    let log = load.stop().await;
    let failed = count(&log, |e| !e.is_decision());
    print_line(&format!(
        "cluster: a node joined, had {} slots and left: {} calls, {failed} without a decision{}",
        slots.len(),
        log.len(),
        errors(&log)
    ));
    assert_eq!(failed, 0);
    for (subject, name) in subjects.iter().enumerate() {
        let used = limiter.inspect(name).await.unwrap()[0].standing.used;
        assert_eq!(used, count(&log, |e| e.subject == subject), "{name}");
    }
}

/// Calls to the frozen shard fail at their deadline, and do not delay calls to other shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_does_not_delay_other_shards() {
    const DEADLINE: Duration = Duration::from_millis(25);
    let cluster = RedisCluster::start();
    // A replica that takes over would end the outage.
    cluster.configure("cluster-replica-no-failover", "yes");
    cluster.configure("cluster-require-full-coverage", "no");
    let subjects = subjects(24);
    let limiter = limiter(&cluster.url(), DEADLINE, PLENTY);
    until_all_decided(&limiter, &subjects).await;
    let frozen = cluster.primaries()[0];
    let on_it: Vec<bool> = subjects
        .iter()
        .map(|subject| {
            cluster.primary_of(cluster.slot_of(&format!("{{{}}}", hash_tag(subject)))) == frozen
        })
        .collect();
    assert!(on_it.iter().any(|on_it| *on_it) && on_it.iter().any(|on_it| !on_it));

    let before = run_load(&limiter, &subjects, SECOND).await;
    cluster.nodes[frozen].freeze();
    let begun = Instant::now();
    let log = run_load(&limiter, &subjects, 3 * SECOND).await;
    cluster.nodes[frozen].thaw();
    until_all_decided(&limiter, &subjects).await;

    let spans = |log: &[LoadEntry], condition: &dyn Fn(&LoadEntry) -> bool| -> Vec<Duration> {
        log.iter().filter(|e| condition(e)).map(|e| e.end - e.start).collect()
    };
    let [_, usual, _] = quantiles(&mut spans(&before, &|_| true));
    let [_, others, _] = quantiles(&mut spans(&log, &|e| !on_it[e.subject]));
    let [_, late, longest] = quantiles(&mut spans(&log, &|e| on_it[e.subject]));
    let failed = count(&log, |e| !on_it[e.subject] && !e.is_decision());
    let other_calls = count(&log, |e| !on_it[e.subject]);
    let decided = count(&log, |e| on_it[e.subject] && e.is_decision() && e.start > begun);
    print_line(&format!(
        "cluster: a frozen primary: p99 of its calls {late:?}, longest {longest:?}; p99 of the \
         others {others:?} (before: {usual:?}), {failed} of {other_calls} without a decision"
    ));
    assert_eq!(decided, 0, "the frozen node replied");
    compare_with_goal("p99 of calls to the frozen shard", late, 4 * DEADLINE);
    compare_with_goal("p99 of calls to other shards", others, DEADLINE.max(3 * usual));
    // A busy machine delays some beyond the deadline; a frozen shard would delay all.
    assert!(failed * 2 <= other_calls, "{}", errors(&log));
}

fn limiter(url: &str, deadline: Duration, limit: &str) -> Limiter {
    let engine = Redis::builder(url).secret(TEST_SECRET).deadline(deadline).build().unwrap();
    Limiter::new(engine, limit.parse::<Limit>().unwrap())
}

fn subjects(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("user-{nth}")).collect()
}

async fn run_load(limiter: &Limiter, subjects: &[String], span: Duration) -> Vec<LoadEntry> {
    let load = BackgroundLoad::start(slice::from_ref(limiter), subjects, Duration::from_millis(10));
    sleep(span).await;
    load.stop().await
}

async fn until_all_decided(limiter: &Limiter, subjects: &[String]) {
    let all = async {
        for subject in subjects {
            while limiter.check(subject).peek().await.is_err() {
                sleep(SECOND / 100).await;
            }
        }
    };
    timeout(TIMEOUT, all).await.expect("no decision of a healthy cluster");
}
