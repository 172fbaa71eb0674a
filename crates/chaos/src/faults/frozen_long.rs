//! Redis stands still for long, under much load: nothing may pile up.

use tokio::time::{Instant, sleep};

use super::Options;
use super::scene::{BOUND, SECOND, SLACK, Scene, tell_turns};
use crate::log::micros;
use crate::process::memory;
use crate::proxy::Proxy;
use crate::server::Server;
use crate::stack::{DEADLINE, Setup};
use crate::table::Table;

/// One for all calls, and one that takes its place while the last calls of the old one end.
const POOL: u64 = 2;
const MOST_MEMORY: u64 = 16 << 20;
const MOST_RECONNECTS: f64 = 10.0;

pub(super) async fn run(options: &Options) -> Table {
    let span = options.span(8 * SECOND, 300 * SECOND);
    let rate = options.rate(options.count(2_000, 10_000));
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let stack = Setup::on(&proxy.url()).build();
    stack.until_up().await;
    let scene = Scene::begin_at(&stack, options, rate);
    sleep(SECOND).await;
    let before = memory();
    let frozen = Instant::now();
    server.freeze();
    let mut most = before;
    while frozen.elapsed() < span {
        sleep(SECOND / 10).await;
        most = most.max(memory());
    }
    let accepts = proxy.accepts().into_iter().filter(|at| *at >= frozen).collect::<Vec<_>>();
    let most_open = proxy.most_open();
    server.thaw();
    sleep(SECOND).await;

    let log = scene.log.clone();
    let ended = scene.end().await;
    let mut table = Table::new(&format!("redis stands still for {span:?} at {rate}/s"));
    table.at_most("connections at a time", most_open, POOL);
    let seconds = span.as_secs_f64();
    table.at_most("new connections a second", accepts.len() as f64 / seconds, MOST_RECONNECTS);
    let within = |at: &Instant| accepts.iter().filter(|a| *a >= at && **a < *at + SECOND).count();
    let worst = accepts.iter().map(within).max().unwrap_or(0);
    table.at_most("new connections in the worst second", worst as f64, MOST_RECONNECTS);
    match (before, most) {
        (Some(before), Some(most)) => {
            table.at_most("bytes of memory more", most - before, MOST_MEMORY);
        }
        _ => table.skip("bytes of memory more", "the system does not say"),
    }
    let frozen = log.at(frozen);
    let over = frozen + micros(span);
    ended.judge_took(&mut table, "p99.9 of decisions", frozen..over, 999, DEADLINE + SLACK);
    tell_turns(&mut table, &stack, &log);
    ended.judge(&mut table, BOUND, 0);
    table
}
