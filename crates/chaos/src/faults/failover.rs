//! Primaries are killed and replicas promoted, by Sentinel and in a Cluster.
//!
//! Two clients run at the same time, one with the breaker and one without: the difference is the
//! cost of the breaker's probing.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::options::Options;
use super::scenario::{BOUND, SECOND, first_by_store, judge, late, report_transitions, rule};
use crate::checker::quantile;
use crate::load::{Callers, Load, Timers};
use crate::log::{CallLog, LoggedCall};
use crate::stack::{Setup, Stack};
use crate::table::FigureTable;
use testkit::cluster::{RedisCluster, command};
use testkit::load::hash_tag;
use testkit::redis::wait_poll_interval;
use testkit::sentinel::SentinelSetup;
use testkit::timing::HANG;

const MAX_RECOVERY: Duration = Duration::from_millis(250);
/// Each key is checked every 10 ms, which adds little to the measured time.
const KEYS: std::ops::Range<u32> = 0..16;
const RATE: u64 = 1_600;

pub(super) async fn run(options: &Options) -> FigureTable {
    let times = options.count(2, 50);
    let mut table = FigureTable::new(&format!("{times} primaries killed"));
    table.report("behind sentinels", "");
    sentinels(options, times, &mut table).await;
    table.report("in a cluster", "");
    cluster(options, times, &mut table).await;
    table
}

async fn sentinels(options: &Options, times: u64, table: &mut FigureTable) {
    let mut setup = SentinelSetup::start();
    let clients = Clients::start(&setup.url(), options).await;
    let mut waits = Waits::default();
    for _ in 0..times {
        sleep(SECOND / 2).await;
        let dead = setup.primary_index();
        let others = (0..3).filter(|other| *other != dead);
        let ports: Vec<u16> = others.map(|other| setup.servers[other].port()).collect();
        setup.servers[dead].kill();
        let writable = until_writable(&ports, "chaos:probe");
        waits.add(&clients.log, writable, KEYS).await;
        table
            .report("writable again", format!("at {:.3} s", clients.log.at(writable) as f64 / 1e6));
        setup.revive(dead);
        setup.settle();
    }
    clients.stop(table, waits, times).await;
}

async fn cluster(options: &Options, times: u64, table: &mut FigureTable) {
    let mut cluster = RedisCluster::start();
    let clients = Clients::start(&cluster.url(), options).await;
    let mut waits = Waits::default();
    for _ in 0..times {
        sleep(SECOND / 2).await;
        // The primary of the first key, and all keys on it.
        let slot = |key: u32| cluster.slot_of(&format!("{{{}}}", hash_tag(&Callers::name(key))));
        let dead = cluster.primary_of(slot(KEYS.start));
        let keys: Vec<u32> = KEYS.filter(|key| cluster.primary_of(slot(*key)) == dead).collect();
        let probe = format!("{{{}}}:probe", hash_tag(&Callers::name(KEYS.start)));
        let replicas = cluster.replicas_of(dead);
        let ports: Vec<u16> = replicas.iter().map(|nth| cluster.nodes[*nth].port()).collect();
        cluster.kill(dead);
        let writable = until_writable(&ports, &probe);
        waits.add(&clients.log, writable, keys).await;
        table
            .report("writable again", format!("at {:.3} s", clients.log.at(writable) as f64 / 1e6));
        cluster.restart(dead);
        cluster.until_settled();
    }
    clients.stop(table, waits, times).await;
}

/// A client with the breaker and one without, in this order.
struct Clients {
    log: CallLog,
    loads: [Load; 2],
    bare: CallLog,
    timers: Timers,
    stacks: [Stack; 2],
}

impl Clients {
    async fn start(url: &str, options: &Options) -> Self {
        let log = CallLog::new();
        let stacks = [Setup::on(url).build(), Setup::on(url).without_breaker().build()];
        for stack in &stacks {
            stack.until_up().await;
        }
        let load = |client: u8| {
            let limiter = stacks[usize::from(client)].limiter([rule()]);
            let (rate, seed) = (options.rate(RATE), options.seed + u64::from(client));
            Load::start(Callers { limiter, keys: KEYS, rate, client, seed }, &log)
        };
        let (loads, bare) = ([load(0), load(1)], log.sibling());
        Self { loads, timers: Timers::start(&bare), bare, log, stacks }
    }

    async fn stop(self, table: &mut FigureTable, mut waits: Waits, times: u64) {
        let mut hung = 0;
        for load in self.loads {
            hung += load.stop().await;
        }
        self.timers.stop().await;
        let late = late(&self.bare.read(), 990);
        report_transitions(table, &self.stacks[0], &self.log);
        table.exactly("calls that hang", hung, 0);
        table.exactly("keys not decided by redis again", waits.stuck, 0);
        let names = ["with the breaker", "without"];
        for (name, waits) in names.into_iter().zip(&mut waits.waits) {
            let [p50, p99, max] =
                [500, 990, 1000].map(|at| Duration::from_micros(quantile(waits, at)));
            let what = format!("first decision by redis, p99, {name}");
            // The delay of bare timers is the machine's.
            table.goal(&what, p99.saturating_sub(late), MAX_RECOVERY);
            table.report("  p50, as measured p99, longest", format!("{p50:?}, {p99:?}, {max:?}"));
            table.at_least("  samples", waits.len() as u64, 1);
        }
        for (client, name) in (0..).zip(names) {
            table.report("decisions", name);
            let log: Vec<LoggedCall> =
                self.log.read().into_iter().filter(|entry| entry.client == client).collect();
            judge(&log, table, BOUND, times);
        }
    }
}

/// Time from the first write to the new primary until its first decision, per key and client.
#[derive(Default)]
struct Waits {
    waits: [Vec<u64>; 2],
    stuck: u64,
}

impl Waits {
    /// Waits until every key has a decision by the store, for each client.
    async fn add(&mut self, log: &CallLog, writable: Instant, keys: impl IntoIterator<Item = u32>) {
        let since = log.at(writable);
        let mut left: Vec<(u32, u8)> =
            keys.into_iter().flat_map(|key| [(key, 0), (key, 1)]).collect();
        let begun = Instant::now();
        while !left.is_empty() && begun.elapsed() < HANG {
            sleep(SECOND / 4).await;
            let seen = log.read();
            left.retain(|(key, client)| {
                let matches = |entry: &&LoggedCall| entry.key == *key && entry.client == *client;
                let calls: Vec<LoggedCall> = seen.iter().filter(matches).copied().collect();
                let first = first_by_store(&calls, since);
                self.waits[usize::from(*client)].extend(first.map(|first| first - since));
                first.is_none()
            });
        }
        self.stuck += left.len() as u64;
    }
}

/// Time at which one of these servers accepts a write.
fn until_writable(ports: &[u16], key: &str) -> Instant {
    let begun = Instant::now();
    while begun.elapsed() < HANG {
        if ports.iter().any(|port| command(*port, &["SET", key, "1", "EX", "60"]).is_ok()) {
            return Instant::now();
        }
        wait_poll_interval();
    }
    panic!("no replica is promoted");
}
