//! Primaries are killed together with writes that were not replicated. If replicas acknowledge
//! charges, no admitted charge is lost.
//!
//! Losses are computed from a log of decisions as their callers observed them, and from the counts
//! of the promoted replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::cluster::{PRIMARIES, RedisCluster};
use testkit::engine::TEST_SECRET;
use testkit::engine::TEST_TIMEOUT;
use testkit::load::is_long_run;
use testkit::replicas::{PrimaryAndReplica, decide, limit, used_and_held};
use testkit::sharded_subjects::{SUBJECTS, ShardedSubjects};
use testkit::timing::compare_with_goal;
use tidegate::{Decision, EngineError, Op, Source};
use tidegate_model::print_line;
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const TASKS: usize = 32;
/// Keys of each task.
const KEYS: usize = 16;
const DEADLINE: Duration = Duration::from_millis(250);
/// Nothing recovers within a test, so that every admission counts until its end.
const AMPLE: &str = "fixed-window 1000000/365d first-hit";

/// One call as its caller saw it.
struct CallEntry {
    /// The keys, charged with one permit each.
    keys: Vec<usize>,
    begun: Instant,
    ended: Instant,
    result: AckResult,
}

#[derive(PartialEq, Eq)]
enum AckResult {
    Allow(Source),
    Deny,
    /// An error; not charged.
    NotCharged,
    /// An error; perhaps charged.
    Ambiguous,
}

impl AckResult {
    fn of(result: Result<Decision, EngineError>) -> Self {
        match result {
            Ok(decision) if decision.allowed() => Self::Allow(decision.source),
            Ok(_) => Self::Deny,
            Err(EngineError::Ambiguous(_)) => Self::Ambiguous,
            Err(_) => Self::NotCharged,
        }
    }
}

/// LogSums of a log.
#[derive(Default)]
struct LogSums {
    admitted: Vec<u64>,
    ambiguous: Vec<u64>,
    longest: Duration,
}

impl LogSums {
    fn of(log: &[CallEntry], keys: usize) -> Self {
        let mut sums =
            Self { admitted: vec![0; keys], ambiguous: vec![0; keys], ..Self::default() };
        for CallEntry { keys, begun, ended, result } in log {
            sums.longest = sums.longest.max(*ended - *begun);
            let sum = match result {
                AckResult::Allow(source) => {
                    assert_eq!(*source, Source::Redis);
                    &mut sums.admitted
                }
                AckResult::Ambiguous => &mut sums.ambiguous,
                AckResult::Deny | AckResult::NotCharged => continue,
            };
            keys.iter().for_each(|key| sum[*key] += 1);
        }
        sums
    }

    /// Permits admitted and not counted; permits counted without an admission or ambiguous error.
    fn lost_and_extra(&self, counted: &[u64]) -> (u64, u64) {
        let (mut lost, mut extra) = (0, 0);
        for (key, counted) in counted.iter().enumerate() {
            lost += self.admitted[key].saturating_sub(*counted);
            extra += counted.saturating_sub(self.admitted[key] + self.ambiguous[key]);
        }
        (lost, extra)
    }
}

/// Tasks that make calls until the end.
struct CallTasks {
    tasks: JoinSet<Vec<CallEntry>>,
    over: Arc<AtomicBool>,
}

impl CallTasks {
    fn new() -> Self {
        Self { tasks: JoinSet::new(), over: Arc::default() }
    }

    /// Adds a task. `call` returns the keys of its nth call, and the call.
    fn add<F>(&mut self, call: impl Fn(u64) -> (Vec<usize>, F) + Send + 'static)
    where
        F: Future<Output = Result<Decision, EngineError>> + Send,
    {
        let over = Arc::clone(&self.over);
        self.tasks.spawn(async move {
            let mut log = Vec::new();
            for nth in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let (keys, call) = call(nth);
                let begun = Instant::now();
                let result = AckResult::of(call.await);
                let ended = Instant::now();
                if matches!(result, AckResult::NotCharged) {
                    sleep(Duration::from_millis(5)).await;
                }
                log.push(CallEntry { keys, begun, ended, result });
            }
            log
        });
    }

    /// Ends the tasks and returns their log. Panics if a task is stuck.
    async fn end(self) -> Vec<CallEntry> {
        self.over.store(true, Ordering::Relaxed);
        let logs = timeout(TEST_TIMEOUT, self.tasks.join_all()).await.expect("a task is stuck");
        logs.into_iter().flatten().collect()
    }
}

/// Partitions a replica under load, kills its primary 500 ms later, and promotes the replica.
/// Returns the numbers of admitted permits, of those lost, and of ambiguous errors.
async fn lose_a_primary(replicas: u32) -> (u64, u64, u64) {
    let mut pair = PrimaryAndReplica::start();
    let engine = Arc::new(pair.builder(replicas, DEADLINE).build().unwrap());
    let ample = limit("ample", AMPLE);
    let begun = Instant::now();
    while decide(&engine, Op::Peek, &ample, "k", None).await.is_err() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "no connection");
    }
    let mut load = CallTasks::new();
    for task in 0..TASKS {
        let (engine, ample) = (Arc::clone(&engine), Arc::clone(&ample));
        load.add(move |nth| {
            let key = task * KEYS + nth as usize % KEYS;
            let (engine, ample) = (Arc::clone(&engine), Arc::clone(&ample));
            let call = async move {
                decide(&engine, Op::Check, &ample, &format!("key {key}"), None).await
            };
            (vec![key], call)
        });
    }
    sleep(Duration::from_millis(500)).await;
    pair.partition();
    sleep(Duration::from_millis(500)).await;
    pair.promote();
    let sums = LogSums::of(&load.end().await, TASKS * KEYS);

    let url = pair.replica.url();
    let promoted = Redis::builder(&url).secret(TEST_SECRET).deadline(TEST_TIMEOUT).build().unwrap();
    let mut counted = Vec::new();
    for key in 0..TASKS * KEYS {
        counted.push(used_and_held(&promoted, &ample, &format!("key {key}")).await.0);
    }
    let (lost, extra) = sums.lost_and_extra(&counted);
    assert_eq!(extra, 0, "charged twice");
    compare_with_goal("a call while the primary is lost", sums.longest, 2 * DEADLINE);
    (sums.admitted.iter().sum(), lost, sums.ambiguous.iter().sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_that_replicas_acknowledged_survive_the_primary() {
    let rounds = if is_long_run() { 10 } else { 3 };
    let mut lost_without_acks = 0;
    for (name, replicas) in [("strict", 0), ("replicated-strict", 1)] {
        for round in 1..=rounds {
            let (admitted, lost, ambiguous) = lose_a_primary(replicas).await;
            print_line(&format!(
                "{name}, round {round}: {admitted} admitted, {lost} of them lost with the primary, \
                 {ambiguous} ambiguous"
            ));
            assert!(admitted > 0, "nothing was admitted, so the run proves nothing");
            if replicas > 0 {
                assert_eq!(lost, 0, "admitted, acknowledged and lost");
            } else {
                lost_without_acks += lost;
            }
        }
    }
    assert!(
        lost_without_acks > 0,
        "nothing was lost without acknowledgements, so the run proves nothing"
    );
}

async fn until_decided(subjects: &ShardedSubjects, engine: &Redis, limits: &[usize]) {
    let begun = Instant::now();
    for limit in limits {
        while subjects.decide(engine, Op::Peek, &[*limit], None).await.is_err() {
            assert!(begun.elapsed() < TEST_TIMEOUT, "no connection");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_promotes_a_replica_loses_no_acknowledged_charge() {
    let mut cluster = RedisCluster::start();
    let subjects = Arc::new(ShardedSubjects::new(&cluster));
    let builder = Redis::builder(&cluster.url()).secret(TEST_SECRET).deadline(DEADLINE);
    let engine = Arc::new(builder.wait_for_replicas(1).build().unwrap());
    let every: Vec<usize> = (0..SUBJECTS).map(|subject| 2 * subject + 1).collect();
    until_decided(&subjects, &engine, &every).await;
    let (mut admitted, mut ambiguous) = (0, 0);
    for round in 0..if is_long_run() { 9 } else { 3 } {
        let before = subjects.charged(&every, TEST_TIMEOUT).await;
        let mut load = CallTasks::new();
        for task in 0..TASKS {
            let (engine, subjects) = (Arc::clone(&engine), Arc::clone(&subjects));
            // One subject, or two on two shards.
            load.add(move |nth| {
                let subject = (task + nth as usize) % SUBJECTS;
                let mut limits = vec![2 * subject + 1];
                if task % 2 == 0 {
                    limits.push(2 * ((subject + 1) % SUBJECTS) + 1);
                }
                let (engine, subjects) = (Arc::clone(&engine), Arc::clone(&subjects));
                let charged = limits.clone();
                let call = async move { subjects.decide(&engine, Op::Check, &charged, None).await };
                (limits, call)
            });
        }
        sleep(Duration::from_millis(500)).await;
        let slot = subjects.slot_on(round % PRIMARIES);
        let victim = cluster.primary_of(slot);
        cluster.kill(victim);
        let killed = Instant::now();
        while cluster.primary_of(slot) == victim {
            assert!(killed.elapsed() < TEST_TIMEOUT, "no replica takes over");
        }
        sleep(Duration::from_millis(500)).await;
        let log = load.end().await;
        // The killed node returns as a replica; without it nothing would be acknowledged there.
        cluster.restart(victim);
        cluster.until_settled();
        until_decided(&subjects, &subjects.engine, &every).await;

        let sums = LogSums::of(&log, 2 * SUBJECTS);
        let after = subjects.charged(&every, TEST_TIMEOUT).await;
        let mut counted = vec![0; 2 * SUBJECTS];
        for ((limit, after), before) in every.iter().zip(after).zip(before) {
            counted[*limit] = after.saturating_sub(before);
        }
        let (lost, extra) = sums.lost_and_extra(&counted);
        let passed = sums.admitted.iter().sum::<u64>();
        let unknown = sums.ambiguous.iter().sum::<u64>();
        print_line(&format!(
            "cluster, replicated-strict, kill {}: {passed} permits admitted, {lost} lost, {unknown} \
             ambiguous, longest call {:?}",
            round + 1,
            sums.longest
        ));
        assert_eq!(lost, 0, "admitted, acknowledged and lost");
        assert_eq!(extra, 0, "charged twice");
        (admitted, ambiguous) = (admitted + passed, ambiguous + unknown);
    }
    assert!(admitted > 0 && ambiguous > 0, "{admitted} and {ambiguous} prove nothing");
}
