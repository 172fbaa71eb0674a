//! A primary is lost with charges that no replica has: the same permits can be admitted again.

use std::ops::Range;
use std::time::Duration;

use tidegate::{Limiter, OnStoreFailure, Rule};
use tokio::time::sleep;

use super::options::Options;
use super::scenario::{SECOND, is_admission};
use crate::load::{Callers, Load};
use crate::log::{CallLog, LoggedCall};
use crate::proxy::{Proxy, ProxyMode};
use crate::stack::{Confirmed, Setup, Stack, TIMEOUT};
use crate::table::FigureTable;
use testkit::redis::{RedisServer, wait_poll_interval};

/// The window is longer than a run, so that every admission counts until its end.
const LIMIT: u64 = 200;
const KEYS: Range<u32> = 0..8;
const RATE: u64 = 1_000;

pub(super) async fn run(options: &Options) -> FigureTable {
    let fence = options.span(SECOND / 2, SECOND);
    let mut table = FigureTable::new("a primary is lost with its latest charges");
    for confirmed in [Confirmed::Immediately, Confirmed::ByReplica] {
        table.report("the replica receives nothing, the primary is killed", confirmed.name());
        killed(options, fence, confirmed).await.judge(&mut table, confirmed);
        table.report("the primary is partitioned, and still serves some clients", confirmed.name());
        partition(options, fence, confirmed).await.judge(&mut table, confirmed);
    }
    table
}

/// Admissions before and after the promotion.
struct LossReport {
    log: Vec<LoggedCall>,
    /// From the partition until no client uses the old primary.
    fenced: Range<u64>,
    /// Count of each key on the replica when it was promoted.
    known: Vec<u64>,
    /// Count of each key on the new primary at the end.
    counted: Vec<u64>,
}

impl LossReport {
    fn judge(&self, table: &mut FigureTable, confirmed: Confirmed) {
        let admitted = |condition: &dyn Fn(&LoggedCall) -> bool| {
            let counts = |key| move |e: &&LoggedCall| e.key == key && is_admission(e);
            let of =
                |key| self.log.iter().filter(counts(key)).filter(|e| condition(e)).count() as u64;
            KEYS.map(of).collect::<Vec<u64>>()
        };
        let all = admitted(&|_| true);
        let fenced = admitted(&|e| e.ended >= self.fenced.start && e.begun < self.fenced.end);
        let before = admitted(&|entry| entry.ended < self.fenced.start);
        let behind = before.iter().zip(&self.known).map(|(all, known)| all.saturating_sub(*known));
        let (fenced, behind): (u64, u64) = (fenced.iter().sum(), behind.sum());
        let over: u64 = all.iter().map(|admitted| admitted.saturating_sub(LIMIT)).sum();
        let lost = all.iter().zip(&self.counted).map(|(all, counted)| all.saturating_sub(*counted));
        let lost: u64 = lost.sum();
        let (sum, whole) = (all.iter().sum::<u64>(), u64::from(KEYS.end) * LIMIT);
        table.report("admitted, of the limits of all keys", format!("{sum} of {whole}"));
        // Otherwise no client tried to use the permits again.
        let after = admitted(&|entry| entry.begun >= self.fenced.end).iter().sum::<u64>();
        table.at_least("admitted by the new primary", after, 1);
        match confirmed {
            Confirmed::Immediately => {
                table.at_least("acknowledged charges lost", lost, 1);
                table.report("of which were in flight to the replica", behind);
                table.at_most(
                    "the others: made only on the old primary",
                    lost - behind.min(lost),
                    fenced,
                );
                table.at_most("over-admitted because of lost charges", over, lost);
                let max = all.into_iter().max().unwrap_or(0);
                table.at_most("admitted, by the worst key", max, 2 * LIMIT);
            }
            Confirmed::ByReplica => {
                table.exactly("acknowledged charges lost", lost, 0);
                table.exactly("over-admitted", over, 0);
            }
        }
    }
}

/// A primary and its replica, connected through a proxy.
struct ReplicatedPair {
    primary: RedisServer,
    replica: RedisServer,
    stream: Proxy,
    /// Replica of the promoted replica.
    spare: RedisServer,
}

impl ReplicatedPair {
    fn start() -> Self {
        let (primary, replica, spare) =
            (RedisServer::start(), RedisServer::start(), RedisServer::start());
        let stream = Proxy::to(primary.port());
        replica.cli(&["REPLICAOF", "127.0.0.1", &stream.port().to_string()]);
        while !replica.cli(&["INFO", "replication"]).contains("master_link_status:up") {
            wait_poll_interval();
        }
        Self { primary, replica, stream, spare }
    }

    /// Promotes the replica and gives it the spare as replica, which confirms charges.
    fn promote(&self) {
        self.replica.cli(&["REPLICAOF", "NO", "ONE"]);
        self.spare.replica_of(&self.replica);
    }
}

async fn killed(options: &Options, fence: Duration, confirmed: Confirmed) -> LossReport {
    let mut pair = ReplicatedPair::start();
    let proxy = Proxy::to(pair.primary.port());
    let log = CallLog::new();
    let client = LoadClient::start(&proxy, options, &log, 0, confirmed).await;
    sleep(SECOND / 2).await;
    // Writes in flight are lost with the primary. A suspended replica would not do: its kernel has
    // received the writes, and it applies them first.
    pair.stream.set(ProxyMode::BlackHole);
    let cut = log.now();
    sleep(fence).await;
    if confirmed == Confirmed::Immediately {
        client.until_store_decides(cut).await;
    }
    pair.primary.kill();
    let dead = log.now();
    pair.promote();
    let known = counted(&pair.replica).await;
    proxy.aim(pair.replica.port());
    client.until_store_decides(log.now()).await;
    sleep(3 * SECOND / 2).await;
    client.stop().await;
    LossReport { log: log.read(), fenced: cut..dead, known, counted: counted(&pair.replica).await }
}

/// Half of the clients use the old primary for a while, which still serves them.
async fn partition(options: &Options, fence: Duration, confirmed: Confirmed) -> LossReport {
    let pair = ReplicatedPair::start();
    let proxies = [Proxy::to(pair.primary.port()), Proxy::to(pair.primary.port())];
    let log = CallLog::new();
    let minority = LoadClient::start(&proxies[0], options, &log, 0, confirmed).await;
    let majority = LoadClient::start(&proxies[1], options, &log, 1, confirmed).await;
    sleep(SECOND / 2).await;
    pair.stream.set(ProxyMode::BlackHole);
    let cut = log.now();
    pair.promote();
    let known = counted(&pair.replica).await;
    proxies[1].aim(pair.replica.port());
    sleep(fence).await;
    if confirmed == Confirmed::Immediately {
        minority.until_store_decides(cut).await;
    }
    // The partition heals: all clients use the new primary.
    proxies[0].aim(pair.replica.port());
    let healed = log.now();
    for client in [&minority, &majority] {
        client.until_store_decides(healed).await;
    }
    sleep(3 * SECOND / 2).await;
    minority.stop().await;
    majority.stop().await;
    LossReport {
        log: log.read(),
        fenced: cut..healed,
        known,
        counted: counted(&pair.replica).await,
    }
}

/// Load through one proxy.
struct LoadClient {
    load: Load,
    /// Its background tasks must stay alive.
    _stack: Stack,
}

impl LoadClient {
    async fn start(
        proxy: &Proxy,
        options: &Options,
        log: &CallLog,
        client: u8,
        confirmed: Confirmed,
    ) -> Self {
        let stack = Setup::on(&proxy.url()).confirmed(confirmed).build();
        stack.until_up().await;
        let (limiter, rate) = (limiter(&stack), options.rate(RATE));
        let seed = options.seed + u64::from(client);
        let load = Load::start(Callers { limiter, keys: KEYS, rate, client, seed }, log);
        Self { load, _stack: stack }
    }

    /// Waits until the store decides a call that started after this time of the log.
    async fn until_store_decides(&self, since: u64) {
        self.load.until_store_decides(since).await;
    }

    async fn stop(self) {
        assert_eq!(self.load.stop().await, 0, "calls hang");
    }
}

/// Denies while the store is unavailable, so that only Redis admits.
fn limiter(stack: &Stack) -> Limiter {
    let limit = format!("fixed-window {LIMIT}/365d first-hit").parse().unwrap();
    let rule = Rule::new("few", [limit]).unwrap();
    stack.limiter([rule.on_store_failure(OnStoreFailure::Deny)])
}

/// Permits used of each key on this server.
async fn counted(server: &RedisServer) -> Vec<u64> {
    let stack = Setup::on(&server.url()).deadline(TIMEOUT).build();
    let limiter = limiter(&stack);
    let mut counted = Vec::new();
    for key in KEYS {
        let inspected = limiter.inspect(&*Callers::name(key)).await.unwrap();
        counted.push(inspected[0].standing.used);
    }
    counted
}
