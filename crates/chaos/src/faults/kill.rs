//! Redis is killed under load, and started again on the same port.

use tokio::time::{Instant, sleep};

use super::options::Options;
use super::scenario::{
    BOUND, SECOND, Scenario, UNTIL_OPEN, WHILE_OPEN, judge_breaker, judge_return,
    report_transitions, took_at,
};
use crate::stack::{Setup, StoreTransition};
use crate::table::FigureTable;
use testkit::redis::RedisServer;

pub(super) async fn run(options: &Options) -> FigureTable {
    let outage = options.span(3 * SECOND, 30 * SECOND);
    let mut server = RedisServer::start();
    let stack = Setup::on(&server.url()).build();
    stack.until_up().await;
    let scene = Scenario::start(&stack, options);
    sleep(SECOND).await;
    let killed = Instant::now();
    server.kill();
    sleep(outage).await;
    let mut table = FigureTable::new(&format!("kill -9, started again after {outage:?}"));
    scene.judge_decided(&mut table).await;
    let starting = scene.log.now();
    server.restart();
    let back = scene.log.now();
    scene.until_store_decides(back, 2 * SECOND).await;
    judge_breaker(&mut table, &stack).await;

    let log = scene.log.clone();
    let opened = stack.first(StoreTransition::Opened, killed).map(|at| log.at(at));
    let killed = log.at(killed);
    let ended = scene.stop().await;
    table.report("p99 before", format!("{:?}", took_at(&ended.log, 0..killed, 990)));
    let opened = opened.unwrap_or(starting);
    table.report("killed", format!("at {:.3} s", killed as f64 / 1e6));
    ended.judge_took(&mut table, "p99 until the breaker opens", killed..opened, 990, UNTIL_OPEN);
    table.goal("p99 while it is open", took_at(&ended.log, opened..starting, 990), WHILE_OPEN);
    judge_return(&mut table, &ended.log, back);
    report_transitions(&mut table, &stack, &log);
    ended.judge(&mut table, BOUND, 1);
    table
}
