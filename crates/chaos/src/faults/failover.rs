//! Primaries are killed and others take their place, by sentinels and in a Cluster.
//!
//! Two clients ask at the same time, one with the breaker and one without: what the probing of the
//! breaker costs is the difference.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Options;
use super::scene::{BOUND, SECOND, first_by_store, judge, late, rule, tell_turns};
use crate::checker::quantile;
use crate::cluster::{Cluster, ask};
use crate::load::{Callers, Load, Timers};
use crate::log::{Entry, Log};
use crate::sentinel::Watched;
use crate::server::pause;
use crate::stack::{Setup, Stack};
use crate::table::Table;
use crate::traffic::tag;

const PROMISED: Duration = Duration::from_millis(250);
/// For another one to take the place of a primary.
const PATIENCE: Duration = Duration::from_secs(60);
/// Each is asked about so often that this adds little to what is measured.
const KEYS: std::ops::Range<u32> = 0..16;
const RATE: u64 = 1_600;

pub(super) async fn run(options: &Options) -> Table {
    let times = options.count(2, 50);
    let mut table = Table::new(&format!("{times} primaries killed"));
    table.tell("behind sentinels", "");
    sentinels(options, times, &mut table).await;
    table.tell("in a cluster", "");
    cluster(options, times, &mut table).await;
    table
}

async fn sentinels(options: &Options, times: u64, table: &mut Table) {
    let mut watched = Watched::start();
    let clients = Clients::begin(&watched.url(), options).await;
    let mut waits = Waits::default();
    for _ in 0..times {
        sleep(SECOND / 2).await;
        let dead = watched.primary_index();
        let others = (0..3).filter(|other| *other != dead);
        let ports: Vec<u16> = others.map(|other| watched.servers[other].port()).collect();
        watched.servers[dead].kill();
        let writable = until_writable(&ports, "chaos:probe");
        sleep(3 * SECOND / 4).await;
        waits.add(&clients.log, writable, KEYS);
        table.tell("writable again", format!("at {:.3} s", clients.log.at(writable) as f64 / 1e6));
        watched.revive(dead);
        watched.settle();
    }
    clients.end(table, waits, times).await;
}

async fn cluster(options: &Options, times: u64, table: &mut Table) {
    let mut cluster = Cluster::start();
    let clients = Clients::begin(&cluster.url(), options).await;
    let mut waits = Waits::default();
    for _ in 0..times {
        sleep(SECOND / 2).await;
        // The one that has the first key, and all the others that it has.
        let slot = |key: u32| cluster.slot_of(&format!("{{{}}}", tag(&Callers::name(key))));
        let dead = cluster.primary_of(slot(KEYS.start));
        let keys: Vec<u32> = KEYS.filter(|key| cluster.primary_of(slot(*key)) == dead).collect();
        let probe = format!("{{{}}}:probe", tag(&Callers::name(KEYS.start)));
        let replicas = cluster.replicas_of(dead);
        let ports: Vec<u16> = replicas.iter().map(|nth| cluster.nodes[*nth].port()).collect();
        cluster.kill(dead);
        let writable = until_writable(&ports, &probe);
        sleep(3 * SECOND / 4).await;
        waits.add(&clients.log, writable, keys);
        table.tell("writable again", format!("at {:.3} s", clients.log.at(writable) as f64 / 1e6));
        cluster.restart(dead);
        cluster.until_settled();
    }
    clients.end(table, waits, times).await;
}

/// One with the breaker and one without, in this order.
struct Clients {
    log: Log,
    loads: [Load; 2],
    bare: Log,
    timers: Timers,
    stacks: [Stack; 2],
}

impl Clients {
    async fn begin(url: &str, options: &Options) -> Self {
        let log = Log::new();
        let stacks = [Setup::on(url).build(), Setup::on(url).without_breaker().build()];
        for stack in &stacks {
            stack.until_up().await;
        }
        let load = |client: u8| {
            let limiter = stacks[usize::from(client)].limiter([rule()]);
            let (rate, seed) = (options.rate(RATE), options.seed + u64::from(client));
            Load::begin(Callers { limiter, keys: KEYS, rate, client, seed }, &log)
        };
        let (loads, bare) = ([load(0), load(1)], log.beside());
        Self { loads, timers: Timers::begin(&bare), bare, log, stacks }
    }

    async fn end(self, table: &mut Table, mut waits: Waits, times: u64) {
        let mut hung = 0;
        for load in self.loads {
            hung += load.end().await;
        }
        self.timers.end().await;
        let late = late(&self.bare.read(), 990);
        tell_turns(table, &self.stacks[0], &self.log);
        table.exactly("calls that hang", hung, 0);
        table.exactly("keys that stay without redis", waits.stuck, 0);
        let names = ["with the breaker", "without"];
        for (name, waits) in names.into_iter().zip(&mut waits.waits) {
            let [p50, p99, max] =
                [500, 990, 1000].map(|at| Duration::from_micros(quantile(waits, at)));
            let what = format!("first decision by redis, p99, {name}");
            // What bare timers were late is the machine's.
            table.at_most(&what, p99.saturating_sub(late), PROMISED);
            table.tell("  p50, as measured p99, longest", format!("{p50:?}, {p99:?}, {max:?}"));
            table.at_least("  of so many", waits.len() as u64, 1);
        }
        for (client, name) in (0..).zip(names) {
            table.tell("what was decided", name);
            let log: Vec<Entry> =
                self.log.read().into_iter().filter(|entry| entry.client == client).collect();
            judge(&log, table, BOUND, times);
        }
    }
}

/// From when a primary could be written to until the first decision that it made, key by key, for both
/// clients.
#[derive(Default)]
struct Waits {
    waits: [Vec<u64>; 2],
    stuck: u64,
}

impl Waits {
    fn add(&mut self, log: &Log, writable: Instant, keys: impl IntoIterator<Item = u32>) {
        let since = log.at(writable);
        let seen = log.read();
        for key in keys {
            for (client, waits) in (0..).zip(&mut self.waits) {
                let ours = |entry: &&Entry| entry.key == key && entry.client == client;
                let ours: Vec<Entry> = seen.iter().filter(ours).copied().collect();
                match first_by_store(&ours, since) {
                    Some(first) => waits.push(first - since),
                    None => self.stuck += 1,
                }
            }
        }
    }
}

/// When one of these took a write.
fn until_writable(ports: &[u16], key: &str) -> Instant {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if ports.iter().any(|port| ask(*port, &["SET", key, "1", "EX", "60"]).is_ok()) {
            return Instant::now();
        }
        pause();
    }
    panic!("no other server takes the place of the primary");
}
