//! Cost of a decision for the server: memory, time of the script, bytes sent to replicas.
//!
//! `TIDEGATE_LONG=1` also measures a log of 10^6 entries.

use std::fmt::Write as _;
use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::time::Duration;

use redis::{Connection, FromRedisValue, cmd};
use tidegate::{Clock, Decision, Limit, Limited, Limiter, ManualClock, Micros, SystemClock};
use tidegate_redis::Redis;

use testkit::bounds::{IntervalBound, LoggedDecision};
use testkit::redis::RedisServer;
use testkit::timing::compare_with_goal;

/// Upper bound of a script, which blocks all other clients, in microseconds of the server's CPU.
/// Wall clock time would include other processes of the machine.
const MAX_SCRIPT_MICROS: f64 = 1_000.0;
const CALLS: u64 = 1_000;

// --- long log ----------------------------------------------------------------------------------

const LOG: &str = "sliding-log 1000000/1h";
const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_takes_27_bytes_per_live_entry_and_never_a_millisecond() {
    let server = RedisServer::start();
    let mut stats = StatsConnection::new(&server);
    let log = Limiter::new(engine(&server, "log", None), limit(LOG));
    let mut live = 0;
    let mut half_at = SystemClock.now();
    for wanted in sizes() {
        let timed = if wanted > CALLS { CALLS } else { 0 };
        let half = wanted / 2;
        if live < half {
            fill(&log, half - live).await;
            (live, half_at) = (half, SystemClock.now());
        }
        fill(&log, wanted - timed - live).await;
        live = wanted;
        if timed > 0 {
            time_calls(&server, &mut stats, &log, wanted).await;
        }
        let bytes = stats.bytes_of("log");
        let each = bytes as f64 / live as f64;
        print_line(&format!("log of {live} entries: {bytes} bytes, {each:.2} per entry"));
        assert!(bytes <= 4_096 + 27 * live, "{bytes} bytes for {live} entries");
        if timed > 0 {
            let all_expired = SystemClock.now().saturating_add(HOUR.into());
            expire(&server, &mut stats, live, all_expired).await;
            expire(&server, &mut stats, live, half_at.saturating_add(HOUR.into())).await;
        }
    }
}

fn sizes() -> Vec<u64> {
    let long = std::env::var("TIDEGATE_LONG").is_ok_and(|long| long == "1");
    if long { vec![1_000, 100_000, 1_000_000] } else { vec![1_000, 100_000] }
}

/// Adds entries, each at a separate instant, as a script takes longer than a microsecond.
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
async fn time_calls(server: &RedisServer, stats: &mut StatsConnection, log: &Limiter, live: u64) {
    for (what, cost) in [("check", 1), ("denial", 999_999), ("peek", 0)] {
        let mut took = Vec::new();
        stats.reset();
        for _ in 0..CALLS {
            let before = cpu_micros(server);
            let decision = log.check("k").cost(cost).await.unwrap();
            took.push(cpu_micros(server) - before);
            assert_eq!(decision.allowed(), what != "denial", "{what}");
        }
        took.sort_unstable_by(f64::total_cmp);
        let [p50, p99, max] = [took.len() / 2, took.len() * 99 / 100, took.len() - 1];
        let [p50, p99, max] = [took[p50], took[p99], took[max]];
        print_line(&format!(
            "{what} on a log of {live} entries: CPU of the server p50 {p50:.0} us, p99 {p99:.0}, \
             max {max:.0}; wall clock time of the script {}",
            stats.times()
        ));
        assert!(p50 <= MAX_SCRIPT_MICROS, "{what}: p50 {p50} us");
    }
}

/// Copies the log, and charges the copy at an instant at which many entries have expired.
async fn expire(server: &RedisServer, stats: &mut StatsConnection, live: u64, at: Micros) {
    let mut took = Vec::new();
    let mut left = 0;
    for round in 0..3 {
        let name = format!("copy-{}-{round}", at.get());
        stats.copy("log", &name);
        let copy = Limiter::new(engine(server, &name, Some(ManualClock::new(at))), limit(LOG));
        // Connects and loads the secret.
        copy.check("another key").await.unwrap();
        copy.reset("another key").await.unwrap();
        stats.reset();
        let before = cpu_micros(server);
        let after = copy.check("k").await.unwrap();
        took.push(((cpu_micros(server) - before).round(), stats.script_micros()));
        left = 1_000_000 - after.remaining();
        let bytes = stats.bytes_of(&name);
        assert!(bytes <= 4_096 + 27 * left, "{bytes} bytes for {left} entries");
        stats.drop_all(&name);
    }
    let expired = live + 1 - left;
    print_line(&format!(
        "{expired} of {live} entries of a log expire at once (CPU us, script us): {took:?}"
    ));
    // The minimum counts: page allocation by the kernel is part of the server's CPU time.
    let least = took.into_iter().map(|(cpu, _)| cpu).min_by(f64::total_cmp).unwrap();
    let goal = Duration::from_micros(MAX_SCRIPT_MICROS as u64);
    let took = Duration::from_micros(least as u64);
    compare_with_goal(format_args!("to drop {expired} of {live} entries"), took, goal);
    assert!(took <= 10 * goal, "{took:?} to drop {expired} of {live} entries");
}

/// CPU time of the server's main thread.
fn cpu_micros(server: &RedisServer) -> f64 {
    let path = format!("/proc/{}/schedstat", server.pid());
    let stat = std::fs::read_to_string(path).expect("Linux with schedstat");
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1_000.0
}

// --- every algorithm ---------------------------------------------------------------------------

/// With windows of a month, no window ends during the test, except once a month.
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

/// Scripts are timed in batches, and the fastest batch counts, as other processes share the CPU.
const BATCH: u64 = 50;

#[tokio::test]
async fn a_denial_replicates_nothing_and_a_key_stays_small() {
    let server = RedisServer::start_with(&["--repl-ping-replica-period", "3600"]);
    let replica = RedisServer::start();
    replica.replica_of(&server);
    let mut stats = StatsConnection::new(&server);
    let mut table = String::from(
        "| limit | bytes per key | replicated per charge | per denial | us per charge | per denial |\n\
         |---|---|---|---|---|---|\n",
    );
    for (i, notation) in ALGORITHMS.into_iter().enumerate() {
        let namespace = format!("n{i}");
        let limiter = Limiter::new(engine(&server, &namespace, None), limit(notation));
        // Connects, loads the secret and the script, and selects the database.
        decide(&limiter, "warm", 1).await;
        limiter.reset("warm").await.unwrap();
        stats.drop_all(&format!("{namespace}:{{"));
        let mut figures = Vec::new();
        for cost in [1, 10] {
            let before = stats.replicated();
            let mut micros = Vec::new();
            for key in 0..CALLS {
                if key % BATCH == 0 {
                    stats.reset();
                }
                let decision = decide(&limiter, &key.to_string(), cost).await;
                assert_eq!(decision.allowed(), cost == 1, "{notation}");
                if key % BATCH == BATCH - 1 {
                    micros.push(stats.times().mean);
                }
            }
            let bytes = (stats.replicated() - before) as f64 / CALLS as f64;
            figures.push((bytes, micros.into_iter().min_by(f64::total_cmp).unwrap()));
        }
        let [charge, denial] = figures[..] else { unreachable!() };
        let bytes = stats.bytes_of(&format!("{namespace}:{{")) as f64 / CALLS as f64;
        writeln!(
            table,
            "| `{notation}` | {bytes:.0} | {:.0} | {:.0} | {:.1} | {:.1} |",
            charge.0, denial.0, charge.1, denial.1
        )
        .unwrap();
        assert!(denial.0 == 0.0, "{notation}: {} bytes for a denial", denial.0);
        assert!(bytes <= 1_024.0, "{notation}: {bytes} bytes per key");
        stats.drop_all(&namespace);
    }
    print_line(&format!(
        "{table}bare `return 1`: {:.1} us per EVALSHA",
        stats.bare_script_micros()
    ));
}

/// A `concurrency` limit can only be reserved.
async fn decide(limiter: &Limiter, key: &str, cost: u64) -> Decision {
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

// --- short and long spans ----------------------------------------------------------------------

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
    let server = RedisServer::start();
    let mut stats = StatsConnection::new(&server);
    for (span, period) in SPANS {
        let (mut decisions, mut admitted) = (0, 0);
        let bucket = IntervalBound::Bucket { burst: 1, count: 1, period };
        let window = |limit| IntervalBound::Window { limit, window: period };
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
            stats.drop_all("");
            let limiter = Limiter::new(engine(&server, "f24", None), limit(&notation));
            let mut log = vec![timed(&limiter).await];
            assert!(log[0].allowed, "{notation}");
            let expiries = stats.expiries_of("f24:{");
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
        print_line(&format!(
            "1 per {span}, every algorithm: {decisions} decisions, admitted {admitted}, over 0"
        ));
    }
}

async fn timed(limiter: &Limiter) -> LoggedDecision {
    let before = SystemClock.elapsed().get();
    let allowed = limiter.check("k").await.unwrap().allowed();
    LoggedDecision { key: 0, cost: 1, allowed, before, after: SystemClock.elapsed().get() }
}

// --- helpers -----------------------------------------------------------------------------------

fn limit(notation: &str) -> Limit {
    notation.parse().unwrap_or_else(|error| panic!("{notation}: {error}"))
}

/// One secret for all, so that a subject has the same name in every namespace.
fn engine(server: &RedisServer, namespace: &str, clock: Option<ManualClock>) -> Arc<Redis> {
    let builder = Redis::builder(&server.url()).namespace(namespace).secret("size");
    // Batched checks of one key would be one entry of a log.
    // The time and the replication of scripts are compared with those of a bare one.
    let builder = builder.deadline(Duration::from_secs(30)).test_no_batching().test_no_functions();
    let builder = match clock {
        Some(clock) => builder.test_clock(clock),
        None => builder,
    };
    Arc::new(builder.build().unwrap())
}

fn print_line(line: &str) {
    let mut err = stderr().lock();
    writeln!(err, "{line}").unwrap();
}

/// Durations of scripts in microseconds: the mean, and p50, p99 and the maximum if the server
/// reports them.
struct ScriptTimes {
    mean: f64,
    spread: Option<[f64; 3]>,
}

impl std::fmt::Display for ScriptTimes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mean {:.0} us", self.mean)?;
        match self.spread {
            Some([p50, p99, max]) => write!(f, ", p50 {p50:.0}, p99 {p99:.0}, max {max:.0}"),
            None => Ok(()),
        }
    }
}

/// A connection for measurements, separate from those of the engine.
struct StatsConnection(Connection);

impl StatsConnection {
    fn new(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        let mut stats = Self(client.get_connection().unwrap());
        // Fails on Redis 6.2, which does not have this setting.
        let percentiles = ["SET", "latency-tracking-info-percentiles", "50 99 100"];
        let _ = cmd("CONFIG").arg(&percentiles).query::<()>(&mut stats.0);
        stats
    }

    fn command<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        cmd(words[0]).arg(&words[1..]).query(&mut self.0).unwrap()
    }

    /// All keys with this prefix, except that of the secret.
    fn keys(&mut self, prefix: &str) -> Vec<String> {
        let mut keys: Vec<String> = self.command(&["KEYS", &format!("{prefix}*")]);
        keys.retain(|key| !key.ends_with(":secret"));
        keys
    }

    /// Bytes of those keys: names, values and entries of the key table.
    fn bytes_of(&mut self, prefix: &str) -> u64 {
        let mut sum = 0;
        for key in self.keys(prefix) {
            sum += self.command::<u64>(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]);
        }
        sum
    }

    /// Milliseconds until each of those keys expires.
    fn expiries_of(&mut self, prefix: &str) -> Vec<u64> {
        let keys = self.keys(prefix);
        let expiry = |key: String| {
            let millis: i64 = self.command(&["PTTL", &key]);
            u64::try_from(millis).unwrap_or_else(|_| panic!("{key} has no expiry: {millis}"))
        };
        keys.into_iter().map(expiry).collect()
    }

    fn copy(&mut self, from: &str, to: &str) {
        for key in self.keys(&format!("{from}:")) {
            let name = key.replacen(from, to, 1);
            self.command::<()>(&["COPY", &key, &name]);
        }
    }

    fn drop_all(&mut self, prefix: &str) {
        for key in self.keys(prefix) {
            self.command::<()>(&["UNLINK", &key]);
        }
    }

    fn reset(&mut self) {
        self.command::<()>(&["CONFIG", "RESETSTAT"]);
    }

    /// A field of `INFO`.
    fn info(&mut self, section: &str, field: &str) -> Option<String> {
        let info: String = self.command(&["INFO", section]);
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

    /// Microseconds of all scripts since the reset.
    fn script_micros(&mut self) -> u64 {
        self.script_stat("usec") as u64
    }

    fn times(&mut self) -> ScriptTimes {
        let mean = self.script_stat("usec_per_call");
        let spread = self.info("latencystats", "latency_percentiles_usec_evalsha");
        let spread = spread.map(|line| ["p50", "p99", "p100"].map(|p| value_of(&line, p).unwrap()));
        ScriptTimes { mean, spread }
    }

    fn bare_script_micros(&mut self) -> f64 {
        let digest: String = self.command(&["SCRIPT", "LOAD", "return 1"]);
        let mut batch = || {
            self.reset();
            (0..BATCH).for_each(|_| self.command(&["EVALSHA", &digest, "0"]));
            self.times().mean
        };
        (0..CALLS / BATCH).map(|_| batch()).min_by(f64::total_cmp).unwrap()
    }
}

/// The value of `name=` in a comma-separated list.
fn value_of(list: &str, name: &str) -> Option<f64> {
    list.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}
