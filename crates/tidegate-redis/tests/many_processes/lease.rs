//! Processes that borrow from one Redis and are killed while they do.
//!
//! Every figure is computed from the log of decisions, which each process writes at once.

use std::io::{BufRead as _, BufReader, Write as _, stderr, stdout};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate::{
    Clock as _, DenyCache, Lease, LeaseSize, Limiter, Micros, Rule, Source, SystemClock,
};
use tidegate_redis::Redis;

use testkit::bounds::{IntervalBound, LoggedDecision};
use testkit::redis::RedisServer;

const PROCESSES: usize = 4;
const TASKS: u64 = 8;
/// Interval and number of kills.
const KILL_EVERY: Duration = Duration::from_millis(500);
const KILLS: usize = 8;
/// Deadline of a call. The decision of a call that times out would be unknown.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Environment variable of a process: the server's URL and the limit.
const MEMBER: &str = "TIDEGATE_TEST_LEASE_MEMBER";

#[tokio::test]
async fn processes_that_are_killed_admit_no_more_than_the_limit() {
    let bucket = IntervalBound::Bucket { burst: 1_500, count: 3_000, period: 1_000_000 };
    let log = IntervalBound::Window { limit: 3_000, window: 1_000_000 };
    for (notation, bound) in [("3000/s burst 1500", bucket), ("sliding-log 3000/s", log)] {
        let server = RedisServer::start();
        let log = run_members(&server, notation).await;
        let entries: Vec<LoggedDecision> = log.iter().map(|(entry, _)| *entry).collect();
        let local = log.iter().filter(|(_, local)| *local).count();
        let found = bound.check(&entries);
        writeln!(
            stderr().lock(),
            "leases on redis: {PROCESSES} processes, {KILLS} killed and replaced, {notation}: {} \
             decisions, {} admitted, {local} decided without redis; over-admitted {}",
            found.decisions,
            found.admitted,
            found.over
        )
        .unwrap();
        assert_eq!(found.over, 0);
        assert!(local > 500, "only {local} decided locally");
        // Settled loans leave no record; only the last loans of killed processes remain.
        let records = server.cli(&["--scan", "--pattern", "*:hold:*"]).lines().count();
        assert!(records <= 4 * (KILLS + PROCESSES), "{records} records of loans");
    }
}

/// Runs the processes and kills one after the other. Returns the decisions of all of them.
async fn run_members(server: &RedisServer, notation: &str) -> Vec<(LoggedDecision, bool)> {
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
    log: JoinHandle<Vec<(LoggedDecision, bool)>>,
}

impl Member {
    fn start(server: &RedisServer, notation: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lease::a_member_prints_every_decision", "--nocapture"])
            .env(MEMBER, format!("{} {notation}", server.url()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let log = std::thread::spawn(move || lines.filter_map(|line| parse(&line.ok()?)).collect());
        Self { process, log }
    }

    /// Kills the process, and returns the decisions that it had printed.
    fn kill(mut self) -> Vec<(LoggedDecision, bool)> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.log.join().unwrap()
    }
}

/// `None` for a line that was cut off.
fn parse(line: &str) -> Option<(LoggedDecision, bool)> {
    let numbers = line.strip_prefix("decided ")?.strip_suffix('.')?;
    let numbers: Vec<u64> = numbers.split(' ').map_while(|word| word.parse().ok()).collect();
    let [before, after, allowed, local] = numbers[..] else { return None };
    Some((LoggedDecision { key: 0, cost: 1, allowed: allowed == 1, before, after }, local == 1))
}

/// Entry point of a process that the test above starts and kills.
#[tokio::test]
async fn a_member_prints_every_decision() {
    let Ok(settings) = std::env::var(MEMBER) else { return };
    let (url, notation) = settings.split_once(' ').unwrap();
    let engine = Redis::builder(url).deadline(TIMEOUT).build().unwrap();
    let rule = Rule::new("all", [notation.parse().unwrap()]).unwrap().lease(LeaseSize::Auto);
    let engine = Lease::new(DenyCache::new(engine));
    let limiter = Arc::new(Limiter::with_rules(engine, [rule]).unwrap());
    writeln!(stdout()).unwrap();
    let tasks = (0..TASKS).map(|task| tokio::spawn(make_calls(limiter.clone(), task)));
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Makes calls at a steady pace, and in bursts as fast as it can.
async fn make_calls(limiter: Arc<Limiter>, task: u64) {
    let end = SystemClock.elapsed().saturating_add(Micros::from_secs(60));
    for step in 0.. {
        if SystemClock.elapsed() > end {
            return;
        }
        let before = SystemClock.now().get();
        let decision = limiter.check("shared").await.unwrap();
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
