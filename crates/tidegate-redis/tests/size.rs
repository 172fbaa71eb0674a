//! What a decision costs the server: memory, time in the script, bytes to the replicas.
//!
//! `TIDEGATE_LONG=1` goes on to a log of 10^6 entries.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../../tidegate/tests/support/checker.rs"]
mod checker;
#[path = "support/server.rs"]
mod server;

use std::fmt::Write as _;
use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::time::Duration;

use redis::{Connection, FromRedisValue, cmd};
use tidegate::{Clock, Decision, Limit, Limited, Limiter, ManualClock, Micros, SystemClock};
use tidegate_redis::Redis;

use crate::checker::{Bound, Entry};
use crate::server::Server;

/// The longest that a script may keep everybody else waiting, in microseconds of the server's CPU:
/// by the clock on the wall, what else runs on the machine would count as well.
const LONGEST: f64 = 1_000.0;
const CALLS: u64 = 1_000;

// --- a long log ---------------------------------------------------------------------------------

const LOG: &str = "sliding-log 1000000/1h";
const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_takes_27_bytes_per_live_entry_and_never_a_millisecond() {
    let server = Server::start();
    let mut tool = Tool::new(&server);
    let log = Limiter::new(engine(&server, "log", None), limit(LOG));
    let mut live = 0;
    let mut halves = SystemClock.now();
    for wanted in sizes() {
        let timed = if wanted > CALLS { CALLS } else { 0 };
        let half = wanted / 2;
        if live < half {
            fill(&log, half - live).await;
            (live, halves) = (half, SystemClock.now());
        }
        fill(&log, wanted - timed - live).await;
        live = wanted;
        if timed > 0 {
            time_calls(&server, &mut tool, &log, wanted).await;
        }
        let bytes = tool.bytes_of("log");
        let each = bytes as f64 / live as f64;
        say(&format!("log of {live} entries: {bytes} bytes, {each:.2} per entry"));
        assert!(bytes <= 4_096 + 27 * live, "{bytes} bytes for {live} entries");
        if timed > 0 {
            let all_gone = SystemClock.now().saturating_add(HOUR.into());
            expire(&server, &mut tool, live, all_gone).await;
            expire(&server, &mut tool, live, halves.saturating_add(HOUR.into())).await;
        }
    }
}

fn sizes() -> Vec<u64> {
    let long = std::env::var("TIDEGATE_LONG").is_ok_and(|long| long == "1");
    if long { vec![1_000, 100_000, 1_000_000] } else { vec![1_000, 100_000] }
}

/// Adds entries, each at an instant of its own since a script takes longer than a microsecond.
async fn fill(log: &Limiter, count: u64) {
    const TASKS: u64 = 100;
    let task = |i: u64| {
        let log = log.clone();
        let own = count / TASKS + u64::from(i < count % TASKS);
        tokio::spawn(async move {
            for _ in 0..own {
                assert!(log.check("k").await.unwrap().allowed());
            }
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(task).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Checks, denials and peeks on a log of about `live` entries. The checks add to it.
async fn time_calls(server: &Server, tool: &mut Tool, log: &Limiter, live: u64) {
    for (what, cost) in [("check", 1), ("denial", 999_999), ("peek", 0)] {
        let mut took = Vec::new();
        tool.reset();
        for _ in 0..CALLS {
            let before = cpu_micros(server);
            let decision = log.check("k").cost(cost).await.unwrap();
            took.push(cpu_micros(server) - before);
            assert_eq!(decision.allowed(), what != "denial", "{what}");
        }
        took.sort_unstable_by(f64::total_cmp);
        let [p50, p99, max] = [took.len() / 2, took.len() * 99 / 100, took.len() - 1];
        let [p50, p99, max] = [took[p50], took[p99], took[max]];
        say(&format!(
            "{what} on a log of {live} entries: CPU of the server p50 {p50:.0} us, p99 {p99:.0}, \
             max {max:.0}; script by the clock {}",
            tool.times()
        ));
        assert!(p99 <= LONGEST, "{what}: p99 {p99} us");
    }
}

/// Copies the log, and charges the copy at an instant at which much of it has gone.
async fn expire(server: &Server, tool: &mut Tool, live: u64, at: Micros) {
    let mut took = Vec::new();
    let mut left = 0;
    for round in 0..3 {
        let name = format!("copy-{}-{round}", at.get());
        tool.copy("log", &name);
        let copy = Limiter::new(engine(server, &name, Some(ManualClock::new(at))), limit(LOG));
        // Connects, and agrees on the secret.
        copy.check("another key").await.unwrap();
        copy.reset("another key").await.unwrap();
        tool.reset();
        let before = cpu_micros(server);
        let after = copy.check("k").await.unwrap();
        took.push(((cpu_micros(server) - before).round(), tool.script_micros()));
        left = 1_000_000 - after.remaining();
        let bytes = tool.bytes_of(&name);
        assert!(bytes <= 4_096 + 27 * left, "{bytes} bytes for {left} entries");
        tool.drop_all(&name);
    }
    let gone = live + 1 - left;
    say(&format!("{gone} of {live} entries leave a log at once (CPU us, script us): {took:?}"));
    // The least: the kernel works for the server too, when it asks for memory.
    let least = took.into_iter().map(|(cpu, _)| cpu).min_by(f64::total_cmp).unwrap();
    assert!(least <= LONGEST, "{least} us to drop {gone} of {live} entries");
}

/// How long the server's main thread has run.
fn cpu_micros(server: &Server) -> f64 {
    let path = format!("/proc/{}/schedstat", server.pid());
    let stat = std::fs::read_to_string(path).expect("Linux with schedstat");
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1_000.0
}

// --- every algorithm ----------------------------------------------------------------------------

/// A month is long enough for no window to end during the test, but once a month.
const ALGORITHMS: [&str; 11] = [
    "token-bucket 10/30d",
    "token-bucket 10/30d every 3d",
    "leaky-bucket 10/30d",
    "leaky-bucket 10/30d queue",
    "fixed-window 10/30d",
    "fixed-window 10/month tz Asia/Shanghai",
    "fixed-window 10/30d first-hit",
    "sliding-log 10/30d",
    "sliding-window 10/30d",
    "sliding-window 10/30d approximate",
    "concurrency 10",
];

/// Scripts are timed in batches of which the fastest counts: others use the machine as well.
const BATCH: u64 = 50;

#[tokio::test]
async fn a_denial_replicates_nothing_and_a_key_stays_small() {
    let server = Server::start_with(&["--repl-ping-replica-period", "3600"]);
    let replica = Server::start();
    replica.replica_of(&server);
    let mut tool = Tool::new(&server);
    let mut table = String::from(
        "| limit | bytes per key | replicated per charge | per denial | us per charge | per denial |\n\
         |---|---|---|---|---|---|\n",
    );
    for (i, notation) in ALGORITHMS.into_iter().enumerate() {
        let namespace = format!("n{i}");
        let limiter = Limiter::new(engine(&server, &namespace, None), limit(notation));
        // Connects, agrees on the secret, loads the script, selects the database.
        ask(&limiter, "warm", 1).await;
        limiter.reset("warm").await.unwrap();
        tool.drop_all(&format!("{namespace}:{{"));
        let mut figures = Vec::new();
        for cost in [1, 10] {
            let before = tool.replicated();
            let mut micros = Vec::new();
            for key in 0..CALLS {
                if key % BATCH == 0 {
                    tool.reset();
                }
                let decision = ask(&limiter, &key.to_string(), cost).await;
                assert_eq!(decision.allowed(), cost == 1, "{notation}");
                if key % BATCH == BATCH - 1 {
                    micros.push(tool.times().mean);
                }
            }
            let bytes = (tool.replicated() - before) as f64 / CALLS as f64;
            figures.push((bytes, micros.into_iter().min_by(f64::total_cmp).unwrap()));
        }
        let [charge, denial] = figures[..] else { unreachable!() };
        let bytes = tool.bytes_of(&format!("{namespace}:{{")) as f64 / CALLS as f64;
        writeln!(
            table,
            "| `{notation}` | {bytes:.0} | {:.0} | {:.0} | {:.1} | {:.1} |",
            charge.0, denial.0, charge.1, denial.1
        )
        .unwrap();
        assert!(denial.0 == 0.0, "{notation}: {} bytes for a denial", denial.0);
        assert!(bytes <= 1_024.0, "{notation}: {bytes} bytes per key");
        tool.drop_all(&namespace);
    }
    say(&format!("{table}bare `return 1`: {:.1} us per EVALSHA", tool.bare_script_micros()));
}

/// Concurrency is only ever held.
async fn ask(limiter: &Limiter, key: &str, cost: u64) -> Decision {
    let rules = limiter.rules();
    if rules[0].limits()[0].limit().lease().is_none() {
        return limiter.check(key).cost(cost).await.unwrap();
    }
    match limiter.reserve(key, cost).await {
        Ok(reservation) => {
            let decision = reservation.decision().unwrap().clone();
            reservation.keep();
            decision
        }
        Err(Limited::Denied(decision)) => *decision,
        Err(error) => panic!("{error}"),
    }
}

// --- short and long -----------------------------------------------------------------------------

const SPANS: [(&str, u64); 6] = [
    ("1us", 1),
    ("7us", 7),
    ("1ms", 1_000),
    ("1s", 1_000_000),
    ("1d", 86_400_000_000),
    ("36500d", 36_500 * 86_400_000_000),
];

#[tokio::test]
async fn from_one_per_microsecond_to_one_per_century_a_charge_leaves_a_state_that_expires() {
    let server = Server::start();
    let mut tool = Tool::new(&server);
    for (span, period) in SPANS {
        let (mut decisions, mut admitted) = (0, 0);
        let bucket = Bound::Bucket { burst: 1, count: 1, period };
        let window = |limit| Bound::Window { limit, window: period };
        for (notation, bound) in [
            (format!("token-bucket 1/{span}"), bucket),
            (format!("token-bucket 1/{span} burst 1 every {span}"), window(2)),
            (format!("leaky-bucket 1/{span}"), bucket),
            (format!("leaky-bucket 1/{span} queue"), bucket),
            (format!("fixed-window 1/{span}"), window(2)),
            (format!("fixed-window 1/{span} first-hit"), window(2)),
            (format!("sliding-log 1/{span}"), window(1)),
            (format!("sliding-window 1/{span}"), window(1)),
            (format!("sliding-window 1/{span} approximate"), window(2)),
        ] {
            tool.drop_all("");
            let limiter = Limiter::new(engine(&server, "f24", None), limit(&notation));
            let mut log = vec![timed(&limiter).await];
            assert!(log[0].allowed, "{notation}");
            let expiries = tool.expiries_of("f24:{");
            assert!(!expiries.is_empty(), "{notation}: no state after a charge");
            assert!(expiries.iter().all(|millis| *millis > 0), "{notation}: {expiries:?}");
            for _ in 1..200 {
                log.push(timed(&limiter).await);
            }
            let findings = bound.check(&log);
            decisions += findings.decisions;
            admitted += findings.admitted;
            assert_eq!(findings.over, 0, "{notation}");
        }
        say(&format!(
            "1 per {span}, every algorithm: {decisions} decisions, admitted {admitted}, over 0"
        ));
    }
}

async fn timed(limiter: &Limiter) -> Entry {
    let before = SystemClock.elapsed().get();
    let allowed = limiter.check("k").await.unwrap().allowed();
    Entry { key: 0, cost: 1, allowed, before, after: SystemClock.elapsed().get() }
}

// --- tools --------------------------------------------------------------------------------------

fn limit(notation: &str) -> Limit {
    notation.parse().unwrap_or_else(|error| panic!("{notation}: {error}"))
}

/// All under one secret, so that a subject has the same name in every namespace.
fn engine(server: &Server, namespace: &str, clock: Option<ManualClock>) -> Arc<Redis> {
    let builder = Redis::builder(&server.url()).namespace(namespace).secret("size");
    // Sent together, checks of one key would be one entry of a log.
    let builder = builder.deadline(Duration::from_secs(30)).test_unbatched();
    let builder = match clock {
        Some(clock) => builder.test_clock(clock),
        None => builder,
    };
    Arc::new(builder.build().unwrap())
}

fn say(line: &str) {
    let mut err = stderr().lock();
    writeln!(err, "{line}").unwrap();
}

/// How long scripts took, in microseconds: all of them, and if the server tells how it spreads,
/// the middle one, the 99th of 100 and the longest.
struct Times {
    mean: f64,
    spread: Option<[f64; 3]>,
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mean {:.0} us", self.mean)?;
        match self.spread {
            Some([p50, p99, max]) => write!(f, ", p50 {p50:.0}, p99 {p99:.0}, max {max:.0}"),
            None => Ok(()),
        }
    }
}

/// A connection beside the engine's, to ask the server about itself.
struct Tool(Connection);

impl Tool {
    fn new(server: &Server) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        let mut tool = Self(client.get_connection().unwrap());
        // Redis 6.2 does not know it.
        let percentiles = ["SET", "latency-tracking-info-percentiles", "50 99 100"];
        let _ = cmd("CONFIG").arg(&percentiles).query::<()>(&mut tool.0);
        tool
    }

    fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        cmd(words[0]).arg(&words[1..]).query(&mut self.0).unwrap()
    }

    /// The names of all keys that begin so, but that of the secret.
    fn keys(&mut self, prefix: &str) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", &format!("{prefix}*")]);
        keys.retain(|key| !key.ends_with(":secret"));
        keys
    }

    /// Bytes of those keys: names, values and entries of the table of keys.
    fn bytes_of(&mut self, prefix: &str) -> u64 {
        let mut sum = 0;
        for key in self.keys(prefix) {
            sum += self.ask::<u64>(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]);
        }
        sum
    }

    /// Milliseconds until each of those keys expires.
    fn expiries_of(&mut self, prefix: &str) -> Vec<u64> {
        let keys = self.keys(prefix);
        let expiry = |key: String| {
            let millis: i64 = self.ask(&["PTTL", &key]);
            u64::try_from(millis).unwrap_or_else(|_| panic!("{key} has no expiry: {millis}"))
        };
        keys.into_iter().map(expiry).collect()
    }

    fn copy(&mut self, from: &str, to: &str) {
        for key in self.keys(&format!("{from}:")) {
            let name = key.replacen(from, to, 1);
            self.ask::<()>(&["COPY", &key, &name]);
        }
    }

    fn drop_all(&mut self, prefix: &str) {
        for key in self.keys(prefix) {
            self.ask::<()>(&["UNLINK", &key]);
        }
    }

    fn reset(&mut self) {
        self.ask::<()>(&["CONFIG", "RESETSTAT"]);
    }

    /// A field of `INFO`.
    fn info(&mut self, section: &str, field: &str) -> Option<String> {
        let info: String = self.ask(&["INFO", section]);
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.trim_end().to_owned())
    }

    fn replicated(&mut self) -> u64 {
        self.info("replication", "master_repl_offset").unwrap().parse().unwrap()
    }

    fn script_stat(&mut self, name: &str) -> f64 {
        let line = self.info("commandstats", "cmdstat_evalsha").expect("a script has run");
        value_of(&line, name).unwrap()
    }

    /// The microseconds of all scripts since the reset.
    fn script_micros(&mut self) -> u64 {
        self.script_stat("usec") as u64
    }

    fn times(&mut self) -> Times {
        let mean = self.script_stat("usec_per_call");
        let spread = self.info("latencystats", "latency_percentiles_usec_evalsha");
        let spread = spread.map(|line| ["p50", "p99", "p100"].map(|p| value_of(&line, p).unwrap()));
        Times { mean, spread }
    }

    fn bare_script_micros(&mut self) -> f64 {
        let digest: String = self.ask(&["SCRIPT", "LOAD", "return 1"]);
        let mut batch = || {
            self.reset();
            (0..BATCH).for_each(|_| self.ask(&["EVALSHA", &digest, "0"]));
            self.times().mean
        };
        (0..CALLS / BATCH).map(|_| batch()).min_by(f64::total_cmp).unwrap()
    }
}

/// The number behind `name=` in a list of such.
fn value_of(list: &str, name: &str) -> Option<f64> {
    list.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}
