//! Redis starts some time after the limiter.

use tidegate::Source;
use tokio::time::sleep;

use super::options::Options;
use super::scenario::{BOUND, SECOND, Scenario, judge_return, report_transitions};
use crate::load::until;
use crate::stack::Setup;
use crate::table::FigureTable;
use testkit::redis::RedisServer;
use testkit::timing::HANG;

pub(super) async fn run(options: &Options) -> FigureTable {
    let alone = options.span(SECOND, 30 * SECOND);
    let mut server = RedisServer::stopped(&[]);
    let stack = Setup::on(&server.url()).build();
    let scene = Scenario::start(&stack, options);
    sleep(alone).await;
    let up_before = stack.health().up;
    let starting = scene.log.now();
    server.restart();
    let back = scene.log.now();
    let up_after = until(HANG, || stack.health().up).await;
    let up_in = scene.log.now() - back;
    scene.until_store_decides(back, 3 * SECOND / 2).await;

    let log = scene.log.clone();
    let ended = scene.stop().await;
    let mut table = FigureTable::new(&format!("redis starts {alone:?} after the limiter"));
    table.claim("health reports that redis is down", !up_before, !up_before);
    let before = ended.log.iter().filter(|entry| entry.ended < starting);
    let (local, all) = before.fold((0, 0), |(local, all), entry| {
        (local + u64::from(entry.is_from(Source::Fallback)), all + 1)
    });
    table.exactly("decisions by the fallback before the start", local, all);
    table.at_least("of decisions", all, 1);
    table.claim("health reports that redis is up", format!("after {} ms", up_in / 1000), up_after);
    judge_return(&mut table, &ended.log, back);
    report_transitions(&mut table, &stack, &log);
    ended.judge(&mut table, BOUND, 0);
    table
}
