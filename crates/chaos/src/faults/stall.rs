//! Four processes share a Redis that pauses: for less than a call waits, for longer, and for
//! seconds. Prints the most that all of them admitted in any second.

use std::ops::RangeInclusive;
use std::time::Duration;

use testkit::redis::RedisServer;
use testkit::timing::HANG;
use tidegate::{Rule, Source};
use tidegate_model::TraceRng;
use tokio::time::{Instant, sleep};

use super::options::Options;
use super::scenario::SECOND;
use crate::checker::Bound;
use crate::load::{Callers, Load, until};
use crate::log::{CallLog, LoggedCall};
use crate::proxy::{Proxy, ProxyMode};
use crate::stack::{Setup, Stack};
use crate::table::FigureTable;

const PROCESSES: u32 = 4;
const LIMIT: u64 = 100;
const BOUND: Bound = Bound::Window { limit: LIMIT, window: 1_000_000 };
/// Calls per second of each process.
const RATE: u64 = LIMIT;

/// Milliseconds between stalls: several in a second, and at most one.
const OFTEN: RangeInclusive<u64> = 100..=900;
const SELDOM: RangeInclusive<u64> = 1_000..=2_000;

/// What happens to Redis.
enum PauseFault {
    /// It pauses for so many milliseconds, runs for so many, and pauses again.
    Stalls(RangeInclusive<u64>, RangeInclusive<u64>),
    /// It is suspended once.
    Outage(Duration),
}

pub(super) async fn run(options: &Options) -> FigureTable {
    let span = options.span(8 * SECOND, 60 * SECOND);
    let mut table = FigureTable::new(&format!(
        "{PROCESSES} processes, {LIMIT} in any second, {RATE} calls a second each, for {span:?}"
    ));
    let short = case(options, PauseFault::Stalls(30..=60, OFTEN), span, true).await;
    short.report(&mut table, "stalls of 30 to 60 ms");
    table.goal("  decisions by the fallback", short.by_fallback, 0);
    table.goal("  most in any second", short.worst, LIMIT);
    table.at_most("  most in any second", short.worst, 2 * LIMIT);
    let long = case(options, PauseFault::Stalls(30..=300, SELDOM), 2 * span, true).await;
    long.report(&mut table, "stalls of 30 to 300 ms");
    table.goal("  most in any second", long.worst, LIMIT * 18 / 10);
    // The store admits the limit in any second, and the shares add up to it.
    table.at_most("  most in any second", long.worst, 2 * LIMIT);
    let often = case(options, PauseFault::Stalls(30..=300, OFTEN), span, true).await;
    often.report(&mut table, "the same, several in a second");
    table.at_most("  most in any second", often.worst, 2 * LIMIT);
    let outage = case(options, PauseFault::Outage(5 * SECOND), span, true).await;
    outage.report(&mut table, "suspended for 5 s");
    table.at_most("  most in any second", outage.worst, 2 * LIMIT);
    // Each process grants half of the limit.
    let alone = case(options, PauseFault::Stalls(30..=300, OFTEN), span, false).await;
    alone.report(&mut table, "the same without heartbeats");
    table.report("  most in any second", alone.worst);
    table
}

struct StallResult {
    decisions: u64,
    by_fallback: u64,
    worst: u64,
    opened: usize,
    longest: Duration,
}

impl StallResult {
    fn report(&self, table: &mut FigureTable, what: &str) {
        let Self { decisions, by_fallback, opened, longest, .. } = self;
        let figures = format!(
            "{decisions} decisions, {by_fallback} by the fallback, {opened} circuits opened"
        );
        table.report(what, figures);
        table.report("  longest decision", format!("{:.1} ms", longest.as_secs_f64() * 1e3));
    }
}

async fn case(
    options: &Options,
    fault: PauseFault,
    span: Duration,
    heartbeats: bool,
) -> StallResult {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let setup = || {
        let setup = Setup::on(&proxy.url());
        if heartbeats { setup.with_heartbeats() } else { setup }
    };
    let stacks: Vec<Stack> = (0..PROCESSES).map(|_| setup().build()).collect();
    for stack in &stacks {
        stack.until_up().await;
    }
    let is_known = |stack: &Stack| !heartbeats || stack.fleet_size() == Some(PROCESSES);
    assert!(until(HANG, || stacks.iter().all(is_known)).await, "the heartbeats are counted");
    let log = CallLog::new();
    let load = |(client, stack): (u8, &Stack)| {
        let limit = format!("sliding-log {LIMIT}/1s").parse().unwrap();
        let limiter = stack.limiter([Rule::new("api", [limit]).unwrap()]);
        let seed = options.seed + u64::from(client);
        Load::start(Callers { limiter, keys: 0..1, rate: RATE, client, seed }, &log)
    };
    let loads: Vec<Load> = (0..).zip(&stacks).map(load).collect();
    sleep(2 * SECOND).await;
    inject(&fault, span, options.seed, &server, &proxy).await;
    sleep(2 * SECOND).await;
    for load in loads {
        assert_eq!(load.stop().await, 0, "no call hangs");
    }
    let log = log.read();
    let from_fallback = |call: &&LoggedCall| call.is_from(Source::Fallback);
    StallResult {
        decisions: log.len() as u64,
        by_fallback: log.iter().filter(from_fallback).count() as u64,
        worst: BOUND.worst(&log, |_| true).admitted,
        opened: stacks.iter().map(|stack| stack.transitions().len().div_ceil(2)).sum(),
        longest: Duration::from_micros(log.iter().map(LoggedCall::took).max().unwrap_or(0)),
    }
}

async fn inject(
    fault: &PauseFault,
    span: Duration,
    seed: u64,
    server: &RedisServer,
    proxy: &Proxy,
) {
    let (stalls, pauses) = match fault {
        PauseFault::Outage(span) => {
            server.freeze();
            sleep(*span).await;
            return server.thaw();
        }
        PauseFault::Stalls(stalls, pauses) => (stalls, pauses),
    };
    let (mut rng, begun) = (TraceRng::new(seed), Instant::now());
    let mut millis = |range: &RangeInclusive<u64>| {
        Duration::from_millis(rng.between(*range.start(), *range.end()))
    };
    while begun.elapsed() < span {
        proxy.set(ProxyMode::BlackHole);
        sleep(millis(stalls)).await;
        proxy.set(ProxyMode::Open);
        sleep(millis(pauses)).await;
    }
}
