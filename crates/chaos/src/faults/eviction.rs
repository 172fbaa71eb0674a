//! Redis forgets keys to make room for others.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate::{Limiter, Rule, Source};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Options;
use super::scene::SECOND;
use crate::server::Server;
use crate::stack::{PATIENCE, Setup};
use crate::table::Table;

/// Each is used up before the others come.
const LIMITED: u64 = 500;
/// Asked about all the time.
const WATCHED: u64 = 20;
const FLOOD: u64 = 25_000;

pub(super) async fn run(options: &Options) -> Table {
    let server = Server::start_with(&["--maxmemory", "5mb", "--maxmemory-policy", "allkeys-lru"]);
    let stack = Setup::on(&server.url()).deadline(PATIENCE).build();
    stack.until_up().await;
    let mut table = Table::new("redis makes room by forgetting the least recently used");
    let warning = stack.health().warning;
    table.so("health warns", warning.as_deref().unwrap_or("no"), warning.is_some());

    let limiter = stack.limiter([Rule::new("once", ["1/h".parse().unwrap()]).unwrap()]);
    ask_all(&limiter, "limited", LIMITED).await;
    let denied = LIMITED - ask_all(&limiter, "limited", LIMITED).await.len() as u64;
    table.exactly("keys that are used up", denied, LIMITED);
    let known = Instant::now();
    // Redis forgets it, and this process does not until a second after the denial.
    ask_all(&limiter, "watched", WATCHED).await;
    let count = options.count(FLOOD, 10 * FLOOD);
    let mut passed = BTreeSet::new();
    let mut asked = (0, 0);
    for part in 0..10 {
        ask_all(&limiter, &format!("flood {part}"), count / 10).await;
        let (again, by_cache) = ask_watched(&limiter).await;
        passed.extend(again);
        asked = (asked.0 + WATCHED, asked.1 + by_cache);
    }
    let took = known.elapsed();
    table.tell("other keys that came", format!("{count} in {took:?}"));
    let evicted = evicted(&server);
    table.at_least("keys that redis forgot, as it says", evicted, 1);
    table.tell("watched: denied from the deny cache", format!("{} of {}", asked.1, asked.0));
    table.tell("watched: passed again", format!("{} of {WATCHED} keys", passed.len()));
    // The truth: what is remembered here is remembered for a second, and Redis has nothing to add.
    sleep(SECOND.saturating_sub(took)).await;
    let forgotten = ask_all(&limiter, "limited", LIMITED).await.len();
    table.tell("used up, and pass again a second later", format!("{forgotten} of {LIMITED} keys"));
    remembered(&limiter, &server, &mut table).await;
    table
}

/// A key whose state is taken away just after it was denied.
async fn remembered(limiter: &Limiter, server: &Server, table: &mut Table) {
    for _ in 0..2 {
        let _ = limiter.check("taken away").await.unwrap();
    }
    // As good as evicted, and at once.
    server.cli(&["FLUSHALL"]);
    let (begun, mut denied) = (Instant::now(), 0);
    while begun.elapsed() < 3 * SECOND {
        let decision = limiter.check("taken away").await.unwrap();
        if decision.allowed() {
            break;
        }
        assert_eq!(decision.source, Source::DenyCache, "nobody else knows of it");
        denied += 1;
        sleep(Duration::from_millis(10)).await;
    }
    let stayed = begun.elapsed();
    table.at_least("denied again after redis forgot", denied, 1);
    table.tell("stays limited after redis forgot", format!("{stayed:?}"));
}

/// Asks about each once. Those that passed.
async fn ask_all(limiter: &Limiter, kind: &str, count: u64) -> BTreeSet<u64> {
    let mut tasks = JoinSet::new();
    let mut passed = BTreeSet::new();
    for nth in 0..count {
        let (limiter, key) = (limiter.clone(), format!("{kind} {nth}"));
        tasks.spawn(async move { (nth, limiter.check(&key).await.unwrap().allowed()) });
        while tasks.len() > 200 {
            passed.extend(tasks.join_next().await.map(Result::unwrap));
        }
    }
    passed.extend(tasks.join_all().await);
    passed.into_iter().filter(|(_, passed)| *passed).map(|(nth, _)| nth).collect()
}

/// Those that passed again, and how many were denied from the cache.
async fn ask_watched(limiter: &Limiter) -> (BTreeSet<u64>, u64) {
    let (mut passed, mut by_cache) = (BTreeSet::new(), 0);
    for nth in 0..WATCHED {
        let decision = limiter.check(&format!("watched {nth}")).await.unwrap();
        by_cache += u64::from(decision.source == Source::DenyCache);
        if decision.allowed() {
            passed.insert(nth);
        }
    }
    (passed, by_cache)
}

fn evicted(server: &Server) -> u64 {
    let info = server.cli(&["INFO", "stats"]);
    let line = info.lines().find_map(|line| line.trim().strip_prefix("evicted_keys:"));
    line.unwrap().parse().unwrap()
}
