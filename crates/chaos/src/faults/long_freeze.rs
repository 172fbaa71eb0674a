//! Redis is suspended for long, under high load: memory and connections stay bounded.

use tokio::time::{Instant, sleep};

use super::options::Options;
use super::scenario::{BOUND, SECOND, Scenario, report_transitions};
use crate::log::micros;
use crate::process_memory::memory;
use crate::proxy::Proxy;
use crate::stack::{Setup, StoreTransition};
use crate::table::FigureTable;
use testkit::redis::RedisServer;

/// One connection, and its successor while the last calls of the old one end.
const POOL: u64 = 2;
/// A proxy on a busy machine notices closed connections late.
const MAX_POOL: u64 = 4 * POOL;
const MAX_MEMORY: u64 = 16 << 20;
const MAX_RECONNECTS: f64 = 10.0;

pub(super) async fn run(options: &Options) -> FigureTable {
    let span = options.span(8 * SECOND, 300 * SECOND);
    let rate = options.rate(options.count(2_000, 10_000));
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let stack = Setup::on(&proxy.url()).build();
    stack.until_up().await;
    let scene = Scenario::start_at(&stack, options, rate);
    sleep(SECOND).await;
    let before = memory();
    let frozen = Instant::now();
    server.freeze();
    let mut max = before;
    while frozen.elapsed() < span {
        sleep(SECOND / 10).await;
        max = max.max(memory());
    }
    let mut table = FigureTable::new(&format!("redis is suspended for {span:?} at {rate}/s"));
    scene.judge_decided(&mut table).await;
    let accepts = proxy.accepts().into_iter().filter(|at| *at >= frozen).collect::<Vec<_>>();
    let most_open = proxy.max_open();
    server.thaw();
    scene.until_store_decides(scene.log.now(), SECOND).await;

    let log = scene.log.clone();
    let ended = scene.stop().await;
    table.goal("connections at a time", most_open, POOL);
    table.at_most("connections at a time", most_open, MAX_POOL);
    let seconds = span.as_secs_f64();
    table.at_most("new connections per second", accepts.len() as f64 / seconds, MAX_RECONNECTS);
    let within = |at: &Instant| accepts.iter().filter(|a| *a >= at && **a < *at + SECOND).count();
    let worst = accepts.iter().map(within).max().unwrap_or(0);
    table.goal("new connections in the worst second", worst as f64, MAX_RECONNECTS);
    match (before, max) {
        (Some(before), Some(max)) => {
            table.at_most("memory growth in bytes", max - before, MAX_MEMORY);
        }
        _ => table.skip("memory growth in bytes", "not available on this system"),
    }
    let opened = stack.first(StoreTransition::Opened, frozen).map(|at| log.at(at));
    let frozen = log.at(frozen);
    ended.judge_outage(&mut table, frozen..frozen + micros(span), opened);
    report_transitions(&mut table, &stack, &log);
    ended.judge(&mut table, BOUND, 0);
    table
}
