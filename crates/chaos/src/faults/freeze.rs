//! Redis stands still while the kernel goes on accepting for it; and the link to it is down.

use std::time::Duration;

use tokio::time::sleep;

use super::Options;
use super::scene::{BOUND, SECOND, SLACK, Scene, judge_return, tell_turns, took};
use crate::apart::{Apart, Link};
use crate::server::Server;
use crate::stack::{DEADLINE, Setup};
use crate::table::Table;

pub(super) async fn run(options: &Options) -> Table {
    let span = options.span(3 * SECOND / 2, 30 * SECOND);
    let mut table = Table::new(&format!("redis stands still for {span:?}"));
    let server = Server::start();
    outage(options, span, &mut table, &server.url(), || server.freeze(), || server.thaw()).await;
    match Apart::start() {
        Ok(apart) => {
            table.tell("the link to redis is down", format!("for {span:?}"));
            let set = |link| apart.set(link).unwrap();
            let (down, up) = (|| set(Link::Down), || set(Link::Up));
            outage(options, span, &mut table, &apart.url(), down, up).await;
        }
        Err(why) => table.skip("the link to redis is down", &why),
    }
    table
}

async fn outage(
    options: &Options,
    span: Duration,
    table: &mut Table,
    url: &str,
    begin: impl FnOnce(),
    end: impl FnOnce(),
) {
    let stack = Setup::on(url).build();
    stack.until_up().await;
    let scene = Scene::begin(&stack, options);
    sleep(SECOND / 2).await;
    let wrong = scene.log.now();
    begin();
    sleep(span).await;
    let right = scene.log.now();
    end();
    sleep(3 * SECOND / 2).await;

    let log = scene.log.clone();
    let ended = scene.end().await;
    table.tell("decisions meanwhile", took(&ended.log, wrong..right).len());
    ended.judge_took(table, "p99.9 of them", wrong..right, 999, DEADLINE + SLACK);
    judge_return(table, &ended.log, right);
    tell_turns(table, &stack, &log);
    // Nothing is forgotten.
    ended.judge(table, BOUND, 0);
}
