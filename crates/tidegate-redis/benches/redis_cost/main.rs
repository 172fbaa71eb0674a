//! What a decision costs Redis, compared with scripts as they are written by hand.
//!
//! `cargo bench -p tidegate-redis` starts its own servers and prints one table. The contenders of a
//! row take turns within one run: figures of two runs on a busy machine are not comparable. The
//! reference sends one `EVALSHA` per check over a multiplexed connection of redis-rs. Redis's time
//! is processor time from `INFO cpu`, which a busy machine distorts least.
//! `cargo bench -p tidegate-redis -- zipf` runs only the rows whose title contains `zipf`.

#![expect(clippy::unwrap_used, reason = "a benchmark")]

use std::io::{Write as _, stdout};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use testkit::redis::RedisServer;
use tidegate::{DenyCache, Engine, Lease, LeaseSize, Limiter, Rule};
use tidegate_redis::{Redis, RedisBuilder};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// For each contender, in each round.
const SPAN: Duration = Duration::from_millis(300);
const ROUNDS: usize = 5;
/// A permit comes back after 10 s, so keys outlive the turns of other contenders. Never denies.
const AMPLE: &str = "360/h burst 400000000";
/// A task yields after so many checks, since some contenders never wait.
const CHECKS_PER_YIELD: usize = 32;

const GCRA: &str = include_str!("gcra.lua");
const FIXED_WINDOW: &str = include_str!("fixed_window.lua");
const SLIDING_LOG: &str = include_str!("sliding_log.lua");

type CheckFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Checks a key once.
type CheckFn = Arc<dyn Fn(Arc<str>) -> CheckFuture + Send + Sync>;

struct Contender {
    name: &'static str,
    check: CheckFn,
    /// The most Redis time and the least throughput, as multiples of the first contender's.
    goals: [Option<f64>; 2],
}

/// How keys are drawn.
#[derive(Clone, Copy)]
enum Keys {
    Uniform(usize),
    /// The k-th key has a probability proportional to 1/k.
    Zipf(usize),
}

/// One row: contenders for the same work, of which the first is the reference.
struct Row {
    title: &'static str,
    tasks: u64,
    keys: Keys,
    contenders: Vec<Contender>,
}

/// A server with its connections.
struct Bench {
    server: RedisServer,
    connection: MultiplexedConnection,
}

impl Bench {
    async fn start() -> Self {
        let server = RedisServer::start();
        let client = redis::Client::open(server.url()).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        Self { server, connection }
    }

    fn redis(&self, namespace: &str) -> RedisBuilder {
        Redis::builder(&self.server.url()).namespace(namespace).deadline(Duration::from_secs(10))
    }

    /// Each check in its own call.
    fn single(&self, namespace: &str) -> Redis {
        self.redis(namespace).test_no_batching().build().unwrap()
    }

    fn batched(&self, namespace: &str) -> Redis {
        self.redis(namespace).build().unwrap()
    }

    /// One `EVALSHA` of a script by hand for each check.
    async fn script(&self, prefix: &'static str, text: &str, args: [u64; 3]) -> Contender {
        let digest: Arc<str> = {
            let mut cmd = redis::cmd("SCRIPT");
            cmd.arg("LOAD").arg(text);
            cmd.query_async::<String>(&mut self.connection.clone()).await.unwrap().into()
        };
        let (connection, unique) = (self.connection.clone(), Arc::new(AtomicU64::new(0)));
        let check = move |key: Arc<str>| -> CheckFuture {
            let (mut connection, digest) = (connection.clone(), Arc::clone(&digest));
            let suffix = unique.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                let mut cmd = redis::cmd("EVALSHA");
                cmd.arg(&*digest).arg(1).arg(format!("{prefix}:{{{key}}}:bench"));
                // The last argument of the log makes its member unique.
                cmd.arg(args[0]).arg(args[1]).arg(if args[2] > 0 { args[2] } else { suffix });
                drop(connection.send_packed_command(&cmd).await.unwrap());
            })
        };
        Contender { name: "reference", check: Arc::new(check), goals: [None, None] }
    }

    /// A bucket as large as [`AMPLE`].
    async fn gcra(&self, prefix: &'static str) -> Contender {
        self.script(prefix, GCRA, [10_000_000, 4_000_000_000_000_000, 1]).await
    }

    async fn cpu_micros(&self) -> f64 {
        let mut cmd = redis::cmd("INFO");
        cmd.arg("cpu");
        let info: String = cmd.query_async(&mut self.connection.clone()).await.unwrap();
        let of = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|seconds| seconds.parse::<f64>().ok()).unwrap_or(0.0)
        };
        1e6 * (of("used_cpu_user:") + of("used_cpu_sys:"))
    }
}

fn checks(name: &'static str, engine: impl Engine, limits: &[&str]) -> Contender {
    let limits: Vec<tidegate::Limit> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    let rule = Rule::new("bench", limits).unwrap().lease(LeaseSize::Auto);
    let limiter = Limiter::with_rules(engine, [rule]).unwrap();
    let check = move |key: Arc<str>| -> CheckFuture {
        let limiter = limiter.clone();
        Box::pin(async move { drop(limiter.check(&*key).await.unwrap()) })
    };
    Contender { name, check: Arc::new(check), goals: [None, None] }
}

/// Each check has an id of its own, so the general script decides it.
fn with_ids(engine: impl Engine) -> Contender {
    let rule = Rule::new("bench", [AMPLE.parse().unwrap()]).unwrap();
    let limiter = Limiter::with_rules(engine, [rule]).unwrap();
    let ids = Arc::new(AtomicU64::new(0));
    let check = move |key: Arc<str>| -> CheckFuture {
        let (limiter, id) = (limiter.clone(), ids.fetch_add(1, Ordering::Relaxed));
        Box::pin(async move {
            drop(limiter.check(&*key).idempotency_key(&format!("id-{id}")).await.unwrap());
        })
    };
    Contender { name: "check with an id", check: Arc::new(check), goals: [None, None] }
}

/// Each check reserves and commits: two calls of the general script, and a read of the record.
fn reserving(name: &'static str, engine: impl Engine, min: Option<u64>) -> Contender {
    let rule = Rule::new("bench", [AMPLE.parse().unwrap()]).unwrap();
    let limiter = Limiter::with_rules(engine, [rule]).unwrap();
    let check = move |key: Arc<str>| -> CheckFuture {
        let limiter = limiter.clone();
        Box::pin(async move {
            let reserve = match min {
                Some(min) => limiter.reserve_at_most(&*key, min..=10),
                None => limiter.reserve(&*key, 10),
            };
            drop(reserve.await.unwrap().commit(3).await.unwrap());
        })
    };
    Contender { name, check: Arc::new(check), goals: [None, None] }
}

impl Contender {
    fn at_most(mut self, goal: f64) -> Self {
        self.goals[0] = Some(goal);
        self
    }

    fn at_least(mut self, goal: f64) -> Self {
        self.goals[1] = Some(goal);
        self
    }
}

/// The rows on one server.
async fn rows(bench: &Bench) -> Vec<Row> {
    use Keys::{Uniform, Zipf};
    let mut rows = Vec::new();
    let mut row = |title, tasks, keys, contenders| {
        rows.push(Row { title, tasks, keys, contenders });
    };
    // A namespace for each: another limit of the same state would be a changed limit.
    let single =
        |name, limits: &[&str]| checks(name, bench.single(&name.replace(' ', "-")), limits);
    row(
        "single, token bucket",
        64,
        Uniform(10_000),
        vec![bench.gcra("one").await, single("tidegate", &[AMPLE]).at_most(0.85)],
    );
    row(
        "single, token bucket, denied",
        64,
        Uniform(1_000),
        vec![
            bench.script("deny", GCRA, [3_600_000_000, 3_600_000_000, 1]).await,
            checks("tidegate", bench.single("deny"), &["1/h"]).at_most(1.05),
        ],
    );
    row(
        "single, other algorithms",
        64,
        Uniform(10_000),
        vec![
            bench.gcra("two").await,
            single("leaky bucket", &["leaky-bucket 360/h capacity 400000000"]).at_most(1.1),
            single("fixed window", &["fixed-window 400000000/h"]).at_most(1.1),
            single("approximate window", &["sliding-window 400000000/h approximate"]).at_most(1.1),
            single("bucket and day", &[AMPLE, "fixed-window 400000000/d"]).at_most(1.6),
        ],
    );
    row(
        "single, fixed window",
        64,
        Uniform(10_000),
        vec![
            bench.script("window", FIXED_WINDOW, [3_600_000, 400_000_000, 1]).await,
            checks("tidegate", bench.single("window"), &["fixed-window 400000000/h"]),
        ],
    );
    rows.push(parts_of_a_check(bench).await);
    let mut row = |title, tasks, keys, contenders| {
        rows.push(Row { title, tasks, keys, contenders });
    };
    // About 100 entries each, since the single calls take about 10 us of one core.
    row(
        "single, sliding log, about 100 entries",
        64,
        Uniform(200),
        vec![
            bench.script("log", SLIDING_LOG, [1_000_000, 100_000, 0]).await,
            checks("tidegate", bench.single("log"), &["sliding-log 100000/s"]).at_most(1.25),
        ],
    );
    let batched = |title, tasks, keys, redis: f64, rate: Option<f64>, leased: Option<f64>| async move {
        let ours = checks("batched", bench.batched("batched"), &[AMPLE]).at_most(redis);
        let ours = match rate {
            Some(rate) => ours.at_least(rate),
            None => ours,
        };
        let mut contenders = vec![bench.gcra("batch").await, ours];
        if let Some(rate) = leased {
            let engine = Lease::new(DenyCache::new(bench.batched("leased")));
            contenders.push(checks("leased", engine, &[AMPLE]).at_least(rate));
        }
        Row { title, tasks, keys, contenders }
    };
    let zipf = Zipf(10_000);
    rows.extend([
        batched("zipf, 10,000 keys, 64 tasks", 64, zipf, 0.6, Some(1.4), Some(1.4)).await,
        batched("zipf, 10,000 keys, 512 tasks", 512, zipf, 0.45, Some(1.5), None).await,
        batched("uniform, 10,000 keys, 64 tasks", 64, Uniform(10_000), 0.6, Some(1.3), Some(1.3))
            .await,
        batched("uniform, 400,000 keys, 64 tasks", 64, Uniform(400_000), 0.7, None, None).await,
        batched("hot key, 64 tasks", 64, Uniform(1), 0.35, Some(2.5), Some(40.0)).await,
        batched("hot key, 512 tasks", 512, Uniform(1), 0.07, Some(3.5), None).await,
        Row {
            title: "overload, hot key, 1000/s, 64 tasks",
            tasks: 64,
            keys: Uniform(1),
            contenders: vec![
                bench.script("over", GCRA, [1_000, 1_000_000, 1]).await,
                checks("batched", bench.batched("over"), &["1000/s"]),
                checks("deny cache", DenyCache::new(bench.batched("cached")), &["1000/s"])
                    .at_least(18.0),
            ],
        },
        Row {
            title: "general script",
            tasks: 64,
            keys: Uniform(10_000),
            contenders: vec![
                bench.gcra("general").await,
                with_ids(bench.single("general")).at_most(3.9),
            ],
        },
        Row {
            title: "reservations",
            tasks: 64,
            keys: Uniform(10_000),
            contenders: vec![
                bench.gcra("reserve").await,
                reserving("reserve and commit", bench.single("reserve"), None),
                reserving("reserve at most, commit", bench.single("at-most"), Some(1)),
            ],
        },
    ]);
    rows
}

/// Where the time of a check goes.
async fn parts_of_a_check(bench: &Bench) -> Row {
    const TIME: &str = "local t = redis.call('TIME') local now = t[1] * 1000000 + t[2] ";
    const GET: &str = "local v = redis.call('GET', KEYS[1]) ";
    const IN_PLACE: &str = "redis.call('SETRANGE', KEYS[1], 36, '24 bytes, as of a bucket') ";
    const SET: &str = "redis.call('SET', KEYS[1], string.rep('x', 68), 'PX', now - now + 90000) ";
    let general = tidegate_redis::checks_script(&[tidegate::Algorithm::TokenBucket]);
    let definitions = general.split("local MAX_LIMITS").next().unwrap_or_default();
    let mut contenders = vec![bench.gcra("parts").await];
    for (name, prefix, text) in [
        ("return 1", "p1", ""),
        ("TIME, GET", "p2", &format!("{TIME}{GET}")),
        ("TIME, GET, SETRANGE", "p3", &format!("{TIME}{GET}{IN_PLACE}")),
        ("TIME, GET, SET PX", "p4", &format!("{TIME}{GET}{SET}")),
        ("definitions of the general script", "p5", definitions),
    ] {
        let script = bench.script(prefix, &format!("{text} return 1"), [1, 1, 1]).await;
        contenders.push(Contender { name, ..script });
    }
    let general = |namespace| bench.redis(namespace).test_no_batching().test_no_lean_script();
    let script = general("general-script").test_no_functions().build().unwrap();
    let function = general("general-function").build().unwrap();
    contenders.push(checks("lean script", bench.single("lean"), &[AMPLE]));
    contenders.push(checks("general script", script, &[AMPLE]));
    contenders.push(checks("general script as a function", function, &[AMPLE]).at_most(3.9));
    Row { title: "parts of a check", tasks: 64, keys: Keys::Uniform(10_000), contenders }
}

/// The rows of a primary with one replica.
fn replicated_rows(bench: &Bench) -> Vec<Row> {
    let confirmed_by =
        |replicas| bench.redis("confirmed").wait_for_replicas(replicas).build().unwrap();
    let row = |title, keys| Row {
        title,
        tasks: 64,
        keys,
        contenders: vec![
            checks("reference: strict", confirmed_by(0), &[AMPLE]),
            checks("confirmed by 1", confirmed_by(1), &[AMPLE]),
        ],
    };
    vec![
        row("with a replica, hot key, 64 tasks", Keys::Uniform(1)),
        row("with a replica, zipf, 10,000 keys, 64 tasks", Keys::Zipf(10_000)),
    ]
}

#[tokio::main]
async fn main() {
    // `cargo test` runs benchmarks as well, only to see that they work.
    let measures = std::env::args().any(|argument| argument == "--bench");
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let (span, rounds) = if measures { (SPAN, ROUNDS) } else { (Duration::from_millis(5), 1) };
    print(
        "| work | contender | Redis us | of the reference | goal | checks/s | of the reference | goal |\n\
         |---|---|---|---|---|---|---|---|",
    );
    let (bench, primary, replica) =
        (Bench::start().await, Bench::start().await, RedisServer::start());
    replica.replica_of(&primary.server);
    let all = rows(&bench).await.into_iter().map(|row| (&bench, row));
    let all = all.chain(replicated_rows(&primary).into_iter().map(|row| (&primary, row)));
    for (bench, row) in all {
        if wanted.as_ref().is_none_or(|wanted| row.title.contains(wanted)) {
            row.compare(bench, span, rounds).await;
        }
    }
}

/// Redis time in us and checks per second, in each round.
type Rounds = Vec<[f64; 2]>;

impl Row {
    async fn compare(&self, bench: &Bench, span: Duration, rounds: usize) {
        let keys = DrawnKeys::new(self.keys);
        let mut measured: Vec<Rounds> = self.contenders.iter().map(|_| Vec::new()).collect();
        // The first round fills the keys.
        for round in 0..=rounds {
            for (contender, measured) in self.contenders.iter().zip(&mut measured) {
                let figures = self.run(bench, contender, &keys, span, round).await;
                if round > 0 {
                    measured.push(figures);
                }
            }
        }
        for (contender, own) in self.contenders.iter().zip(&measured) {
            let column = |index: usize| {
                let value = median(own.iter().map(|figures| figures[index]).collect());
                let ratios = || own.iter().zip(&measured[0]).map(move |(a, b)| a[index] / b[index]);
                let low = ratios().fold(f64::INFINITY, f64::min);
                let high = ratios().fold(0.0, f64::max);
                let ratio = median(ratios().collect());
                let goal = contender.goals[index].map_or(String::new(), |goal| format!("{goal}"));
                let digits = if index == 0 { 2 } else { 0 };
                format!("{value:.digits$} | {ratio:.2} ({low:.2}-{high:.2}) | {goal}")
            };
            print(&format!(
                "| {} | {} | {} | {} |",
                self.title,
                contender.name,
                column(0),
                column(1)
            ));
        }
    }

    async fn run(
        &self,
        bench: &Bench,
        contender: &Contender,
        keys: &Arc<DrawnKeys>,
        span: Duration,
        round: usize,
    ) -> [f64; 2] {
        (contender.check)(keys.draw(&mut Random(0))).await;
        let (cpu, begun) = (bench.cpu_micros().await, Instant::now());
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for task in 0..self.tasks {
            let (check, keys) = (Arc::clone(&contender.check), Arc::clone(keys));
            let (over, mut random) = (Arc::clone(&over), Random(1 + task + 1_000 * round as u64));
            tasks.spawn(async move {
                let mut count = 0_usize;
                while !over.load(Ordering::Relaxed) {
                    check(keys.draw(&mut random)).await;
                    count += 1;
                    if count.is_multiple_of(CHECKS_PER_YIELD) {
                        tokio::task::yield_now().await;
                    }
                }
                count
            });
        }
        sleep(span).await;
        over.store(true, Ordering::Relaxed);
        let count = tasks.join_all().await.into_iter().sum::<usize>().max(1) as f64;
        let elapsed = begun.elapsed().as_secs_f64();
        [(bench.cpu_micros().await - cpu) / count, count / elapsed]
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Keys, and with Zipf the sums of their weights.
struct DrawnKeys {
    keys: Vec<Arc<str>>,
    sums: Vec<f64>,
}

impl DrawnKeys {
    fn new(keys: Keys) -> Arc<Self> {
        let (count, exponent) = match keys {
            Keys::Uniform(count) => (count, 0),
            Keys::Zipf(count) => (count, 1),
        };
        let mut sum = 0.0;
        let sums = (1..=count).map(|k| {
            sum += (k as f64).powi(-exponent);
            sum
        });
        let sums = sums.collect();
        let keys = (0..count).map(|key| format!("user-{key}").into()).collect();
        Arc::new(Self { keys, sums })
    }

    fn draw(&self, random: &mut Random) -> Arc<str> {
        let Self { keys, sums } = self;
        let drawn = random.next() * sums[sums.len() - 1];
        let index = sums.partition_point(|sum| *sum < drawn).min(sums.len() - 1);
        Arc::clone(&keys[index])
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

fn print(text: &str) {
    writeln!(stdout().lock(), "{text}").unwrap();
}
