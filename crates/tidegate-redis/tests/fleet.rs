//! Four processes of 64 tasks each on one key: what they admit together is the bound, no more and
//! no less.
//!
//! Every figure is computed from the raw log of the decisions as their callers saw them.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../../tidegate/tests/support/checker.rs"]
#[expect(dead_code, reason = "other tests use the rest of it")]
mod checker;
#[path = "support/server.rs"]
mod server;

use std::io::{BufRead as _, BufReader, Write as _, stderr, stdin, stdout};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock as _, Limiter, Micros, SystemClock};
use tidegate_redis::Redis;
use tokio::task::JoinSet;

use crate::checker::{Bound, Entry};
use crate::server::Server;

const PROCESSES: usize = 4;
const TASKS: usize = 64;
/// How long they ask, and how often each task does at most.
const SPAN: Micros = Micros::from_secs(2);
const MOST: usize = 500;
/// The longest that a call may take. A timeout would be a decision that nobody has seen.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a process of the fleet is told: the server's url and the limit.
const MEMBER: &str = "TIDEGATE_TEST_FLEET_MEMBER";

#[test]
fn a_fleet_on_one_token_bucket_admits_the_burst_and_the_refill() {
    // What comes back in the whole span fits into the bucket, so that none of it is lost.
    let (burst, count, period) = (400, 200, 1_000_000);
    let log = fleet("200/s burst 400");
    let found = Bound::Bucket { burst, count, period }.check(&log);

    let admitted = Admitted::of(&log);
    let first = admitted.after[0];
    let due = |at: u64| burst + at.saturating_sub(first) * count / period;
    // A denied call found less than one permit: all that was due but one has been admitted.
    let causeless =
        denied(&log).filter(|call| admitted.begun_by(call.after) + 1 < due(call.before)).count();
    let last = denied(&log).map(|call| call.before).max().unwrap_or(first);
    let (sum, due) = (admitted.begun_by(last), due(last));
    say(
        "token bucket 200/s burst 400",
        &log,
        &format!(
            "until the last denial {sum} of {due} due; over-admitted {}, denied without cause {causeless}",
            found.over
        ),
    );
    assert_eq!((found.over, causeless), (0, 0));
    assert!(sum + 1 >= due && due > burst, "{sum} of {due}");
}

#[test]
fn a_fleet_on_one_sliding_log_fills_every_window_and_no_more() {
    let (limit, window) = (300, 500_000);
    let log = fleet("sliding-log 300/500ms");
    let found = Bound::Window { limit, window }.check(&log);

    let admitted = Admitted::of(&log);
    // Whatever may have fallen into the window before a denial.
    let in_window =
        |call: &&Entry| admitted.begun_by(call.after) - admitted.ended_by(call.before - window);
    let causeless = denied(&log).filter(|call| in_window(call) < limit).count();
    say(
        "sliding log 300 in 500 ms",
        &log,
        &format!("over-admitted {}, denied without cause {causeless}", found.over),
    );
    assert_eq!((found.over, causeless), (0, 0));
    assert!(denied(&log).count() > 0, "the bound was never reached");
}

#[test]
fn a_fleet_on_one_fixed_window_fills_every_window_and_no_more() {
    let (limit, window) = (300, 500_000);
    let log = fleet("fixed-window 300/500ms");
    let admitted = Admitted::of(&log);
    let numbers = admitted.before[0] / window..=admitted.after[admitted.after.len() - 1] / window;
    let count = numbers.clone().count();
    let inside =
        |call: &Entry, number: u64| call.before / window == number && call.after / window == number;
    let over: u64 = numbers
        .clone()
        .map(|number| {
            let sum = log.iter().filter(|call| call.allowed && inside(call, number)).count();
            (sum as u64).saturating_sub(limit)
        })
        .sum();
    // A window in which somebody was denied has admitted all that it may. Calls on the way across a
    // boundary may count on either side, so neighbours are looked at together: only at the ends of
    // a run of full windows is anything uncertain, and nothing if those are the ends of the log.
    let full: Vec<u64> =
        numbers.filter(|number| denied(&log).any(|call| inside(call, *number))).collect();
    let mut missing = 0;
    for (i, first) in full.iter().enumerate() {
        let run = full[i..].iter().zip(*first..).take_while(|(number, next)| *number == next);
        for ((_, last), windows) in run.zip(1..) {
            let may_be_inside =
                admitted.begun_by((last + 1) * window - 1) - admitted.ended_by(first * window - 1);
            missing = missing.max((limit * windows).saturating_sub(may_be_inside));
        }
    }
    let figures = format!(
        "{} of {count} windows with a denial, over-admitted {over}, missing {missing}",
        full.len()
    );
    say("fixed window 300 in 500 ms", &log, &figures);
    assert_eq!((over, missing), (0, 0));
    assert!(!full.is_empty(), "the bound was never reached");
}

/// A process of the fleet: the tests above start it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_a_fleet_tells_every_decision() {
    let Ok(told) = std::env::var(MEMBER) else { return };
    let (url, limit) = told.split_once(' ').unwrap();
    let engine = Redis::builder(url).deadline(PATIENCE).build().unwrap();
    let limiter = Arc::new(Limiter::new(engine, limit.parse().unwrap()));
    limiter.check("everyone").peek().await.unwrap();
    // The name of this test stands on the line already.
    writeln!(stdout(), "\nready").unwrap();
    stdin().lock().read_line(&mut String::new()).unwrap();
    let end = SystemClock.elapsed().saturating_add(SPAN);
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut log = Vec::new();
            while log.len() < MOST && SystemClock.elapsed() < end {
                let before = SystemClock.now().get();
                let decision = limiter.check("everyone").await.unwrap();
                log.push((before, SystemClock.now().get(), decision.allowed()));
            }
            log
        });
    }
    let mut out = stdout().lock();
    for (before, after, allowed) in tasks.join_all().await.into_iter().flatten() {
        writeln!(out, "decided {before} {after} {}", u8::from(allowed)).unwrap();
    }
}

/// What all processes saw.
fn fleet(limit: &str) -> Vec<Entry> {
    let server = Server::start();
    let mut members: Vec<(Child, _)> = Vec::new();
    for _ in 0..PROCESSES {
        let mut member = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_member_of_a_fleet_tells_every_decision", "--nocapture"])
            .env(MEMBER, format!("{} {limit}", server.url()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(member.stdout.take().unwrap()).lines();
        members.push((member, lines));
    }
    for (_, lines) in &mut members {
        assert!(lines.any(|line| line.unwrap() == "ready"), "a member ended before it began");
    }
    for (member, _) in &mut members {
        member.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    let mut log = Vec::new();
    for (mut member, lines) in members {
        let before = log.len();
        for line in lines {
            let line = line.unwrap();
            let Some(numbers) = line.strip_prefix("decided ") else { continue };
            let numbers: Vec<u64> = numbers.split(' ').map(|word| word.parse().unwrap()).collect();
            let [before, after, allowed] = numbers[..] else { panic!("{line}") };
            log.push(Entry { key: 0, cost: 1, allowed: allowed == 1, before, after });
        }
        assert!(member.wait().unwrap().success(), "a member failed");
        assert!(log.len() >= before + TASKS, "a member told {} decisions", log.len() - before);
    }
    log
}

fn denied(log: &[Entry]) -> impl Iterator<Item = &Entry> {
    log.iter().filter(|call| !call.allowed)
}

/// When the admitted calls began and ended, each in order.
struct Admitted {
    before: Vec<u64>,
    after: Vec<u64>,
}

impl Admitted {
    fn of(log: &[Entry]) -> Self {
        let admitted = log.iter().filter(|call| call.allowed);
        let (mut before, mut after): (Vec<_>, Vec<_>) =
            admitted.map(|call| (call.before, call.after)).unzip();
        before.sort_unstable();
        after.sort_unstable();
        Self { before, after }
    }

    /// How many may have been decided by `at`, `at` included.
    fn begun_by(&self, at: u64) -> u64 {
        self.before.partition_point(|before| *before <= at) as u64
    }

    /// How many have been decided by `at`, `at` included, for certain.
    fn ended_by(&self, at: u64) -> u64 {
        self.after.partition_point(|after| *after <= at) as u64
    }
}

fn say(limit: &str, log: &[Entry], words: &str) {
    let first = log.iter().map(|call| call.before).min().unwrap();
    let last = log.iter().map(|call| call.after).max().unwrap();
    let admitted = log.iter().filter(|call| call.allowed).count();
    writeln!(
        stderr().lock(),
        "fleet: {PROCESSES} processes x {TASKS} tasks, {limit}: {} decisions in {} ms, admitted \
         {admitted}; {words}",
        log.len(),
        (last - first) / 1_000
    )
    .unwrap();
}
