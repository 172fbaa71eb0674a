//! A primary is lost together with charges that no replica has: what they had admitted can be admitted once
//! more.

use std::ops::Range;
use std::time::Duration;

use tidegate::{Limiter, OnStoreFailure, Rule};
use tokio::time::sleep;

use super::Options;
use super::scene::{SECOND, is_admission};
use crate::load::{Callers, Load};
use crate::log::{Entry, Log};
use crate::proxy::{Proxy, Way};
use crate::server::{Server, pause};
use crate::stack::{Confirmed, PATIENCE, Setup, Stack};
use crate::table::Table;

/// Nothing of it comes back within a run, so every admission counts for ever.
const LIMIT: u64 = 200;
const KEYS: Range<u32> = 0..8;
const RATE: u64 = 1_000;

pub(super) async fn run(options: &Options) -> Table {
    let fence = options.span(SECOND / 2, SECOND);
    let mut table = Table::new("a primary is lost with its latest charges");
    for confirmed in [Confirmed::ByNobody, Confirmed::ByReplica] {
        table.tell("the replica hears nothing, the primary is killed", confirmed.name());
        killed(options, fence, confirmed).await.judge(&mut table, confirmed);
        table.tell("the primary is cut off, and goes on for some", confirmed.name());
        partition(options, fence, confirmed).await.judge(&mut table, confirmed);
    }
    table
}

/// What was admitted, before and after another server took over.
struct Loss {
    log: Vec<Entry>,
    /// From when the replica heard nothing until nobody asked the old primary any more.
    fenced: Range<u64>,
    /// What the replica knew of each key when it took over.
    known: Vec<u64>,
    /// What the new primary has counted for each key, in the end.
    counted: Vec<u64>,
}

impl Loss {
    fn judge(&self, table: &mut Table, confirmed: Confirmed) {
        let admitted = |so: &dyn Fn(&Entry) -> bool| {
            let counts = |key| move |e: &&Entry| e.key == key && is_admission(e);
            let of = |key| self.log.iter().filter(counts(key)).filter(|e| so(e)).count() as u64;
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
        table.tell("admitted, of the limits of all keys", format!("{sum} of {whole}"));
        // Else nobody tried to admit it once more.
        let after = admitted(&|entry| entry.begun >= self.fenced.end).iter().sum::<u64>();
        table.at_least("admitted by the new primary", after, 1);
        match confirmed {
            Confirmed::ByNobody => {
                table.at_least("acknowledged charges lost", lost, 1);
                table.tell("of which were on their way to the replica", behind);
                table.at_most(
                    "the others: the old primary took them alone",
                    lost - behind.min(lost),
                    fenced,
                );
                table.at_most("over-admitted, for what was lost", over, lost);
                let most = all.into_iter().max().unwrap_or(0);
                table.at_most("admitted, by the worst key", most, 2 * LIMIT);
            }
            Confirmed::ByReplica => {
                table.exactly("acknowledged charges lost", lost, 0);
                table.exactly("over-admitted", over, 0);
            }
        }
    }
}

/// A primary and its replica, with a network between them that can fail.
struct Pair {
    primary: Server,
    replica: Server,
    stream: Proxy,
    /// What the replica has when it is the primary.
    spare: Server,
}

impl Pair {
    fn start() -> Self {
        let (primary, replica, spare) = (Server::start(), Server::start(), Server::start());
        let stream = Proxy::to(primary.port());
        replica.cli(&["REPLICAOF", "127.0.0.1", &stream.port().to_string()]);
        while !replica.cli(&["INFO", "replication"]).contains("master_link_status:up") {
            pause();
        }
        Self { primary, replica, stream, spare }
    }

    /// The replica becomes the primary, of a replica of its own: somebody has to confirm.
    fn promote(&self) {
        self.replica.cli(&["REPLICAOF", "NO", "ONE"]);
        self.spare.replica_of(&self.replica);
    }
}

async fn killed(options: &Options, fence: Duration, confirmed: Confirmed) -> Loss {
    let mut pair = Pair::start();
    let way = Proxy::to(pair.primary.port());
    let log = Log::new();
    let client = Client::begin(&way, options, &log, 0, confirmed).await;
    sleep(SECOND / 2).await;
    // What is on its way dies with the primary. A replica that only stands still has it already: the
    // kernel took it, and it is read before anything else.
    pair.stream.set(Way::BlackHole);
    let cut = log.now();
    sleep(fence).await;
    pair.primary.kill();
    let dead = log.now();
    pair.promote();
    let known = counted(&pair.replica).await;
    way.aim(pair.replica.port());
    sleep(3 * SECOND / 2).await;
    client.end().await;
    Loss { log: log.read(), fenced: cut..dead, known, counted: counted(&pair.replica).await }
}

/// Half of the callers stay with the old primary for a while, which goes on.
async fn partition(options: &Options, fence: Duration, confirmed: Confirmed) -> Loss {
    let pair = Pair::start();
    let ways = [Proxy::to(pair.primary.port()), Proxy::to(pair.primary.port())];
    let log = Log::new();
    let minority = Client::begin(&ways[0], options, &log, 0, confirmed).await;
    let majority = Client::begin(&ways[1], options, &log, 1, confirmed).await;
    sleep(SECOND / 2).await;
    pair.stream.set(Way::BlackHole);
    let cut = log.now();
    pair.promote();
    let known = counted(&pair.replica).await;
    ways[1].aim(pair.replica.port());
    sleep(fence).await;
    // The partition heals: the old primary is one no more.
    ways[0].aim(pair.replica.port());
    let healed = log.now();
    sleep(3 * SECOND / 2).await;
    minority.end().await;
    majority.end().await;
    Loss { log: log.read(), fenced: cut..healed, known, counted: counted(&pair.replica).await }
}

/// Callers on one way.
struct Client {
    load: Load,
    /// Kept for what it does in the background.
    _stack: Stack,
}

impl Client {
    async fn begin(
        way: &Proxy,
        options: &Options,
        log: &Log,
        client: u8,
        confirmed: Confirmed,
    ) -> Self {
        let stack = Setup::on(&way.url()).confirmed(confirmed).build();
        stack.until_up().await;
        let (limiter, rate) = (limiter(&stack), options.rate(RATE));
        let seed = options.seed + u64::from(client);
        let load = Load::begin(Callers { limiter, keys: KEYS, rate, client, seed }, log);
        Self { load, _stack: stack }
    }

    async fn end(self) {
        assert_eq!(self.load.end().await, 0, "calls hang");
    }
}

/// What is admitted is admitted by Redis, or not at all.
fn limiter(stack: &Stack) -> Limiter {
    let limit = format!("fixed-window {LIMIT}/365d first-hit").parse().unwrap();
    let rule = Rule::new("few", [limit]).unwrap();
    stack.limiter([rule.on_store_failure(OnStoreFailure::Deny)])
}

/// What a server has counted for each key.
async fn counted(server: &Server) -> Vec<u64> {
    let stack = Setup::on(&server.url()).deadline(PATIENCE).build();
    let limiter = limiter(&stack);
    let mut counted = Vec::new();
    for key in KEYS {
        let inspected = limiter.inspect(&*Callers::name(key)).await.unwrap();
        counted.push(inspected[0].standing.used);
    }
    counted
}
