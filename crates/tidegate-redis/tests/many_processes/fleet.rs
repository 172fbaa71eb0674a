//! Four processes of 64 tasks each on one key: together they admit exactly the bound.
//!
//! Every figure is computed from the log of decisions as their callers observed them.

use std::io::{BufRead as _, BufReader, Write as _, stderr, stdin, stdout};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock as _, Limiter, Micros, SystemClock};
use tidegate_redis::Redis;
use tokio::task::JoinSet;

use testkit::bounds::{IntervalBound, LoggedDecision};
use testkit::redis::RedisServer;

const PROCESSES: usize = 4;
const TASKS: usize = 64;
/// Duration of the calls, and their maximum number per task.
const SPAN: Micros = Micros::from_secs(2);
const MAX: usize = 500;
/// Deadline of a call. The decision of a call that times out would be unknown.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Environment variable of a process: the server's URL and the limit.
const MEMBER: &str = "TIDEGATE_TEST_FLEET_MEMBER";

#[test]
fn a_fleet_on_one_token_bucket_admits_the_burst_and_the_refill() {
    // From the first denial on, the refill of the whole span fits into the bucket, so that none of
    // it is lost. Before, the bucket may be full while the processes are slow to start.
    let (burst, count, period) = (400, 200, 1_000_000);
    let log = fleet("200/s burst 400");
    let found = IntervalBound::Bucket { burst, count, period }.check(&log);

    let admitted = AdmittedCalls::of(&log);
    let first = denied(&log).min_by_key(|call| call.after).expect("the bound was never reached");
    let in_burst = admitted.begun_by(first.after);
    let refill = |call: &LoggedDecision| call.before.saturating_sub(first.after) * count / period;
    let since =
        |call: &LoggedDecision| admitted.begun_by(call.after) - admitted.ended_by(first.before);
    // A denied call found less than one permit: all but one of the refill was admitted.
    let unjustified = denied(&log).filter(|call| since(call) + 1 < refill(call)).count();
    let last = denied(&log).max_by_key(|call| call.before).unwrap_or(first);
    let figures = format!(
        "until the first denial {in_burst} of {burst}, then {} of {}; over-admitted {}, \
         unjustified denials {unjustified}",
        since(last),
        refill(last),
        found.over
    );
    print_figures("token bucket 200/s burst 400", &log, &figures);
    assert_eq!((found.over, unjustified), (0, 0));
    assert!(in_burst >= burst, "{in_burst} of {burst}");
}

#[test]
fn a_fleet_on_one_sliding_log_fills_every_window_and_no_more() {
    let (limit, window) = (300, 500_000);
    let log = fleet("sliding-log 300/500ms");
    let found = IntervalBound::Window { limit, window }.check(&log);

    let admitted = AdmittedCalls::of(&log);
    // Calls that may have been in the window before a denial.
    let in_window = |call: &&LoggedDecision| {
        admitted.begun_by(call.after) - admitted.ended_by(call.before - window)
    };
    let unjustified = denied(&log).filter(|call| in_window(call) < limit).count();
    print_figures(
        "sliding log 300 in 500 ms",
        &log,
        &format!("over-admitted {}, unjustified denials {unjustified}", found.over),
    );
    assert_eq!((found.over, unjustified), (0, 0));
    assert!(denied(&log).count() > 0, "the bound was never reached");
}

#[test]
fn a_fleet_on_one_fixed_window_fills_every_window_and_no_more() {
    let (limit, window) = (300, 500_000);
    let log = fleet("fixed-window 300/500ms");
    let admitted = AdmittedCalls::of(&log);
    let numbers = admitted.before[0] / window..=admitted.after[admitted.after.len() - 1] / window;
    let count = numbers.clone().count();
    let inside = |call: &LoggedDecision, number: u64| {
        call.before / window == number && call.after / window == number
    };
    let over: u64 = numbers
        .clone()
        .map(|number| {
            let sum = log.iter().filter(|call| call.allowed && inside(call, number)).count();
            (sum as u64).saturating_sub(limit)
        })
        .sum();
    // A window with a denial has admitted its whole limit. Calls across a boundary may count on
    // either side, so neighbours are checked together: only the ends of a run of full windows are
    // uncertain, and not those at the ends of the log.
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
    print_figures("fixed window 300 in 500 ms", &log, &figures);
    assert_eq!((over, missing), (0, 0));
    assert!(!full.is_empty(), "the bound was never reached");
}

/// Entry point of a process that the tests above start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_a_fleet_prints_every_decision() {
    let Ok(settings) = std::env::var(MEMBER) else { return };
    let (url, limit) = settings.split_once(' ').unwrap();
    let engine = Redis::builder(url).deadline(TIMEOUT).build().unwrap();
    let limiter = Arc::new(Limiter::new(engine, limit.parse().unwrap()));
    limiter.check("shared").peek().await.unwrap();
    // The test harness has printed the name of this test without a line break.
    writeln!(stdout(), "\nready").unwrap();
    stdin().lock().read_line(&mut String::new()).unwrap();
    let end = SystemClock.elapsed().saturating_add(SPAN);
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut log = Vec::new();
            while log.len() < MAX && SystemClock.elapsed() < end {
                let before = SystemClock.now().get();
                let decision = limiter.check("shared").await.unwrap();
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

/// Decisions of all processes.
fn fleet(limit: &str) -> Vec<LoggedDecision> {
    let server = RedisServer::start();
    let mut members: Vec<(Child, _)> = Vec::new();
    for _ in 0..PROCESSES {
        let mut member = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fleet::a_member_of_a_fleet_prints_every_decision", "--nocapture"])
            .env(MEMBER, format!("{} {limit}", server.url()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(member.stdout.take().unwrap()).lines();
        members.push((member, lines));
    }
    for (_, lines) in &mut members {
        assert!(lines.any(|line| line.unwrap() == "ready"), "a member ended before it was ready");
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
            log.push(LoggedDecision { key: 0, cost: 1, allowed: allowed == 1, before, after });
        }
        assert!(member.wait().unwrap().success(), "a member failed");
        assert!(log.len() >= before + TASKS, "a member printed {} decisions", log.len() - before);
    }
    log
}

fn denied(log: &[LoggedDecision]) -> impl Iterator<Item = &LoggedDecision> {
    log.iter().filter(|call| !call.allowed)
}

/// Start and end instants of the admitted calls, each sorted.
struct AdmittedCalls {
    before: Vec<u64>,
    after: Vec<u64>,
}

impl AdmittedCalls {
    fn of(log: &[LoggedDecision]) -> Self {
        let admitted = log.iter().filter(|call| call.allowed);
        let (mut before, mut after): (Vec<_>, Vec<_>) =
            admitted.map(|call| (call.before, call.after)).unzip();
        before.sort_unstable();
        after.sort_unstable();
        Self { before, after }
    }

    /// Number of calls that may have been decided by `at`, inclusive.
    fn begun_by(&self, at: u64) -> u64 {
        self.before.partition_point(|before| *before <= at) as u64
    }

    /// Number of calls that have certainly been decided by `at`, inclusive.
    fn ended_by(&self, at: u64) -> u64 {
        self.after.partition_point(|after| *after <= at) as u64
    }
}

fn print_figures(limit: &str, log: &[LoggedDecision], figures: &str) {
    let first = log.iter().map(|call| call.before).min().unwrap();
    let last = log.iter().map(|call| call.after).max().unwrap();
    let admitted = log.iter().filter(|call| call.allowed).count();
    writeln!(
        stderr().lock(),
        "fleet: {PROCESSES} processes x {TASKS} tasks, {limit}: {} decisions in {} ms, admitted \
         {admitted}; {figures}",
        log.len(),
        (last - first) / 1_000
    )
    .unwrap();
}
