//! Replies are lost after the charge was made. A retry with the same idempotency key is charged
//! once.

use tidegate::{Limiter, Rule};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::options::Options;
use crate::log::CallResult;
use crate::proxy::{Proxy, ProxyMode};
use crate::stack::{DEADLINE, Setup, TIMEOUT};
use crate::table::FigureTable;
use testkit::redis::RedisServer;
use testkit::timing::HANG;

const LIMIT: &str = "fixed-window 1000000/365d first-hit";

pub(super) async fn run(options: &Options) -> FigureTable {
    let count = options.count(500, 20_000);
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // With all layers the fallback decides, and reports the cause.
    let covered = Setup::on(&proxy.url()).build();
    // Without the fallback a caller sees the error and can retry.
    let exposed = Setup::on(&proxy.url()).without_fallback().without_breaker();
    let exposed = exposed.deadline(3 * DEADLINE).build();
    // For the retries.
    let patient = Setup::on(&proxy.url()).without_fallback().without_breaker();
    let patient = patient.deadline(HANG).build();
    for stack in [&covered, &exposed, &patient] {
        stack.until_up().await;
    }
    let rule = || Rule::new("api", [LIMIT.parse().unwrap()]).unwrap();
    let (covered_limiter, limiter) = (covered.limiter([rule()]), exposed.limiter([rule()]));
    let patient_limiter = patient.limiter([rule()]);
    covered_limiter.check("first").await.unwrap();

    proxy.set(ProxyMode::DropReplies);
    let mut calls = JoinSet::new();
    for nth in 0..20 {
        let limiter = covered_limiter.clone();
        calls.spawn(async move { CallResult::of(&limiter.check(&format!("covered {nth}")).await) });
    }
    let by_fallback = calls.join_all().await;
    let decided = by_fallback.iter().filter(|result| result.source().is_some()).count() as u64;
    let first = check_each(&limiter, count).await;
    proxy.set(ProxyMode::Open);
    let mut table = FigureTable::new(&format!("the replies to {count} charges are lost"));
    table.exactly("through all layers: decisions of 20", decided, 20);
    table.at_least("of which the store may have charged", covered.without_reply().0, 1);
    let open = first.iter().filter(|result| **result == CallResult::MaybeCharged).count() as u64;
    table.at_least("reported as maybe charged", open, 1);
    let charged = first.iter().filter(|result| result.source().is_some()).count() as u64;
    table.exactly("reported as charged", charged, 0);

    // The reset connection fails some of them, so that they are retried once more.
    let (mut results, begun) = (first, Instant::now());
    while results.iter().any(|result| result.source().is_none()) && begun.elapsed() < HANG {
        results = check_each(&patient_limiter, count).await;
    }
    let allowed =
        results.iter().filter(|result| matches!(result, CallResult::Allow(_))).count() as u64;
    table.exactly("allowed in the end", allowed, count);
    let used = used(&server).await;
    table.exactly("charged twice", used.saturating_sub(count), 0);
    table.exactly("charges lost", count.saturating_sub(used), 0);
    table
}

/// Checks once with each idempotency key.
async fn check_each(limiter: &Limiter, count: u64) -> Vec<CallResult> {
    let mut calls = JoinSet::new();
    let mut results = Vec::new();
    for nth in 0..count {
        let limiter = limiter.clone();
        calls.spawn(async move {
            let id = format!("id {nth}");
            CallResult::of(&limiter.check("shared").idempotency_key(&id).await)
        });
        while calls.len() > 500 {
            results.extend(calls.join_next().await.map(Result::unwrap));
        }
    }
    results.extend(calls.join_all().await);
    results
}

/// Permits used, as Redis counted them.
async fn used(server: &RedisServer) -> u64 {
    let stack = Setup::on(&server.url()).deadline(TIMEOUT).build();
    let limiter = stack.limiter([Rule::new("api", [LIMIT.parse().unwrap()]).unwrap()]);
    limiter.inspect("shared").await.unwrap()[0].standing.used
}
