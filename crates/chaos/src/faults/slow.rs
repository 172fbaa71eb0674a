//! Answers come later and later, and then sooner again.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Options;
use super::scene::{BOUND, SECOND, SLACK, Scene, judge_return, tell_turns};
use crate::proxy::Proxy;
use crate::server::Server;
use crate::stack::{DEADLINE, Setup, Turn};
use crate::table::Table;

const SLOWEST: Duration = Duration::from_millis(200);

pub(super) async fn run(options: &Options) -> Table {
    let ramp = options.span(4 * SECOND, 60 * SECOND);
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let stack = Setup::on(&proxy.url()).build();
    stack.until_up().await;
    let scene = Scene::begin(&stack, options);
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
    sleep(3 * SECOND / 2).await;

    let log = scene.log.clone();
    let ended = scene.end().await;
    let mut table = Table::new(&format!("answers up to {SLOWEST:?} late, within {ramp:?}"));
    ended.judge_took(&mut table, "p99", wrong..right, 990, DEADLINE + SLACK);
    let [opened, closed] = [Turn::Opened, Turn::Closed].map(|turn| stack.count(turn, begun));
    table.at_least("the breaker opens", opened, 1);
    table.at_most("the breaker opens and closes", opened + closed, 2);
    judge_return(&mut table, &ended.log, right);
    tell_turns(&mut table, &stack, &log);
    ended.judge(&mut table, BOUND, 0);
    table
}
