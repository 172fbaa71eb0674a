//! Answers are lost after the work was done. Whoever asks again under the same id is charged once.

use std::time::Duration;

use tidegate::{Limiter, Rule};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Options;
use crate::log::Said;
use crate::proxy::{Proxy, Way};
use crate::server::Server;
use crate::stack::{DEADLINE, PATIENCE, Setup};
use crate::table::Table;

const LIMIT: &str = "fixed-window 1000000/365d first-hit";
const ATTEMPTS: usize = 200;

pub(super) async fn run(options: &Options) -> Table {
    let count = options.count(500, 20_000);
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    // With all layers the fallback answers, and says why it had to.
    let covered = Setup::on(&proxy.url()).build();
    // Whoever wants to ask again has to be told.
    let told = Setup::on(&proxy.url()).without_fallback().without_breaker();
    let told = told.deadline(10 * DEADLINE).build();
    covered.until_up().await;
    told.until_up().await;
    let rule = || Rule::new("api", [LIMIT.parse().unwrap()]).unwrap();
    let (covered_limiter, limiter) = (covered.limiter([rule()]), told.limiter([rule()]));
    limiter.check("first").await.unwrap();
    covered_limiter.check("first").await.unwrap();

    proxy.set(Way::Swallow);
    let mut calls = JoinSet::new();
    for nth in 0..20 {
        let limiter = covered_limiter.clone();
        calls.spawn(async move { Said::of(&limiter.check(&format!("covered {nth}")).await) });
    }
    let by_fallback = calls.join_all().await;
    let answered = by_fallback.iter().filter(|said| said.source().is_some()).count() as u64;
    let first = ask_each(&limiter, count).await;
    proxy.set(Way::Open);
    let mut table = Table::new(&format!("the answers to {count} charges are lost"));
    table.exactly("through all layers: decisions of 20", answered, 20);
    table.at_least("of which the store left open", covered.unanswered().0, 1);
    let open = first.iter().filter(|said| **said == Said::Perhaps).count() as u64;
    table.at_least("said to be perhaps charged", open, 1);
    let charged = first.iter().filter(|said| said.source().is_some()).count() as u64;
    table.exactly("said to be charged", charged, 0);

    // Every one asks again until it is answered.
    let (mut answers, mut attempts) = (first, 0);
    while answers.iter().any(|said| said.source().is_none()) && attempts < ATTEMPTS {
        sleep(Duration::from_millis(10)).await;
        answers = ask_each(&limiter, count).await;
        attempts += 1;
    }
    let allowed = answers.iter().filter(|said| matches!(said, Said::Allow(_))).count() as u64;
    table.exactly("allowed in the end", allowed, count);
    let used = used(&server).await;
    table.exactly("charged twice", used.saturating_sub(count), 0);
    table.exactly("charges lost", count.saturating_sub(used), 0);
    table
}

/// Each asks for one under its own id.
async fn ask_each(limiter: &Limiter, count: u64) -> Vec<Said> {
    let mut calls = JoinSet::new();
    let mut said = Vec::new();
    for nth in 0..count {
        let limiter = limiter.clone();
        calls.spawn(async move {
            let id = format!("id {nth}");
            Said::of(&limiter.check("everybody").once(&id).await)
        });
        while calls.len() > 500 {
            said.extend(calls.join_next().await.map(Result::unwrap));
        }
    }
    said.extend(calls.join_all().await);
    said
}

/// What Redis has counted.
async fn used(server: &Server) -> u64 {
    let stack = Setup::on(&server.url()).deadline(PATIENCE).build();
    let limiter = stack.limiter([Rule::new("api", [LIMIT.parse().unwrap()]).unwrap()]);
    limiter.inspect("everybody").await.unwrap()[0].standing.used
}
