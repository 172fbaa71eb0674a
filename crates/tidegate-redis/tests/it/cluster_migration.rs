//! Slots of a Redis Cluster are moved back and forth under load, with subjects of every algorithm
//! on them. No call fails.
//!
//! Every figure is computed from the log of decisions as their callers observed them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use testkit::cluster::RedisCluster;
use testkit::engine::TEST_SECRET;
use testkit::ledger::ObservedResult;
use testkit::load::{LoadEntry, count, errors, hash_tag, is_long_run, observed, quantiles};
use testkit::timing::HANG;
use tidegate::{Limited, Limiter, Rule};
use tidegate_model::print_line;
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// Nothing recovers within a test, so that every admission counts until its end.
const LIMITS: [&str; 10] = [
    "token-bucket 150/365d",
    "token-bucket 150/365d every 365d",
    "leaky-bucket 150/365d",
    "leaky-bucket 150/365d queue",
    "fixed-window 150/365d first-hit",
    "sliding-log 150/30d",
    "sliding-window 150/30d",
    "sliding-window 150/30d precision 12h",
    "sliding-window 150/365d approximate",
    "fixed-window 150/365d",
];
const LIMIT: u64 = 150;
/// A slot whose holder gets no reply when it leaves is taken until its lease ends.
const SLOT_LIMIT: &str = "concurrency 2 lease 3s";
/// Tasks per subject.
const TASKS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = HANG;
/// Fewer moves of slots prove nothing.
const MIN_MOVES: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_slots_are_followed_and_no_call_fails() {
    let cluster = RedisCluster::start();
    let found = migrate_under_load(&cluster, "long deadline", TIMEOUT).await;
    assert_eq!(found, MigrationFaults::default());
}

/// A call that hits a moving slot may have to wait longer than the usual deadline. It fails then,
/// but is never decided wrongly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_usual_deadline_nothing_is_decided_wrongly() {
    let cluster = RedisCluster::start();
    let deadline = Duration::from_millis(25);
    let found = migrate_under_load(&cluster, "deadline 25 ms", deadline).await;
    assert_eq!(MigrationFaults { failed: 0, ..found }, MigrationFaults::default());
}

/// Counts of events that must not happen.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct MigrationFaults {
    failed: u64,
    over: u64,
    /// Denied before the limit was reached.
    early: u64,
    crossed: u64,
    /// Concurrency slots that are never freed, or taken beyond the limit.
    concurrency: u64,
}

async fn migrate_under_load(
    cluster: &RedisCluster,
    what: &str,
    deadline: Duration,
) -> MigrationFaults {
    let span = if is_long_run() { 60 * SECOND } else { 6 * SECOND };
    let subjects: Vec<String> = (0..LIMITS.len()).map(|nth| format!("subject-{nth}")).collect();
    let holders: Vec<String> = (0..4).map(|nth| format!("holder-{nth}")).collect();
    let engine = |deadline: Duration| {
        Arc::new(
            Redis::builder(&cluster.url()).secret(TEST_SECRET).deadline(deadline).build().unwrap(),
        )
    };
    let (tested, patient) = (engine(deadline), engine(TIMEOUT));
    let limiter = |engine: &Arc<Redis>, name: &str, limit: &str| {
        let rule = Rule::new(name, [limit.parse().unwrap()]).unwrap();
        Limiter::with_rules(Arc::clone(engine), [rule]).unwrap()
    };
    let name = |nth: usize| format!("rule-{nth}");
    // The tested engine needs a slot of each shard, and a connection to each primary.
    for (nth, subject) in subjects.iter().enumerate() {
        let limiter = limiter(&tested, &name(nth), LIMITS[nth]);
        let reachable = async { while limiter.check(subject).peek().await.is_err() {} };
        timeout(TIMEOUT, reachable).await.unwrap();
    }

    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for (nth, subject) in subjects.iter().enumerate() {
        for _ in 0..TASKS {
            let limiter = limiter(&tested, &name(nth), LIMITS[nth]);
            // The limit is reached after half of the time.
            let pause = span / 2 * TASKS as u32 / LIMIT as u32;
            tasks.spawn(check(limiter, nth, subject.clone(), pause, Arc::clone(&over)));
        }
    }
    let mut entering = JoinSet::new();
    let exceeded = Arc::new(AtomicU64::new(0));
    for subject in &holders {
        let inside = Arc::new(AtomicU64::new(0));
        for _ in 0..TASKS {
            let limiter = limiter(&tested, "concurrency", SLOT_LIMIT);
            let counts = [Arc::clone(&inside), Arc::clone(&exceeded)];
            entering.spawn(enter(limiter, subject.clone(), counts, Arc::clone(&over)));
        }
    }

    let slots: Vec<u16> = subjects
        .iter()
        .chain(&holders)
        .map(|subject| cluster.slot_of(&format!("{{{}}}", hash_tag(subject))))
        .collect();
    let (begun, mut moves, mut took) = (Instant::now(), 0, Vec::new());
    while begun.elapsed() < span || moves <= MIN_MOVES {
        let slot = slots[moves % slots.len()];
        let from = cluster.primary_of(slot);
        let to = (from + 1 + moves / slots.len() % 2) % testkit::cluster::PRIMARIES;
        let to = if to == from { (to + 1) % testkit::cluster::PRIMARIES } else { to };
        let begun = Instant::now();
        cluster.migrate(slot, from, to);
        took.push(begun.elapsed());
        moves += 1;
        sleep(SECOND / 100).await;
    }
    over.store(true, Ordering::Relaxed);
    let log: Vec<LoadEntry> = timeout(TIMEOUT, tasks.join_all()).await.expect("stuck").concat();
    let entered = timeout(TIMEOUT, entering.join_all()).await.expect("stuck");

    let mut found = MigrationFaults {
        concurrency: exceeded.load(Ordering::Relaxed),
        ..MigrationFaults::default()
    };
    for nth in 0..subjects.len() {
        let (excess, early) = judge(&log, nth);
        (found.over, found.early) = (found.over + excess, found.early + early);
    }
    let watcher = limiter(&patient, "concurrency", SLOT_LIMIT);
    for subject in &holders {
        let until_all_have_left = async {
            while watcher.inspect(subject).await.unwrap()[0].standing.held > 0 {
                sleep(SECOND / 20).await;
            }
        };
        found.concurrency += u64::from(timeout(TIMEOUT, until_all_have_left).await.is_err());
    }
    let (entries, lost) = entered.iter().fold((0, 0), |sum, (v, l)| (sum.0 + v, sum.1 + l));
    found.failed = count(&log, |e| !e.is_decision()) + lost;
    let has_error = |e: &LoadEntry, word: &str| match &e.result {
        ObservedResult::NotCharged(why) | ObservedResult::MaybeCharged(why) => why.contains(word),
        _ => false,
    };
    found.crossed = count(&log, |e| has_error(e, "CROSSSLOT"));
    let mut calls: Vec<Duration> = log.iter().map(|e| e.end - e.start).collect();
    let [p50, p99, longest] = quantiles(&mut calls);
    let [moved_p50, _, moved_longest] = quantiles(&mut took);
    print_line(&format!(
        "cluster: {moves} moves of slots (p50 {moved_p50:?}, longest {moved_longest:?}) under load, \
         {what}: {} checks (p50 {p50:?} p99 {p99:?} longest {longest:?}), {entries} concurrency slots \
         taken and freed; {} without a reply, over-admitted {}, denied too early {}, CROSSSLOT {}, \
         concurrency slots lost {}{}",
        log.len(),
        found.failed,
        found.over,
        found.early,
        found.crossed,
        found.concurrency,
        errors(&log)
    ));
    found
}

async fn check(
    limiter: Limiter,
    nth: usize,
    subject: String,
    pause: Duration,
    over: Arc<AtomicBool>,
) -> Vec<LoadEntry> {
    let mut log = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let result = limiter.check(&subject).await.map(|decision| decision.allowed());
        let (ended, result) = (Instant::now(), observed(result));
        log.push(LoadEntry { subject: nth, limiter: nth, start: begun, end: ended, result });
        sleep(pause).await;
    }
    log
}

/// Number of slots taken, and of calls without a reply.
async fn enter(
    limiter: Limiter,
    subject: String,
    [inside, exceeded]: [Arc<AtomicU64>; 2],
    over: Arc<AtomicBool>,
) -> (u64, u64) {
    let (mut entered, mut lost) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        match limiter.enter(&subject).await {
            Ok(entry) => {
                entered += 1;
                if inside.fetch_add(1, Ordering::SeqCst) >= 2 {
                    exceeded.fetch_add(1, Ordering::Relaxed);
                }
                sleep(SECOND / 100).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                lost += u64::from(entry.slot.unwrap().leave().await.is_err());
            }
            Err(Limited::NoAnswer(_)) => lost += 1,
            Err(_) => {}
        }
        sleep(SECOND / 100).await;
    }
    (entered, lost)
}

/// Number of admissions beyond the limit, and of denials before the limit can have been charged.
fn judge(log: &[LoadEntry], subject: usize) -> (u64, u64) {
    let of = |e: &&LoadEntry| e.subject == subject;
    let admitted = count(log, |e| of(&e) && e.result == ObservedResult::Allow);
    let may_have_charged = |e: &&LoadEntry| {
        matches!(e.result, ObservedResult::Allow | ObservedResult::MaybeCharged(_))
    };
    let early = |denied: &&LoadEntry| {
        let before = log.iter().filter(of).filter(may_have_charged);
        (before.filter(|e| e.start <= denied.end).count() as u64) < LIMIT
    };
    let denied = log.iter().filter(of).filter(|e| e.result == ObservedResult::Deny);
    (admitted.saturating_sub(LIMIT), denied.filter(early).count() as u64)
}
