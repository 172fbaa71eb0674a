//! One key is asked for far more than its limit, by an open loop.
//!
//! Through all layers most of that is denied in this process, so it hardly reaches Redis; without the deny
//! cache all of it does.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::Rule;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Options;
use super::scene::{SECOND, judge};
use crate::checker::{Bound, by_source, quantile};
use crate::load::{Callers, Load};
use crate::log::{Entry, Log, Said};
use crate::server::Server;
use crate::stack::{PATIENCE, Setup, Stack};
use crate::table::Table;

const HOT: u32 = 1000;
const BOUND: Bound = Bound::Bucket { burst: 100, count: 100, period: 1_000_000 };
const ROUNDS: u32 = 5;
/// A machine that has other things to do at the same time is given another chance.
const ATTEMPTS: u32 = 4;
/// So many times the limit.
const TIMES: u64 = 50;
const OTHERS: Range<u32> = 0..200;
const OTHERS_RATE: u64 = 500;

pub(super) async fn run(options: &Options) -> Table {
    let span = options.span(SECOND, 30 * SECOND);
    let server = Server::start();
    let mut table = Table::new(&format!("one key at {TIMES} times its limit for {span:?}"));
    let stack = Setup::on(&server.url()).build();
    for attempt in 1..=ATTEMPTS {
        table.tell("attempt", attempt);
        let held = if attempt < ATTEMPTS { Held::Perhaps } else { Held::Yes };
        if attack(options, span, &server, &stack, &mut table, held).await {
            break;
        }
    }
    table.tell("without the deny cache", "");
    // Nobody is to be answered by the fallback: then it would be the deadline that is measured.
    let bare = Setup::on(&server.url()).without_deny_cache().deadline(PATIENCE).build();
    attack(options, span, &server, &bare, &mut table, Held::Told).await;
    table
}

/// Is the bound on the others one that has to be kept?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Yes,
    /// If not, it is tried again.
    Perhaps,
    Told,
}

/// True if the others are hardly slower for it.
async fn attack(
    options: &Options,
    span: Duration,
    server: &Server,
    stack: &Stack,
    table: &mut Table,
    held: Held,
) -> bool {
    stack.until_up().await;
    let limiter = stack.limiter([Rule::new("api", ["100/s".parse().unwrap()]).unwrap()]);
    let log = Log::new();
    let callers = |keys, rate, client| Callers {
        limiter: limiter.clone(),
        keys,
        rate,
        client,
        seed: options.seed,
    };
    let mut hung = 0;
    let others = Load::begin(callers(OTHERS, OTHERS_RATE, 0), &log);
    let pings = Pings::begin(server.port(), &log);
    let mut phases = [Phase::default(), Phase::default()];
    for _ in 0..ROUNDS {
        // In turns, so that a busy machine is as busy for the one as for the other.
        phases[0].add(&log, server, span / ROUNDS).await;
        let attack = Load::begin(callers(HOT..HOT + 1, options.rate(100 * TIMES), 1), &log);
        phases[1].add(&log, server, span / ROUNDS).await;
        hung += attack.end().await;
    }
    hung += others.end().await;
    let pinged = pings.end().await;

    let log = log.read();
    let calm: Vec<Entry> = log.iter().filter(|entry| entry.client == 0).copied().collect();
    let [before, attacked] = [0, 1].map(|nth| phases[nth].took(&calm, 990));
    table.tell("p99 of the other keys before", format!("{before:?}"));
    // A machine that keeps a bare client waiting keeps ours waiting.
    let bare = phases[1].took(&pinged, 990);
    let bound = 2 * before.max(bare);
    let what = "and while one is attacked";
    match held {
        Held::Yes => table.at_most(what, attacked, bound),
        Held::Perhaps if attacked <= bound => table.at_most(what, attacked, bound),
        _ => table.tell(what, format!("{attacked:?}")),
    }
    table.tell("  a bare PING meanwhile", format!("{bare:?}"));
    let holds = attacked <= bound;
    let [before, attacked] = [0, 1].map(|nth| phases[nth].took(&calm, 500));
    table.tell("p50 of the other keys", format!("{before:?}, attacked {attacked:?}"));
    let share = phases[1].busy / span.as_secs_f64();
    table.tell("redis is busy for", format!("{:.0} % of that time", share * 100.0));
    let hot: Vec<Entry> = log.iter().filter(|entry| entry.key == HOT).copied().collect();
    let shown: Vec<String> =
        by_source(&hot).iter().map(|(name, count)| format!("{name} {count}")).collect();
    table.tell("decisions about the attacked key", shown.join(", "));
    table.exactly("calls that hang", hung, 0);
    judge(&log, table, BOUND, 0);
    holds
}

/// A client with a connection of its own that only wants to know whether somebody is there.
pub(super) struct Pings {
    over: Arc<AtomicBool>,
    task: JoinHandle<Vec<Entry>>,
}

impl Pings {
    pub(super) fn begin(port: u16, log: &Log) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (ended, log) = (Arc::clone(&over), log.clone());
        let task = tokio::spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let mut entries = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let (begun, said) = (log.now(), Said::Nothing);
                stream.write_all(b"PING\r\n").await.unwrap();
                stream.read_exact(&mut [0; 7]).await.unwrap();
                let ended = log.now();
                entries.push(Entry { begun, ended, key: 0, cost: 0, client: 0, said });
                sleep(Duration::from_millis(1)).await;
            }
            entries
        });
        Self { over, task }
    }

    pub(super) async fn end(self) -> Vec<Entry> {
        self.over.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

/// Times in which things were alike.
#[derive(Default)]
struct Phase {
    times: Vec<Range<u64>>,
    busy: f64,
}

impl Phase {
    /// Waits, and counts that time to this phase.
    async fn add(&mut self, log: &Log, server: &Server, span: Duration) {
        // What was before is not over at once.
        sleep(SECOND / 20).await;
        let (begun, used) = (log.now(), busy(server));
        sleep(span).await;
        self.times.push(begun..log.now());
        self.busy += busy(server) - used;
    }

    fn took(&self, log: &[Entry], per_mille: usize) -> Duration {
        let inside = |entry: &&Entry| self.times.iter().any(|time| time.contains(&entry.begun));
        let mut took: Vec<u64> = log.iter().filter(inside).map(Entry::took).collect();
        Duration::from_micros(quantile(&mut took, per_mille))
    }
}

/// Seconds of processor time that the server has used.
fn busy(server: &Server) -> f64 {
    let info = server.cli(&["INFO", "cpu"]);
    let used = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.trim().strip_prefix(name));
        line.and_then(|seconds| seconds.parse().ok()).unwrap_or(0.0)
    };
    used("used_cpu_user:") + used("used_cpu_sys:")
}
