//! Compares batches, leases, the deny cache and confirmation by replicas with checks sent one by
//! one and with commands that decide nothing.
//!
//! `cargo bench -p tidegate-redis` starts its own servers and prints one table. All candidates are
//! measured in turns within one run: figures of two runs on a busy machine are not comparable.

#![expect(clippy::unwrap_used, reason = "a benchmark")]

use std::fmt::Write as _;
use std::io::{Write as _, stdout};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use testkit::redis::RedisServer;
use tidegate::{DenyCache, Engine, Lease, LeaseSize, Limiter, Rule};
use tidegate_redis::{Redis, RedisBuilder};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// For each candidate, in each round.
const SPAN: Duration = Duration::from_millis(400);
const ROUNDS: usize = 5;
const KEYS: usize = 100_000;
/// Never denies.
const AMPLE: &str = "1000000000/s";
/// A task yields after so many checks, since some candidates never wait.
const CHECKS_PER_YIELD: usize = 32;

type CheckFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Checks a key once.
type CheckFn = Arc<dyn Fn(Arc<str>) -> CheckFuture + Send + Sync>;

/// What is measured.
struct Candidate {
    name: &'static str,
    check: CheckFn,
}

/// The first one is the baseline of the ratios.
async fn candidates(server: &RedisServer) -> Vec<Candidate> {
    let leased =
        Lease::new(DenyCache::new(build(Redis::builder(&server.url()).namespace("leased"))));
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    vec![
        checks("one EVALSHA per check", build(one_by_one(server, "one")), AMPLE, true),
        checks("batched", build(Redis::builder(&server.url()).namespace("batched")), AMPLE, true),
        checks("leased", leased, AMPLE, true),
        bare("EVALSHA \"return 1\"", &connection, |_| {
            let mut cmd = redis::cmd("EVALSHA");
            cmd.arg(RETURN_1).arg(0);
            cmd
        }),
        bare("INCR", &connection, |key| {
            let mut cmd = redis::cmd("INCR");
            cmd.arg(&*key);
            cmd
        }),
    ]
}

/// The digest of `return 1`.
const RETURN_1: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// The candidates that differ when nine of ten checks are denied.
fn overloaded(server: &RedisServer, limit: &str) -> Vec<Candidate> {
    let batched = || build(Redis::builder(&server.url()).namespace("batched"));
    let cached = DenyCache::new(build(Redis::builder(&server.url()).namespace("cached")));
    vec![
        checks("one EVALSHA per check", build(one_by_one(server, "one")), limit, false),
        checks("batched", batched(), limit, false),
        checks("with a deny cache", cached, limit, false),
    ]
}

/// The cost of confirmation by a replica.
fn replicated(server: &RedisServer) -> Vec<Candidate> {
    let confirmed_by = |replicas| {
        build(Redis::builder(&server.url()).namespace("confirmed").wait_for_replicas(replicas))
    };
    vec![
        checks("batched", confirmed_by(0), AMPLE, true),
        checks("confirmed by 1", confirmed_by(1), AMPLE, true),
    ]
}

fn one_by_one(server: &RedisServer, namespace: &str) -> RedisBuilder {
    Redis::builder(&server.url()).namespace(namespace).test_no_batching()
}

fn build(builder: RedisBuilder) -> Redis {
    builder.deadline(Duration::from_secs(10)).build().unwrap()
}

fn checks(name: &'static str, engine: impl Engine, limit: &str, all_pass: bool) -> Candidate {
    let rule = Rule::new("bench", [limit.parse().unwrap()]).unwrap().lease(LeaseSize::Auto);
    let limiter = Limiter::with_rules(engine, [rule]).unwrap();
    let check = move |key: Arc<str>| -> CheckFuture {
        let limiter = limiter.clone();
        Box::pin(async move {
            let decision = limiter.check(&*key).await.unwrap();
            assert!(decision.allowed() || !all_pass);
        })
    };
    Candidate { name, check: Arc::new(check) }
}

fn bare(
    name: &'static str,
    connection: &MultiplexedConnection,
    cmd: impl Fn(Arc<str>) -> redis::Cmd + Send + Sync + 'static,
) -> Candidate {
    let connection = connection.clone();
    let check = move |key: Arc<str>| -> CheckFuture {
        let (mut connection, cmd) = (connection.clone(), cmd(key));
        Box::pin(async move { drop(connection.send_packed_command(&cmd).await.unwrap()) })
    };
    Candidate { name, check: Arc::new(check) }
}

#[tokio::main]
async fn main() {
    // `cargo test` runs benchmarks as well, only to see that they work.
    let measures = std::env::args().any(|argument| argument == "--bench");
    let (span, rounds) = if measures { (SPAN, ROUNDS) } else { (Duration::from_millis(20), 1) };
    let server = RedisServer::start();
    server.cli(&["SCRIPT", "LOAD", "return 1"]);
    let all = candidates(&server).await;
    let keys: Arc<[Arc<str>]> = (0..KEYS).map(|key| format!("user-{key}").into()).collect();
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    let traffic_at = |server, tasks, distinct| {
        let zipf = Zipf::new(distinct);
        Traffic { tasks, keys: Arc::clone(&keys), zipf, server, span, rounds }
    };
    let traffic = |tasks, distinct| traffic_at(&server, tasks, distinct);
    let mut one_by_one = 0.0;
    for (traffic_name, distinct) in [("one hot key", 1), ("100,000 keys, zipf(1.0)", KEYS)] {
        for tasks in [1, 64, 512] {
            let title = format!("{traffic_name}, {tasks} tasks");
            let rate = traffic(tasks, distinct).compare(&title, &all).await;
            if (distinct, tasks) == (1, 64) {
                one_by_one = rate;
            }
        }
    }
    // A tenth of the rate of checks sent one by one.
    let limit = format!("{}/s", (one_by_one / 10.0).max(1.0) as u64);
    for tasks in [64, 512] {
        let title = format!("one hot key, limit {limit}, {tasks} tasks");
        traffic(tasks, 1).compare(&title, &overloaded(&server, &limit)).await;
    }
    replica.replica_of(&primary);
    let both = replicated(&primary);
    for (traffic_name, distinct) in [("one hot key", 1), ("100,000 keys, zipf(1.0)", KEYS)] {
        for tasks in [1, 64, 512] {
            let title = format!("a primary and its replica, {traffic_name}, {tasks} tasks");
            traffic_at(&primary, tasks, distinct).compare(&title, &both).await;
        }
    }
}

struct Traffic<'a> {
    tasks: u64,
    keys: Arc<[Arc<str>]>,
    zipf: Arc<Zipf>,
    server: &'a RedisServer,
    span: Duration,
    rounds: usize,
}

impl Traffic<'_> {
    /// Prints the comparison, and returns the decisions per second of the first candidate.
    async fn compare(&self, title: &str, candidates: &[Candidate]) -> f64 {
        let mut totals: Vec<Total> = candidates.iter().map(|_| Total::default()).collect();
        for _ in 0..self.rounds {
            for (candidate, total) in candidates.iter().zip(&mut totals) {
                self.run(candidate, total).await;
            }
        }
        print(&table(title, candidates, &mut totals));
        totals[0].rate()
    }

    async fn run(&self, candidate: &Candidate, total: &mut Total) {
        let Self { server, span, .. } = *self;
        (candidate.check)(Arc::clone(&self.keys[0])).await;
        server.cli(&["CONFIG", "RESETSTAT"]);
        let (cpu, begun) = (cpu_micros(server), Instant::now());
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for task in 0..self.tasks {
            let (check, keys, zipf) =
                (candidate.check.clone(), self.keys.clone(), self.zipf.clone());
            let over = Arc::clone(&over);
            tasks.spawn(async move {
                let mut random = Random(task + 1);
                let mut took = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let key = Arc::clone(&keys[zipf.draw(&mut random)]);
                    let begun = Instant::now();
                    check(key).await;
                    took.push(begun.elapsed());
                    if took.len() % CHECKS_PER_YIELD == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                took
            });
        }
        sleep(span).await;
        over.store(true, Ordering::Relaxed);
        let took = tasks.join_all().await.concat();
        total.rates.push(took.len() as f64 / begun.elapsed().as_secs_f64());
        total.cpu += cpu_micros(server) - cpu;
        total.calls += calls(server);
        total.took.extend(took);
    }
}

#[derive(Default)]
struct Total {
    /// Decisions per second, in each round.
    rates: Vec<f64>,
    took: Vec<Duration>,
    cpu: f64,
    calls: u64,
}

impl Total {
    /// The median of the rounds.
    fn rate(&mut self) -> f64 {
        self.rates.sort_unstable_by(f64::total_cmp);
        self.rates[self.rates.len() / 2]
    }

    fn quantile(&self, per_mille: usize) -> f64 {
        let index = (self.took.len() * per_mille / 1_000).min(self.took.len() - 1);
        self.took[index].as_secs_f64() * 1e6
    }
}

fn table(title: &str, candidates: &[Candidate], totals: &mut [Total]) -> String {
    let mut table = format!(
        "\n{title}\n{:24}{:>10}{:>8}{:>9}{:>7}{:>9}{:>9}{:>13}{:>10}\n",
        "", "per s", "ratio", "p50 us", "ratio", "p99", "p99.9", "redis calls", "redis us"
    );
    totals.iter_mut().for_each(|total| total.took.sort_unstable());
    let (rate, p50) = (totals[0].rate(), totals[0].quantile(500));
    for (candidate, total) in candidates.iter().zip(totals) {
        let each = total.took.len() as f64;
        writeln!(
            table,
            "{:24}{:>10.0}{:>8.2}{:>9.0}{:>7.2}{:>9.0}{:>9.0}{:>13.3}{:>10.1}",
            candidate.name,
            total.rate(),
            total.rate() / rate,
            total.quantile(500),
            total.quantile(500) / p50,
            total.quantile(990),
            total.quantile(999),
            total.calls as f64 / each,
            total.cpu / each,
        )
        .unwrap();
    }
    table
}

/// Of `n` keys, the k-th is drawn with a probability proportional to 1/k.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(n: usize) -> Arc<Self> {
        let mut sum = 0.0;
        let sums = (1..=n).map(|k| {
            sum += 1.0 / k as f64;
            sum
        });
        Arc::new(Self(sums.collect()))
    }

    fn draw(&self, random: &mut Random) -> usize {
        let Self(sums) = self;
        let drawn = random.next() * sums[sums.len() - 1];
        sums.partition_point(|sum| *sum < drawn).min(sums.len() - 1)
    }
}

/// Numbers from 0 to 1, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// CPU time of the server.
fn cpu_micros(server: &RedisServer) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", server.pid()));
    let stat = stat.unwrap_or_default();
    stat.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(0.0) / 1e3
}

/// The number of commands since the last reset, without those of redis-cli.
fn calls(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let of = |name: &str| {
        let rest = stats.split_once(&format!("cmdstat_{name}:calls=")).map_or("0", |(_, r)| r);
        rest.split(',').next().and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0)
    };
    of("evalsha") + of("eval") + of("incr")
}

fn print(text: &str) {
    writeln!(stdout().lock(), "{text}").unwrap();
}
