//! Primaries die, and what they had not passed on dies with them. Where replicas confirm what is charged,
//! that is nothing that anybody passed for.
//!
//! What was lost is reckoned from the raw log of decisions as their callers saw them, and from what the
//! promoted replica says that it has counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{cluster, replicas, spread, traffic};
use cluster::{Cluster, PRIMARIES};
use replicas::{PATIENCE, Pair, ask, limit, standing};
use spread::{SUBJECTS, Spread};
use tidegate::{Decision, EngineError, Op, Source};
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use traffic::{SECRET, long, say};

const TASKS: usize = 32;
/// How many keys each of them asks about.
const KEYS: usize = 16;
const DEADLINE: Duration = Duration::from_millis(250);
/// Nothing of it comes back within a test, so that every admission counts for ever.
const AMPLE: &str = "fixed-window 1000000/365d first-hit";

/// One call as its caller saw it.
struct Entry {
    /// What one permit each was asked of.
    keys: Vec<usize>,
    begun: Instant,
    ended: Instant,
    said: Said,
}

#[derive(PartialEq, Eq)]
enum Said {
    Allow(Source),
    Deny,
    /// Nothing was charged.
    Nothing,
    /// Perhaps it was.
    Perhaps,
}

impl Said {
    fn of(answer: Result<Decision, EngineError>) -> Self {
        match answer {
            Ok(decision) if decision.allowed() => Self::Allow(decision.source),
            Ok(_) => Self::Deny,
            Err(EngineError::Ambiguous(_)) => Self::Perhaps,
            Err(_) => Self::Nothing,
        }
    }
}

/// What a log comes to.
#[derive(Default)]
struct Sums {
    admitted: Vec<u64>,
    perhaps: Vec<u64>,
    longest: Duration,
}

impl Sums {
    fn of(log: &[Entry], keys: usize) -> Self {
        let mut sums = Self { admitted: vec![0; keys], perhaps: vec![0; keys], ..Self::default() };
        for Entry { keys, begun, ended, said } in log {
            sums.longest = sums.longest.max(*ended - *begun);
            let sum = match said {
                Said::Allow(source) => {
                    assert_eq!(*source, Source::Redis);
                    &mut sums.admitted
                }
                Said::Perhaps => &mut sums.perhaps,
                Said::Deny | Said::Nothing => continue,
            };
            keys.iter().for_each(|key| sum[*key] += 1);
        }
        sums
    }

    /// Admitted, and not counted; and counted, though nobody was told that it might be.
    fn lost_and_extra(&self, counted: &[u64]) -> (u64, u64) {
        let (mut lost, mut extra) = (0, 0);
        for (key, counted) in counted.iter().enumerate() {
            lost += self.admitted[key].saturating_sub(*counted);
            extra += counted.saturating_sub(self.admitted[key] + self.perhaps[key]);
        }
        (lost, extra)
    }
}

/// Tasks that ask without end.
struct Load {
    tasks: JoinSet<Vec<Entry>>,
    over: Arc<AtomicBool>,
}

impl Load {
    fn new() -> Self {
        Self { tasks: JoinSet::new(), over: Arc::default() }
    }

    /// One more, which asks for one permit of each of these keys, and then for others.
    fn add<F>(&mut self, ask: impl Fn(u64) -> (Vec<usize>, F) + Send + 'static)
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
                let (keys, answer) = ask(nth);
                let begun = Instant::now();
                let said = Said::of(answer.await);
                let ended = Instant::now();
                if matches!(said, Said::Nothing) {
                    sleep(Duration::from_millis(5)).await;
                }
                log.push(Entry { keys, begun, ended, said });
            }
            log
        });
    }

    /// What all of them saw. A task that is stuck fails the test.
    async fn end(self) -> Vec<Entry> {
        self.over.store(true, Ordering::Relaxed);
        let logs = timeout(PATIENCE, self.tasks.join_all()).await.expect("a task is stuck");
        logs.into_iter().flatten().collect()
    }
}

/// Cuts a replica off under load, kills its primary a moment later, and promotes it. Says how many were
/// admitted, how many of these the promoted one does not know of, and how many were told perhaps.
async fn lose_a_primary(replicas: u32) -> (u64, u64, u64) {
    let mut pair = Pair::start();
    let engine = Arc::new(pair.builder(replicas, DEADLINE).build().unwrap());
    let ample = limit("ample", AMPLE);
    let begun = Instant::now();
    while ask(&engine, Op::Peek, &ample, "k", None).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "it does not connect");
    }
    let mut load = Load::new();
    for task in 0..TASKS {
        let (engine, ample) = (Arc::clone(&engine), Arc::clone(&ample));
        load.add(move |nth| {
            let key = task * KEYS + nth as usize % KEYS;
            let (engine, ample) = (Arc::clone(&engine), Arc::clone(&ample));
            let answer =
                async move { ask(&engine, Op::Check, &ample, &format!("key {key}"), None).await };
            (vec![key], answer)
        });
    }
    sleep(Duration::from_millis(500)).await;
    pair.cut();
    sleep(Duration::from_millis(500)).await;
    pair.promote();
    let sums = Sums::of(&load.end().await, TASKS * KEYS);

    let url = pair.replica.url();
    let promoted = Redis::builder(&url).secret(SECRET).deadline(PATIENCE).build().unwrap();
    let mut counted = Vec::new();
    for key in 0..TASKS * KEYS {
        counted.push(standing(&promoted, &ample, &format!("key {key}")).await.0);
    }
    let (lost, extra) = sums.lost_and_extra(&counted);
    assert_eq!(extra, 0, "charged twice");
    assert!(sums.longest < DEADLINE + Duration::from_secs(2), "{:?}", sums.longest);
    (sums.admitted.iter().sum(), lost, sums.perhaps.iter().sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_replicas_confirmed_is_not_lost_with_the_primary() {
    let rounds = if long() { 10 } else { 3 };
    let mut lost_unconfirmed = 0;
    for (name, replicas) in [("strict", 0), ("replicated-strict", 1)] {
        for round in 1..=rounds {
            let (admitted, lost, perhaps) = lose_a_primary(replicas).await;
            say(&format!(
                "{name}, round {round}: {admitted} admitted, {lost} of them lost with the primary, \
                 {perhaps} were not known to be charged"
            ));
            assert!(admitted > 0, "nobody was admitted, which proves nothing");
            if replicas > 0 {
                assert_eq!(lost, 0, "admitted, confirmed and lost");
            } else {
                lost_unconfirmed += lost;
            }
        }
    }
    assert!(lost_unconfirmed > 0, "nothing can be lost here, which proves nothing");
}

async fn until_answered(spread: &Spread, engine: &Redis, limits: &[usize]) {
    let begun = Instant::now();
    for limit in limits {
        while spread.ask(engine, Op::Peek, &[*limit], None).await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "it does not connect");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_promotes_a_replica_loses_nothing_that_it_confirmed() {
    let mut cluster = Cluster::start();
    let spread = Arc::new(Spread::new(&cluster));
    let builder = Redis::builder(&cluster.url()).secret(SECRET).deadline(DEADLINE);
    let engine = Arc::new(builder.confirmed_by(1).build().unwrap());
    let every: Vec<usize> = (0..SUBJECTS).map(|subject| 2 * subject + 1).collect();
    until_answered(&spread, &engine, &every).await;
    let (mut admitted, mut perhaps) = (0, 0);
    for round in 0..if long() { 9 } else { 3 } {
        let before = spread.charged(&every, PATIENCE).await;
        let mut load = Load::new();
        for task in 0..TASKS {
            let (engine, spread) = (Arc::clone(&engine), Arc::clone(&spread));
            // One subject, or two on two shards.
            load.add(move |nth| {
                let subject = (task + nth as usize) % SUBJECTS;
                let mut limits = vec![2 * subject + 1];
                if task % 2 == 0 {
                    limits.push(2 * ((subject + 1) % SUBJECTS) + 1);
                }
                let (engine, spread) = (Arc::clone(&engine), Arc::clone(&spread));
                let asked = limits.clone();
                let answer = async move { spread.ask(&engine, Op::Check, &asked, None).await };
                (limits, answer)
            });
        }
        sleep(Duration::from_millis(500)).await;
        let slot = spread.slot_on(round % PRIMARIES);
        let victim = cluster.primary_of(slot);
        cluster.kill(victim);
        let killed = Instant::now();
        while cluster.primary_of(slot) == victim {
            assert!(killed.elapsed() < PATIENCE, "no replica takes over");
        }
        sleep(Duration::from_millis(500)).await;
        let log = load.end().await;
        // What it lost comes back as a replica, or nothing would be confirmed there.
        cluster.restart(victim);
        cluster.until_settled();
        until_answered(&spread, &spread.patient, &every).await;

        let sums = Sums::of(&log, 2 * SUBJECTS);
        let after = spread.charged(&every, PATIENCE).await;
        let mut counted = vec![0; 2 * SUBJECTS];
        for ((limit, after), before) in every.iter().zip(after).zip(before) {
            counted[*limit] = after.saturating_sub(before);
        }
        let (lost, extra) = sums.lost_and_extra(&counted);
        let (passed, open) = (sums.admitted.iter().sum::<u64>(), sums.perhaps.iter().sum::<u64>());
        say(&format!(
            "cluster, replicated-strict, kill {}: {passed} permits admitted, {lost} lost, {open} not \
             known to be charged, longest call {:?}",
            round + 1,
            sums.longest
        ));
        assert_eq!(lost, 0, "admitted, confirmed and lost");
        assert_eq!(extra, 0, "charged twice");
        (admitted, perhaps) = (admitted + passed, perhaps + open);
    }
    assert!(admitted > 0 && perhaps > 0, "{admitted} and {perhaps} prove nothing");
}
