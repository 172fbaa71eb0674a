//! The limiter starts first, and Redis some time later.

use tidegate::Source;
use tokio::time::sleep;

use super::Options;
use super::scene::{BOUND, SECOND, Scene, judge_return, tell_turns, until};
use crate::server::Server;
use crate::stack::Setup;
use crate::table::Table;

pub(super) async fn run(options: &Options) -> Table {
    let alone = options.span(SECOND, 30 * SECOND);
    let mut server = Server::stopped(&[]);
    let stack = Setup::on(&server.url()).build();
    let scene = Scene::begin(&stack, options);
    sleep(alone).await;
    let up_before = stack.health().up;
    let starting = scene.log.now();
    server.restart();
    let back = scene.log.now();
    let up_after = until(2 * SECOND, || stack.health().up).await;
    let up_in = scene.log.now() - back;
    sleep(3 * SECOND / 2).await;

    let log = scene.log.clone();
    let ended = scene.end().await;
    let mut table = Table::new(&format!("redis starts {alone:?} after the limiter"));
    table.so("health says that it is not up", !up_before, !up_before);
    let before = ended.log.iter().filter(|entry| entry.ended < starting);
    let (local, all) = before.fold((0, 0), |(local, all), entry| {
        (local + u64::from(entry.is_from(Source::Fallback)), all + 1)
    });
    table.exactly("decisions by the fallback before that", local, all);
    table.at_least("of decisions", all, 1);
    table.so("health says that it is up", format!("after {} ms", up_in / 1000), up_after);
    judge_return(&mut table, &ended.log, back);
    tell_turns(&mut table, &stack, &log);
    ended.judge(&mut table, BOUND, 0);
    table
}
