//! The engine on a Cluster: the same claims as everywhere, and the ways in which a Cluster changes.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::{cluster, traffic};
use cluster::{Cluster, PRIMARIES};
use tidegate::{Limit, Limiter};
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use traffic::{Entry, SECRET, Traffic, count, errors, quantiles, say, tag};

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);
const PLENTY: &str = "fixed-window 1000000/365d first-hit";

#[tokio::test]
async fn a_cluster_keeps_every_claim() {
    let cluster = Cluster::start();
    tidegate::conformance::run(|clock| {
        let builder = Redis::builder(&cluster.url()).deadline(Duration::from_secs(10));
        builder.test_clock(clock).build().unwrap()
    })
    .await;
}

/// Whatever a subject looks like, nobody can choose where it lies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_subjects_spread_evenly() {
    const SUBJECTS: usize = 100_000;
    const ASKERS: usize = 256;
    let cluster = Cluster::start();
    let limiter = limiter(&cluster.url(), PATIENCE, PLENTY);
    let next = Arc::new(AtomicUsize::new(0));
    let mut askers = JoinSet::new();
    for _ in 0..ASKERS {
        let (limiter, next) = (limiter.clone(), Arc::clone(&next));
        askers.spawn(async move {
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
    timeout(10 * PATIENCE, askers.join_all()).await.expect("stuck");
    let sizes: Vec<u64> = cluster.primaries().iter().map(|nth| cluster.size(*nth)).collect();
    let (sum, most) = (sizes.iter().sum::<u64>(), *sizes.iter().max().unwrap());
    let mean = sum as f64 / PRIMARIES as f64;
    let ratio = most as f64 / mean;
    say(&format!(
        "cluster: {SUBJECTS} hostile subjects lie on the shards as {sizes:?}; the busiest has \
         {ratio:.3} x the mean"
    ));
    assert_eq!(sum, SUBJECTS as u64 + 1, "a key for each, and the secret");
    assert!(ratio <= 1.1, "{sizes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_seed_that_lives_is_enough_and_none_is_needed_later() {
    let mut cluster = Cluster::start();
    let subjects = subjects(12);
    // A seed that is dead, one that is frozen, and one that is only a replica.
    cluster.kill(3);
    cluster.nodes[4].freeze();
    let begun = Instant::now();
    let limiter = limiter(&cluster.url_of(&[3, 4, 5]), PATIENCE, PLENTY);
    for subject in &subjects {
        assert!(limiter.check(subject).await.unwrap().allowed());
    }
    say(&format!("cluster: first answers, of three seeds one alive: {:?}", begun.elapsed()));
    assert!(limiter.engine().health().up);
    // All seeds are dead, those that were found are not.
    cluster.kill(4);
    cluster.kill(5);
    let quick = patient_traffic(&limiter, &subjects, 2 * SECOND).await;
    assert_eq!(count(&quick, |e| !e.is_good()), 0, "{}", errors(&quick));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_is_used_and_one_that_leaves_is_not_missed() {
    let mut cluster = Cluster::start();
    let subjects = subjects(12);
    let limiter = limiter(&cluster.url(), SECOND, PLENTY);
    until_all_answer(&limiter, &subjects).await;
    let traffic = Traffic::begin(slice::from_ref(&limiter), &subjects, Duration::from_millis(5));
    let new = cluster.add();
    let slots: Vec<u16> =
        subjects.iter().map(|s| cluster.slot_of(&format!("{{{}}}", tag(s)))).collect();
    let homes: Vec<usize> = slots.iter().map(|slot| cluster.primary_of(*slot)).collect();
    for (slot, home) in slots.iter().zip(&homes) {
        cluster.migrate(*slot, *home, new);
    }
    sleep(SECOND / 2).await;
    assert_eq!(cluster.size(new), subjects.len() as u64, "all lie there now");
    for (slot, home) in slots.iter().zip(&homes) {
        cluster.migrate(*slot, new, *home);
    }
    cluster.until_settled();
    cluster.remove(new);
    sleep(SECOND / 2).await;
    let log = traffic.end().await;
    let failed = count(&log, |e| !e.is_good());
    say(&format!(
        "cluster: a node came, had {} slots and left: {} calls, {failed} without an answer{}",
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

/// The calls to its shard fail by their deadline, and nobody else waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_holds_nobody_else_up() {
    const DEADLINE: Duration = Duration::from_millis(25);
    let cluster = Cluster::start();
    // No replica may take over, or the test would be about that.
    cluster.configure("cluster-replica-no-failover", "yes");
    cluster.configure("cluster-require-full-coverage", "no");
    let subjects = subjects(24);
    let limiter = limiter(&cluster.url(), DEADLINE, PLENTY);
    until_all_answer(&limiter, &subjects).await;
    let frozen = cluster.primaries()[0];
    let on_it: Vec<bool> = subjects
        .iter()
        .map(|subject| {
            cluster.primary_of(cluster.slot_of(&format!("{{{}}}", tag(subject)))) == frozen
        })
        .collect();
    assert!(on_it.iter().any(|on_it| *on_it) && on_it.iter().any(|on_it| !on_it));

    let before = patient_traffic(&limiter, &subjects, SECOND).await;
    cluster.nodes[frozen].freeze();
    let begun = Instant::now();
    let log = patient_traffic(&limiter, &subjects, 3 * SECOND).await;
    cluster.nodes[frozen].thaw();
    until_all_answer(&limiter, &subjects).await;

    let spans = |log: &[Entry], so: &dyn Fn(&Entry) -> bool| -> Vec<Duration> {
        log.iter().filter(|e| so(e)).map(|e| e.ended - e.begun).collect()
    };
    let [_, usual, _] = quantiles(&mut spans(&before, &|_| true));
    let [_, others, _] = quantiles(&mut spans(&log, &|e| !on_it[e.subject]));
    let [_, late, longest] = quantiles(&mut spans(&log, &|e| on_it[e.subject]));
    let failed = count(&log, |e| !on_it[e.subject] && !e.is_good());
    let other_calls = count(&log, |e| !on_it[e.subject]);
    let answered = count(&log, |e| on_it[e.subject] && e.is_good() && e.begun > begun);
    say(&format!(
        "cluster: a frozen primary: p99 of its calls {late:?}, longest {longest:?}; p99 of the \
         others {others:?} (before: {usual:?}), {failed} of {other_calls} without an answer"
    ));
    assert_eq!(answered, 0, "the frozen node answered");
    // A machine that is late for every timer is late for ours.
    assert!(late <= 4 * DEADLINE, "{late:?}");
    assert!(others <= DEADLINE.max(3 * usual), "{others:?} instead of {usual:?}");
    assert!(failed * 20 <= other_calls, "{}", errors(&log));
}

fn limiter(url: &str, deadline: Duration, limit: &str) -> Limiter {
    let engine = Redis::builder(url).secret(SECRET).deadline(deadline).build().unwrap();
    Limiter::new(engine, limit.parse::<Limit>().unwrap())
}

fn subjects(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("user-{nth}")).collect()
}

async fn patient_traffic(limiter: &Limiter, subjects: &[String], span: Duration) -> Vec<Entry> {
    let traffic = Traffic::begin(slice::from_ref(limiter), subjects, Duration::from_millis(10));
    sleep(span).await;
    traffic.end().await
}

async fn until_all_answer(limiter: &Limiter, subjects: &[String]) {
    let all = async {
        for subject in subjects {
            while limiter.check(subject).peek().await.is_err() {
                sleep(SECOND / 100).await;
            }
        }
    };
    timeout(PATIENCE, all).await.expect("no answer from a cluster that works");
}
