//! One key is checked far more often than its limit allows, by an open loop.
//!
//! With all layers most checks are denied in this process; without the deny cache all of them reach
//! Redis.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::{Rule, Source};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::options::Options;
use super::scenario::{SECOND, judge};
use crate::checker::{Bound, by_source, quantile};
use crate::load::{Callers, Load};
use crate::log::{CallLog, CallResult, LoggedCall};
use crate::stack::{Setup, Stack, TIMEOUT};
use crate::table::FigureTable;
use testkit::redis::RedisServer;

const HOT: u32 = 1000;
const BOUND: Bound = Bound::Bucket { burst: 100, count: 100, period: 1_000_000 };
const ROUNDS: u32 = 5;
/// Load as a multiple of the limit.
const TIMES: u64 = 50;
const OTHERS: Range<u32> = 0..200;
const OTHERS_RATE: u64 = 500;

pub(super) async fn run(options: &Options) -> FigureTable {
    let span = options.span(SECOND, 30 * SECOND);
    let server = RedisServer::start();
    let mut table = FigureTable::new(&format!("one key at {TIMES} times its limit for {span:?}"));
    let stack = Setup::on(&server.url()).build();
    attack(options, span, &server, &stack, &mut table, GoalMode::Compare).await;
    table.report("without the deny cache", "");
    // A long deadline: decisions by the fallback would measure the deadline.
    let bare = Setup::on(&server.url()).without_deny_cache().deadline(TIMEOUT).build();
    attack(options, span, &server, &bare, &mut table, GoalMode::ReportOnly).await;
    table
}

/// Whether the latency of the other keys has a goal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GoalMode {
    Compare,
    ReportOnly,
}

async fn attack(
    options: &Options,
    span: Duration,
    server: &RedisServer,
    stack: &Stack,
    table: &mut FigureTable,
    mode: GoalMode,
) {
    stack.until_up().await;
    let limiter = stack.limiter([Rule::new("api", ["100/s".parse().unwrap()]).unwrap()]);
    let log = CallLog::new();
    let callers = |keys, rate, client| Callers {
        limiter: limiter.clone(),
        keys,
        rate,
        client,
        seed: options.seed,
    };
    let mut hung = 0;
    let others = Load::start(callers(OTHERS, OTHERS_RATE, 0), &log);
    let pings = Pings::start(server.port(), &log);
    let mut phases = [Phase::default(), Phase::default()];
    for _ in 0..ROUNDS {
        // Alternate, so that a busy machine affects both phases alike.
        phases[0].add(&log, server, span / ROUNDS).await;
        let attack = Load::start(callers(HOT..HOT + 1, options.rate(100 * TIMES), 1), &log);
        phases[1].add(&log, server, span / ROUNDS).await;
        hung += attack.stop().await;
    }
    hung += others.stop().await;
    let pinged = pings.stop().await;

    let log = log.read();
    let calm: Vec<LoggedCall> = log.iter().filter(|entry| entry.client == 0).copied().collect();
    let [before, attacked] = [0, 1].map(|nth| phases[nth].took(&calm, 990));
    table.report("p99 of the other keys before", format!("{before:?}"));
    // A machine that delays a bare client delays the limiter too.
    let bare = phases[1].took(&pinged, 990);
    let what = "p99 of the other keys during the attack";
    match mode {
        GoalMode::Compare => table.goal(what, attacked, 2 * before.max(bare)),
        GoalMode::ReportOnly => table.report(what, format!("{attacked:?}")),
    }
    table.report("  a bare PING during the attack", format!("{bare:?}"));
    let [before, attacked] = [0, 1].map(|nth| phases[nth].took(&calm, 500));
    table.report("p50 of the other keys", format!("{before:?}, attacked {attacked:?}"));
    let share = phases[1].busy / span.as_secs_f64();
    table.report("redis is busy for", format!("{:.0} % of that time", share * 100.0));
    let hot: Vec<LoggedCall> = log.iter().filter(|entry| entry.key == HOT).copied().collect();
    let shown: Vec<String> =
        by_source(&hot).iter().map(|(name, count)| format!("{name} {count}")).collect();
    table.report("decisions about the attacked key", shown.join(", "));
    let by_cache = hot.iter().filter(|entry| entry.is_from(Source::DenyCache)).count() as u64;
    match mode {
        GoalMode::Compare => table.at_least("of these without the store", by_cache, 1),
        GoalMode::ReportOnly => table.exactly("of these without the store", by_cache, 0),
    }
    table.exactly("calls that hang", hung, 0);
    judge(&log, table, BOUND, 0);
}

/// A client that sends PING on its own connection.
pub(super) struct Pings {
    stopped: Arc<AtomicBool>,
    task: JoinHandle<Vec<LoggedCall>>,
}

impl Pings {
    pub(super) fn start(port: u16, log: &CallLog) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let (stop, log) = (Arc::clone(&stopped), log.clone());
        let task = tokio::spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let mut entries = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let (begun, result) = (log.now(), CallResult::NotCharged);
                stream.write_all(b"PING\r\n").await.unwrap();
                stream.read_exact(&mut [0; 7]).await.unwrap();
                let ended = log.now();
                entries.push(LoggedCall { begun, ended, key: 0, cost: 0, client: 0, result });
                sleep(Duration::from_millis(1)).await;
            }
            entries
        });
        Self { stopped, task }
    }

    pub(super) async fn stop(self) -> Vec<LoggedCall> {
        self.stopped.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

/// Intervals with the same load.
#[derive(Default)]
struct Phase {
    times: Vec<Range<u64>>,
    busy: f64,
}

impl Phase {
    /// Waits, and adds the time to this phase.
    async fn add(&mut self, log: &CallLog, server: &RedisServer, span: Duration) {
        // Calls of the previous phase are still in flight.
        sleep(SECOND / 20).await;
        let (begun, used) = (log.now(), busy(server));
        sleep(span).await;
        self.times.push(begun..log.now());
        self.busy += busy(server) - used;
    }

    fn took(&self, log: &[LoggedCall], per_mille: usize) -> Duration {
        let inside =
            |entry: &&LoggedCall| self.times.iter().any(|time| time.contains(&entry.begun));
        let mut took: Vec<u64> = log.iter().filter(inside).map(LoggedCall::took).collect();
        Duration::from_micros(quantile(&mut took, per_mille))
    }
}

/// CPU time of the server in seconds.
fn busy(server: &RedisServer) -> f64 {
    let info = server.cli(&["INFO", "cpu"]);
    let used = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.trim().strip_prefix(name));
        line.and_then(|seconds| seconds.parse().ok()).unwrap_or(0.0)
    };
    used("used_cpu_user:") + used("used_cpu_sys:")
}
