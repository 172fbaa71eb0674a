//! Redis is suspended while the kernel still accepts connections; and the link to it is down.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::options::Options;
use super::scenario::{BOUND, SECOND, Scenario, judge_return, report_transitions, took};
use crate::isolated_redis::{IsolatedRedis, LinkState};
use crate::stack::{Setup, StoreTransition};
use crate::table::FigureTable;
use testkit::redis::RedisServer;

pub(super) async fn run(options: &Options) -> FigureTable {
    let span = options.span(3 * SECOND / 2, 30 * SECOND);
    let mut table = FigureTable::new(&format!("redis is suspended for {span:?}"));
    let server = RedisServer::start();
    outage(options, span, &mut table, &server.url(), || server.freeze(), || server.thaw()).await;
    match IsolatedRedis::start() {
        Ok(redis) => {
            table.report("the link to redis is down", format!("for {span:?}"));
            let set = |link| redis.set(link).unwrap();
            let (down, up) = (|| set(LinkState::Down), || set(LinkState::Up));
            outage(options, span, &mut table, &redis.url(), down, up).await;
        }
        Err(why) => table.skip("the link to redis is down", &why),
    }
    table
}

async fn outage(
    options: &Options,
    span: Duration,
    table: &mut FigureTable,
    url: &str,
    begin: impl FnOnce(),
    end: impl FnOnce(),
) {
    let stack = Setup::on(url).build();
    stack.until_up().await;
    let scene = Scenario::start(&stack, options);
    sleep(SECOND / 2).await;
    let (wrong, begun) = (scene.log.now(), Instant::now());
    begin();
    sleep(span).await;
    scene.judge_decided(table).await;
    let right = scene.log.now();
    end();
    scene.until_store_decides(right, 3 * SECOND / 2).await;

    let log = scene.log.clone();
    let opened = stack.first(StoreTransition::Opened, begun).map(|at| log.at(at));
    let ended = scene.stop().await;
    table.report("decisions during the fault", took(&ended.log, wrong..right).len());
    ended.judge_outage(table, wrong..right, opened);
    judge_return(table, &ended.log, right);
    report_transitions(table, &stack, &log);
    // No state is lost.
    ended.judge(table, BOUND, 0);
}
