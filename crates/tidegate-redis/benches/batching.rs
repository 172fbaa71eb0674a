//! The ways to ask less of Redis (batches, leases, a cache of denials), and to have replicas confirm it, beside
//! checks sent one by one, and beside commands that decide nothing.
//!
//! `cargo bench -p tidegate-redis` starts servers of its own and prints one table. All that is compared is
//! measured in turns within one run: figures of two runs on a busy machine say nothing about each other.

#![expect(clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/support/server.rs"]
mod server;

use std::fmt::Write as _;
use std::io::{Write as _, stdout};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use server::Server;
use tidegate::{DenyCache, Engine, Lease, LeaseSize, Limiter, Rule};
use tidegate_redis::{Redis, RedisBuilder};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// For each contender, in each round.
const SPAN: Duration = Duration::from_millis(400);
const ROUNDS: usize = 5;
const KEYS: usize = 100_000;
/// More than anybody can ask for.
const AMPLE: &str = "1000000000/s";
/// How often a task lets others run that never has to wait.
const TURN: usize = 32;

type Asking = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Asks once about a key.
type Ask = Arc<dyn Fn(Arc<str>) -> Asking + Send + Sync>;

/// What is measured.
struct Contender {
    name: &'static str,
    ask: Ask,
}

/// Adding one here is all it takes; the first is what the others are compared with.
async fn contenders(server: &Server) -> Vec<Contender> {
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

/// Those who differ where nine of ten are denied.
fn overloaded(server: &Server, limit: &str) -> Vec<Contender> {
    let batched = || build(Redis::builder(&server.url()).namespace("batched"));
    let cached = DenyCache::new(build(Redis::builder(&server.url()).namespace("cached")));
    vec![
        checks("one EVALSHA per check", build(one_by_one(server, "one")), limit, false),
        checks("batched", batched(), limit, false),
        checks("with a deny cache", cached, limit, false),
    ]
}

/// What a replica's word costs.
fn replicated(server: &Server) -> Vec<Contender> {
    let confirmed_by = |replicas| {
        build(Redis::builder(&server.url()).namespace("confirmed").confirmed_by(replicas))
    };
    vec![
        checks("batched", confirmed_by(0), AMPLE, true),
        checks("confirmed by 1", confirmed_by(1), AMPLE, true),
    ]
}

fn one_by_one(server: &Server, namespace: &str) -> RedisBuilder {
    Redis::builder(&server.url()).namespace(namespace).test_unbatched()
}

fn build(builder: RedisBuilder) -> Redis {
    builder.deadline(Duration::from_secs(10)).build().unwrap()
}

fn checks(name: &'static str, engine: impl Engine, limit: &str, all_pass: bool) -> Contender {
    let rule = Rule::new("bench", [limit.parse().unwrap()]).unwrap().lease(LeaseSize::Auto);
    let limiter = Limiter::with_rules(engine, [rule]).unwrap();
    let ask = move |key: Arc<str>| -> Asking {
        let limiter = limiter.clone();
        Box::pin(async move {
            let decision = limiter.check(&*key).await.unwrap();
            assert!(decision.allowed() || !all_pass);
        })
    };
    Contender { name, ask: Arc::new(ask) }
}

fn bare(
    name: &'static str,
    connection: &MultiplexedConnection,
    cmd: impl Fn(Arc<str>) -> redis::Cmd + Send + Sync + 'static,
) -> Contender {
    let connection = connection.clone();
    let ask = move |key: Arc<str>| -> Asking {
        let (mut connection, cmd) = (connection.clone(), cmd(key));
        Box::pin(async move { drop(connection.send_packed_command(&cmd).await.unwrap()) })
    };
    Contender { name, ask: Arc::new(ask) }
}

#[tokio::main]
async fn main() {
    // `cargo test` runs benchmarks, too, and wants to know whether they run, not how fast.
    let measures = std::env::args().any(|argument| argument == "--bench");
    let (span, rounds) = if measures { (SPAN, ROUNDS) } else { (Duration::from_millis(20), 1) };
    let server = Server::start();
    server.cli(&["SCRIPT", "LOAD", "return 1"]);
    let all = contenders(&server).await;
    let keys: Arc<[Arc<str>]> = (0..KEYS).map(|key| format!("user-{key}").into()).collect();
    let (primary, replica) = (Server::start(), Server::start());
    let traffic_at = |server, tasks, distinct| {
        let zipf = Zipf::new(distinct);
        Traffic { tasks, keys: Arc::clone(&keys), zipf, server, span, rounds }
    };
    let traffic = |tasks, distinct| traffic_at(&server, tasks, distinct);
    let mut one_by_one = 0.0;
    for (what, distinct) in [("one hot key", 1), ("100,000 keys, zipf(1.0)", KEYS)] {
        for tasks in [1, 64, 512] {
            let title = format!("{what}, {tasks} tasks");
            let rate = traffic(tasks, distinct).compare(&title, &all).await;
            if (distinct, tasks) == (1, 64) {
                one_by_one = rate;
            }
        }
    }
    // A tenth of what Redis can be asked one by one.
    let limit = format!("{}/s", (one_by_one / 10.0).max(1.0) as u64);
    for tasks in [64, 512] {
        let title = format!("one hot key, limit {limit}, {tasks} tasks");
        traffic(tasks, 1).compare(&title, &overloaded(&server, &limit)).await;
    }
    replica.replica_of(&primary);
    let both = replicated(&primary);
    for (what, distinct) in [("one hot key", 1), ("100,000 keys, zipf(1.0)", KEYS)] {
        for tasks in [1, 64, 512] {
            let title = format!("a primary and its replica, {what}, {tasks} tasks");
            traffic_at(&primary, tasks, distinct).compare(&title, &both).await;
        }
    }
}

struct Traffic<'a> {
    tasks: u64,
    keys: Arc<[Arc<str>]>,
    zipf: Arc<Zipf>,
    server: &'a Server,
    span: Duration,
    rounds: usize,
}

impl Traffic<'_> {
    /// Prints how they compare, and returns the decisions per second of the first.
    async fn compare(&self, title: &str, contenders: &[Contender]) -> f64 {
        let mut totals: Vec<Total> = contenders.iter().map(|_| Total::default()).collect();
        for _ in 0..self.rounds {
            for (contender, total) in contenders.iter().zip(&mut totals) {
                self.run(contender, total).await;
            }
        }
        say(&table(title, contenders, &mut totals));
        totals[0].rate()
    }

    async fn run(&self, contender: &Contender, total: &mut Total) {
        let Self { server, span, .. } = *self;
        (contender.ask)(Arc::clone(&self.keys[0])).await;
        server.cli(&["CONFIG", "RESETSTAT"]);
        let (cpu, begun) = (cpu_micros(server), Instant::now());
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for task in 0..self.tasks {
            let (ask, keys, zipf) = (contender.ask.clone(), self.keys.clone(), self.zipf.clone());
            let over = Arc::clone(&over);
            tasks.spawn(async move {
                let mut random = Random(task + 1);
                let mut took = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let key = Arc::clone(&keys[zipf.draw(&mut random)]);
                    let begun = Instant::now();
                    ask(key).await;
                    took.push(begun.elapsed());
                    if took.len() % TURN == 0 {
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
        let place = (self.took.len() * per_mille / 1_000).min(self.took.len() - 1);
        self.took[place].as_secs_f64() * 1e6
    }
}

fn table(title: &str, contenders: &[Contender], totals: &mut [Total]) -> String {
    let mut table = format!(
        "\n{title}\n{:24}{:>10}{:>8}{:>9}{:>7}{:>9}{:>9}{:>13}{:>10}\n",
        "", "per s", "ratio", "p50 us", "ratio", "p99", "p99.9", "redis calls", "redis us"
    );
    totals.iter_mut().for_each(|total| total.took.sort_unstable());
    let (rate, p50) = (totals[0].rate(), totals[0].quantile(500));
    for (contender, total) in contenders.iter().zip(totals) {
        let each = total.took.len() as f64;
        writeln!(
            table,
            "{:24}{:>10.0}{:>8.2}{:>9.0}{:>7.2}{:>9.0}{:>9.0}{:>13.3}{:>10.1}",
            contender.name,
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

/// Of `n` keys, the k-th is drawn with a probability of 1/k, all in all 1.
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

/// What the server has used of its processor.
fn cpu_micros(server: &Server) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", server.pid()));
    let stat = stat.unwrap_or_default();
    stat.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(0.0) / 1e3
}

/// How many commands clients have sent since the last reset, those of tools aside.
fn calls(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let of = |name: &str| {
        let rest = stats.split_once(&format!("cmdstat_{name}:calls=")).map_or("0", |(_, r)| r);
        rest.split(',').next().and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0)
    };
    of("evalsha") + of("eval") + of("incr")
}

fn say(text: &str) {
    writeln!(stdout().lock(), "{text}").unwrap();
}
