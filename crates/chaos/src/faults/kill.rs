//! Redis is killed under load, and started again on the same port.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Options;
use super::scene::{BOUND, SECOND, Scene, judge_return, tell_turns, took_at};
use crate::server::Server;
use crate::stack::{Setup, Turn};
use crate::table::Table;

pub(super) async fn run(options: &Options) -> Table {
    let outage = options.span(3 * SECOND, 30 * SECOND);
    let mut server = Server::start();
    let stack = Setup::on(&server.url()).build();
    stack.until_up().await;
    let scene = Scene::begin(&stack, options);
    sleep(SECOND).await;
    let killed = Instant::now();
    server.kill();
    sleep(outage).await;
    let starting = scene.log.now();
    server.restart();
    let back = scene.log.now();
    sleep(2 * SECOND).await;

    let log = scene.log.clone();
    let opened = stack.first(Turn::Opened, killed).map(|at| log.at(at));
    let turns = stack.count(Turn::Opened, killed) + stack.count(Turn::Closed, killed);
    let killed = log.at(killed);
    let ended = scene.end().await;
    let mut table = Table::new(&format!("kill -9, started again after {outage:?}"));
    table.tell("p99 before", format!("{:?}", took_at(&ended.log, 0..killed, 990)));
    table.so("the breaker opens", if opened.is_some() { "yes" } else { "no" }, opened.is_some());
    let opened = opened.unwrap_or(starting);
    table.tell("killed", format!("at {:.3} s", killed as f64 / 1e6));
    let ms = Duration::from_millis;
    ended.judge_took(&mut table, "p99 until then", killed..opened, 990, ms(30));
    table.at_most("p99 after that", took_at(&ended.log, opened..starting, 990), ms(1));
    judge_return(&mut table, &ended.log, back);
    table.exactly("the breaker opens once, and closes once", turns, 2);
    tell_turns(&mut table, &stack, &log);
    ended.judge(&mut table, BOUND, 1);
    table
}
