//! Redis evicts keys to make room for others.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate::{Limiter, Rule, Source};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::options::Options;
use super::scenario::SECOND;
use crate::load::until;
use crate::stack::{Setup, TIMEOUT};
use crate::table::FigureTable;
use testkit::redis::RedisServer;
use testkit::timing::HANG;

/// Keys whose limit is used up before the flood.
const LIMITED: u64 = 500;
/// Keys checked throughout the flood.
const WATCHED: u64 = 20;
const FLOOD: u64 = 25_000;

pub(super) async fn run(options: &Options) -> FigureTable {
    let server =
        RedisServer::start_with(&["--maxmemory", "5mb", "--maxmemory-policy", "allkeys-lru"]);
    let stack = Setup::on(&server.url()).deadline(TIMEOUT).build();
    stack.until_up().await;
    let mut table = FigureTable::new("redis evicts the least recently used keys");
    until(HANG, || stack.health().warning.is_some()).await;
    let warning = stack.health().warning;
    table.claim("health warns", warning.as_deref().unwrap_or("no"), warning.is_some());

    let limiter = stack.limiter([Rule::new("once", ["1/h".parse().unwrap()]).unwrap()]);
    check_all(&limiter, "limited", LIMITED).await;
    let denied = LIMITED - check_all(&limiter, "limited", LIMITED).await.len() as u64;
    table.exactly("keys that are used up", denied, LIMITED);
    let known = Instant::now();
    // Redis evicts these keys; the deny cache keeps them for a second after the denial.
    check_all(&limiter, "watched", WATCHED).await;
    let count = options.count(FLOOD, 10 * FLOOD);
    let mut allowed = BTreeSet::new();
    let mut checked = (0, 0);
    for part in 0..10 {
        check_all(&limiter, &format!("flood {part}"), count / 10).await;
        let (again, by_cache) = check_watched(&limiter).await;
        allowed.extend(again);
        checked = (checked.0 + WATCHED, checked.1 + by_cache);
    }
    let took = known.elapsed();
    table.report("other keys", format!("{count} in {took:?}"));
    let evicted = evicted(&server);
    table.at_least("keys evicted, as redis reports", evicted, 1);
    table.report("watched: denied from the deny cache", format!("{} of {}", checked.1, checked.0));
    table.report("watched: allowed again", format!("{} of {WATCHED} keys", allowed.len()));
    // After a second the deny cache has expired, and only Redis decides.
    sleep(SECOND.saturating_sub(took)).await;
    let forgotten = check_all(&limiter, "limited", LIMITED).await.len();
    table.report(
        "used up, and allowed again a second later",
        format!("{forgotten} of {LIMITED} keys"),
    );
    remembered(&limiter, &server, &mut table).await;
    table
}

/// A key whose state is deleted right after a denial. The deny cache still denies it, unless the
/// machine needs longer for the deletion than the cache keeps it.
async fn remembered(limiter: &Limiter, server: &RedisServer, table: &mut FigureTable) {
    let (mut denied, mut stayed) = (0, Duration::ZERO);
    for attempt in 0..20 {
        let key = format!("deleted {attempt}");
        for _ in 0..2 {
            let _ = limiter.check(&key).await.unwrap();
        }
        // The same as an eviction, but at once.
        server.cli(&["FLUSHALL"]);
        let begun = Instant::now();
        loop {
            let decision = limiter.check(&key).await.unwrap();
            stayed = begun.elapsed();
            if decision.allowed() || stayed > HANG {
                break;
            }
            assert_eq!(decision.source, Source::DenyCache, "only the deny cache has the key");
            denied += 1;
            sleep(Duration::from_millis(10)).await;
        }
        if denied > 0 {
            break;
        }
    }
    table.at_least("denied again after the flush", denied, 1);
    table.goal("stays denied after the flush", stayed, 3 * SECOND);
    table.at_most("stays denied after the flush", stayed, HANG);
}

/// Checks each key once and returns the allowed ones.
async fn check_all(limiter: &Limiter, kind: &str, count: u64) -> BTreeSet<u64> {
    let mut tasks = JoinSet::new();
    let mut allowed = BTreeSet::new();
    for nth in 0..count {
        let (limiter, key) = (limiter.clone(), format!("{kind} {nth}"));
        tasks.spawn(async move { (nth, limiter.check(&key).await.unwrap().allowed()) });
        while tasks.len() > 200 {
            allowed.extend(tasks.join_next().await.map(Result::unwrap));
        }
    }
    allowed.extend(tasks.join_all().await);
    allowed.into_iter().filter(|(_, allowed)| *allowed).map(|(nth, _)| nth).collect()
}

/// The watched keys that are allowed again, and the number of denials by the cache.
async fn check_watched(limiter: &Limiter) -> (BTreeSet<u64>, u64) {
    let (mut allowed, mut by_cache) = (BTreeSet::new(), 0);
    for nth in 0..WATCHED {
        let decision = limiter.check(&format!("watched {nth}")).await.unwrap();
        by_cache += u64::from(decision.source == Source::DenyCache);
        if decision.allowed() {
            allowed.insert(nth);
        }
    }
    (allowed, by_cache)
}

fn evicted(server: &RedisServer) -> u64 {
    let info = server.cli(&["INFO", "stats"]);
    let line = info.lines().find_map(|line| line.trim().strip_prefix("evicted_keys:"));
    line.unwrap().parse().unwrap()
}
