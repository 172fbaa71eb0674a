//! Processes that borrow from one Redis and are killed in the middle of it.
//!
//! Every figure is computed from the raw log of the decisions, which each process writes as they fall.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../../tidegate/tests/support/checker.rs"]
mod checker;
#[path = "support/server.rs"]
mod server;

use std::io::{BufRead as _, BufReader, Write as _, stderr, stdout};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate::{
    Clock as _, DenyCache, Lease, LeaseSize, Limiter, Micros, Rule, Source, SystemClock,
};
use tidegate_redis::Redis;

use crate::checker::{Bound, Entry};
use crate::server::Server;

const PROCESSES: usize = 4;
const TASKS: u64 = 8;
/// How often one of them is killed, and how many times.
const KILL_EVERY: Duration = Duration::from_millis(500);
const KILLS: usize = 8;
/// The longest that a call may take. A timeout would be a decision that nobody has seen.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a process is told: the server's url and the limit.
const MEMBER: &str = "TIDEGATE_TEST_LEASE_MEMBER";

#[tokio::test]
async fn processes_that_are_killed_admit_no_more_than_the_limit() {
    let bucket = Bound::Bucket { burst: 1_500, count: 3_000, period: 1_000_000 };
    let log = Bound::Window { limit: 3_000, window: 1_000_000 };
    for (notation, bound) in [("3000/s burst 1500", bucket), ("sliding-log 3000/s", log)] {
        let server = Server::start();
        let log = live(&server, notation).await;
        let entries: Vec<Entry> = log.iter().map(|(entry, _)| *entry).collect();
        let local = log.iter().filter(|(_, local)| *local).count();
        let found = bound.check(&entries);
        writeln!(
            stderr().lock(),
            "leases on redis: {PROCESSES} processes, {KILLS} killed and replaced, {notation}: {} \
             decisions, {} admitted, {local} of them without redis, the others denied; \
             over-admitted {}",
            found.decisions,
            found.admitted,
            found.over
        )
        .unwrap();
        assert_eq!(found.over, 0);
        assert!(local > 500, "{local} locally");
        // What is settled is forgotten, and of the dead the last loans remain.
        let records = server.cli(&["--scan", "--pattern", "*:hold:*"]).lines().count();
        assert!(records <= 4 * (KILLS + PROCESSES), "{records} records of loans");
    }
}

/// What all processes saw, while one after the other is killed.
async fn live(server: &Server, notation: &str) -> Vec<(Entry, bool)> {
    let mut members: Vec<Member> =
        (0..PROCESSES).map(|_| Member::start(server, notation)).collect();
    let mut log = Vec::new();
    for kill in 0..KILLS {
        tokio::time::sleep(KILL_EVERY).await;
        let fresh = Member::start(server, notation);
        log.extend(std::mem::replace(&mut members[kill % PROCESSES], fresh).kill());
    }
    tokio::time::sleep(KILL_EVERY).await;
    log.extend(members.into_iter().flat_map(Member::kill));
    log
}

struct Member {
    process: Child,
    log: JoinHandle<Vec<(Entry, bool)>>,
}

impl Member {
    fn start(server: &Server, notation: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_member_tells_every_decision", "--nocapture"])
            .env(MEMBER, format!("{} {notation}", server.url()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let log = std::thread::spawn(move || lines.filter_map(|line| parse(&line.ok()?)).collect());
        Self { process, log }
    }

    /// Kills it, whatever it is doing, and returns what it told before.
    fn kill(mut self) -> Vec<(Entry, bool)> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.log.join().unwrap()
    }
}

/// A line that was cut off tells nothing.
fn parse(line: &str) -> Option<(Entry, bool)> {
    let numbers = line.strip_prefix("decided ")?.strip_suffix('.')?;
    let numbers: Vec<u64> = numbers.split(' ').map_while(|word| word.parse().ok()).collect();
    let [before, after, allowed, local] = numbers[..] else { return None };
    Some((Entry { key: 0, cost: 1, allowed: allowed == 1, before, after }, local == 1))
}

/// A process: the test above starts and kills it.
#[tokio::test]
async fn a_member_tells_every_decision() {
    let Ok(told) = std::env::var(MEMBER) else { return };
    let (url, notation) = told.split_once(' ').unwrap();
    let engine = Redis::builder(url).deadline(PATIENCE).build().unwrap();
    let rule = Rule::new("all", [notation.parse().unwrap()]).unwrap().lease(LeaseSize::Auto);
    let engine = Lease::new(DenyCache::new(engine));
    let limiter = Arc::new(Limiter::with_rules(engine, [rule]).unwrap());
    writeln!(stdout()).unwrap();
    let tasks = (0..TASKS).map(|task| tokio::spawn(ask_on(limiter.clone(), task)));
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Asks at a steady pace, and now and then as fast as it can.
async fn ask_on(limiter: Arc<Limiter>, task: u64) {
    let end = SystemClock.elapsed().saturating_add(Micros::from_secs(60));
    for step in 0.. {
        if SystemClock.elapsed() > end {
            return;
        }
        let before = SystemClock.now().get();
        let decision = limiter.check("everyone").await.unwrap();
        let after = SystemClock.now().get();
        let (allowed, local) = (decision.allowed(), decision.source == Source::Lease);
        let line = format!("decided {before} {after} {} {}.\n", u8::from(allowed), u8::from(local));
        stdout().write_all(line.as_bytes()).unwrap();
        let is_burst = (step + task * 50) % 400 >= 300;
        if !is_burst {
            tokio::time::sleep(Duration::from_millis(8)).await;
        }
    }
}
