//! Slots of a Cluster are moved back and forth under load, with subjects of every algorithm on them.
//! Nobody notices.
//!
//! Every figure is computed from the raw log of the decisions as their callers saw them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::{cluster, traffic};
use cluster::Cluster;
use tidegate::{Limited, Limiter, Rule};
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use traffic::{Entry, SECRET, Said, count, errors, long, quantiles, say, tag};

/// Nothing of these comes back within a test, so that every admission counts for ever.
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
/// A place whose holder has no answer when it leaves is taken until its lease ends.
const PLACES: &str = "concurrency 2 lease 3s";
/// How many tasks share one limit's subject.
const TASKS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_are_followed_and_nobody_notices() {
    let cluster = Cluster::start();
    let found = migrate_under_load(&cluster, "deadline 1 s", SECOND).await;
    assert_eq!(found, Found::default());
}

/// A call that meets a slot on its way may have to wait for longer than the usual deadline. It fails
/// then, but is never decided wrongly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_usual_deadline_nothing_is_decided_wrongly() {
    let cluster = Cluster::start();
    let deadline = Duration::from_millis(25);
    let found = migrate_under_load(&cluster, "deadline 25 ms", deadline).await;
    assert_eq!(Found { failed: 0, ..found }, Found::default());
}

/// What must not be.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Found {
    failed: u64,
    over: u64,
    /// Denied before the limit was reached.
    early: u64,
    crossed: u64,
    /// Places that are taken when all have left, or that more had than there are.
    places: u64,
}

async fn migrate_under_load(cluster: &Cluster, what: &str, deadline: Duration) -> Found {
    let span = if long() { 60 * SECOND } else { 6 * SECOND };
    let subjects: Vec<String> = (0..LIMITS.len()).map(|nth| format!("subject-{nth}")).collect();
    let holders: Vec<String> = (0..4).map(|nth| format!("holder-{nth}")).collect();
    let engine = |deadline: Duration| {
        Arc::new(Redis::builder(&cluster.url()).secret(SECRET).deadline(deadline).build().unwrap())
    };
    let (asked, patient) = (engine(deadline), engine(PATIENCE));
    let limiter = |engine: &Arc<Redis>, name: &str, limit: &str| {
        let rule = Rule::new(name, [limit.parse().unwrap()]).unwrap();
        Limiter::with_rules(Arc::clone(engine), [rule]).unwrap()
    };
    let name = |nth: usize| format!("rule-{nth}");
    // A slot of each shard has to be known, and a connection to each primary.
    for (nth, subject) in subjects.iter().enumerate() {
        let limiter = limiter(&asked, &name(nth), LIMITS[nth]);
        let answers = async { while limiter.check(subject).peek().await.is_err() {} };
        timeout(PATIENCE, answers).await.unwrap();
    }

    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for (nth, subject) in subjects.iter().enumerate() {
        for _ in 0..TASKS {
            let limiter = limiter(&asked, &name(nth), LIMITS[nth]);
            // So that the limit is reached after half of the time.
            let pause = span / 2 * TASKS as u32 / LIMIT as u32;
            tasks.spawn(check(limiter, nth, subject.clone(), pause, Arc::clone(&over)));
        }
    }
    let mut places = JoinSet::new();
    let crowded = Arc::new(AtomicU64::new(0));
    for subject in &holders {
        let inside = Arc::new(AtomicU64::new(0));
        for _ in 0..TASKS {
            let limiter = limiter(&asked, "places", PLACES);
            let counts = [Arc::clone(&inside), Arc::clone(&crowded)];
            places.spawn(enter(limiter, subject.clone(), counts, Arc::clone(&over)));
        }
    }

    let slots: Vec<u16> = subjects
        .iter()
        .chain(&holders)
        .map(|subject| cluster.slot_of(&format!("{{{}}}", tag(subject))))
        .collect();
    let (begun, mut moves, mut took) = (Instant::now(), 0, Vec::new());
    while begun.elapsed() < span {
        let slot = slots[moves % slots.len()];
        let from = cluster.primary_of(slot);
        let to = (from + 1 + moves / slots.len() % 2) % cluster::PRIMARIES;
        let to = if to == from { (to + 1) % cluster::PRIMARIES } else { to };
        let begun = Instant::now();
        cluster.migrate(slot, from, to);
        took.push(begun.elapsed());
        moves += 1;
        sleep(SECOND / 100).await;
    }
    over.store(true, Ordering::Relaxed);
    let log: Vec<Entry> = timeout(PATIENCE, tasks.join_all()).await.expect("stuck").concat();
    let entered = timeout(PATIENCE, places.join_all()).await.expect("stuck");

    let mut found = Found { places: crowded.load(Ordering::Relaxed), ..Found::default() };
    for nth in 0..subjects.len() {
        let (excess, early) = judge(&log, nth);
        (found.over, found.early) = (found.over + excess, found.early + early);
    }
    let watcher = limiter(&patient, "places", PLACES);
    for subject in &holders {
        let until_all_have_left = async {
            while watcher.inspect(subject).await.unwrap()[0].standing.held > 0 {
                sleep(SECOND / 20).await;
            }
        };
        found.places += u64::from(timeout(PATIENCE, until_all_have_left).await.is_err());
    }
    let (visits, lost) = entered.iter().fold((0, 0), |sum, (v, l)| (sum.0 + v, sum.1 + l));
    found.failed = count(&log, |e| !e.is_good()) + lost;
    let said = |e: &Entry, word: &str| match &e.said {
        Said::Nothing(why) | Said::Perhaps(why) => why.contains(word),
        _ => false,
    };
    found.crossed = count(&log, |e| said(e, "CROSSSLOT"));
    let mut calls: Vec<Duration> = log.iter().map(|e| e.ended - e.begun).collect();
    let [p50, p99, longest] = quantiles(&mut calls);
    let [moved_p50, _, moved_longest] = quantiles(&mut took);
    say(&format!(
        "cluster: {moves} moves of slots (p50 {moved_p50:?}, longest {moved_longest:?}) under load, \
         {what}: {} checks (p50 {p50:?} p99 {p99:?} longest {longest:?}), {visits} places taken and \
         given back; {} without an answer, over-admitted {}, denied too early {}, CROSSSLOT {}, places \
         lost {}{}",
        log.len(),
        found.failed,
        found.over,
        found.early,
        found.crossed,
        found.places,
        errors(&log)
    ));
    assert!(moves > 20, "hardly anything was moved");
    found
}

async fn check(
    limiter: Limiter,
    nth: usize,
    subject: String,
    pause: Duration,
    over: Arc<AtomicBool>,
) -> Vec<Entry> {
    let mut log = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let answer = limiter.check(&subject).await.map(|decision| decision.allowed());
        let (ended, said) = (Instant::now(), Said::of(answer));
        log.push(Entry { subject: nth, limiter: nth, begun, ended, said });
        sleep(pause).await;
    }
    log
}

/// How often it had a place, and how often it had no answer.
async fn enter(
    limiter: Limiter,
    subject: String,
    [inside, crowded]: [Arc<AtomicU64>; 2],
    over: Arc<AtomicBool>,
) -> (u64, u64) {
    let (mut entered, mut lost) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        match limiter.enter(&subject).await {
            Ok(place) => {
                entered += 1;
                if inside.fetch_add(1, Ordering::SeqCst) >= 2 {
                    crowded.fetch_add(1, Ordering::Relaxed);
                }
                sleep(SECOND / 100).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                lost += u64::from(place.slot.unwrap().leave().await.is_err());
            }
            Err(Limited::NoAnswer(_)) => lost += 1,
            Err(_) => {}
        }
        sleep(SECOND / 100).await;
    }
    (entered, lost)
}

/// Admitted beyond the limit; and denied although not as many can have been charged by then.
fn judge(log: &[Entry], subject: usize) -> (u64, u64) {
    let of = |e: &&Entry| e.subject == subject;
    let admitted = count(log, |e| of(&e) && e.said == Said::Allow);
    let may_have_charged = |e: &&Entry| matches!(e.said, Said::Allow | Said::Perhaps(_));
    let early = |denied: &&Entry| {
        let before = log.iter().filter(of).filter(may_have_charged);
        (before.filter(|e| e.begun <= denied.ended).count() as u64) < LIMIT
    };
    let denied = log.iter().filter(of).filter(|e| e.said == Said::Deny);
    (admitted.saturating_sub(LIMIT), denied.filter(early).count() as u64)
}
