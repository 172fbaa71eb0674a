//! Replies are delayed more and more, and then less again.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::options::Options;
use super::scenario::{
    BOUND, SECOND, SLACK, Scenario, judge_breaker, judge_return, report_transitions,
};
use crate::proxy::Proxy;
use crate::stack::{DEADLINE, Setup};
use crate::table::FigureTable;
use testkit::redis::RedisServer;

const SLOWEST: Duration = Duration::from_millis(200);

pub(super) async fn run(options: &Options) -> FigureTable {
    let ramp = options.span(4 * SECOND, 60 * SECOND);
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let stack = Setup::on(&proxy.url()).build();
    stack.until_up().await;
    let scene = Scenario::start(&stack, options);
    sleep(SECOND / 2).await;
    let begun = Instant::now();
    let wrong = scene.log.now();
    while begun.elapsed() < ramp {
        let part = begun.elapsed().as_secs_f64() / ramp.as_secs_f64();
        // Up in the first half, down in the second.
        proxy.delay(SLOWEST.mul_f64(1.0 - (2.0 * part - 1.0).abs()));
        sleep(Duration::from_millis(5)).await;
    }
    proxy.delay(Duration::ZERO);
    let right = scene.log.now();
    scene.until_store_decides(right, 3 * SECOND / 2).await;
    let mut table =
        FigureTable::new(&format!("replies delayed by up to {SLOWEST:?}, within {ramp:?}"));
    judge_breaker(&mut table, &stack).await;

    let log = scene.log.clone();
    let ended = scene.stop().await;
    ended.judge_took(&mut table, "p99", wrong..right, 990, DEADLINE + SLACK);
    judge_return(&mut table, &ended.log, right);
    report_transitions(&mut table, &stack, &log);
    ended.judge(&mut table, BOUND, 0);
    table
}
