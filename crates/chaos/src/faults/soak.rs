//! One fault after the other, at random, under load. Everybody is answered, all the time.

use std::time::Duration;

use tidegate_model::Rng;
use tokio::time::sleep;

use super::Options;
use super::scene::{BOUND, SECOND, SLACK, Scene, first_by_store, span, tell_turns};
use crate::process::memory;
use crate::proxy::{Proxy, Way};
use crate::server::Server;
use crate::stack::{DEADLINE, Setup};
use crate::table::Table;

const MOST_MEMORY: u64 = 16 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    Killed,
    Frozen,
    Slow,
    Silent,
    Swallowed,
    Reset,
    HalfClosed,
    ScriptsForgotten,
}

const ALL: [Wrong; 8] = [
    Wrong::Killed,
    Wrong::Frozen,
    Wrong::Slow,
    Wrong::Silent,
    Wrong::Swallowed,
    Wrong::Reset,
    Wrong::HalfClosed,
    Wrong::ScriptsForgotten,
];

pub(super) async fn run(options: &Options) -> Table {
    let whole = options.span(20 * SECOND, 1800 * SECOND);
    let every = if options.is_long() { 60 * SECOND } else { 4 * SECOND };
    let mut server = Server::start();
    let proxy = Proxy::to(server.port());
    let stack = Setup::on(&proxy.url()).build();
    stack.until_up().await;
    let scene = Scene::begin(&stack, options);
    sleep(SECOND).await;
    let before = memory();
    let mut rng = Rng::new(options.seed);
    let (mut left, mut forgotten, mut done) = (Vec::new(), 0, Vec::new());
    let mut most = before;
    for _ in 0..whole.as_millis() / every.as_millis() {
        if left.is_empty() {
            left = ALL.to_vec();
        }
        // Each comes once before one comes twice.
        let wrong = left.swap_remove(rng.below(left.len() as u64) as usize);
        forgotten += u64::from(wrong == Wrong::Killed);
        let begun = scene.log.now();
        inflict(wrong, every / 3, &mut server, &proxy).await;
        done.push((wrong, begun, scene.log.now()));
        sleep(2 * every / 3).await;
        most = most.max(memory());
    }

    let log = scene.log.clone();
    let ended = scene.end().await;
    let mut table = Table::new(&format!("a fault every {every:?} for {whole:?}"));
    for (wrong, begun, over) in done {
        let back =
            first_by_store(&ended.log, over).map_or(Duration::MAX, |first| span(over, first));
        table.at_most(&format!("{wrong:?}: redis decides again after"), back, SECOND);
        // What is wrong for a moment is felt a little longer.
        let felt = begun..over.max(begun + 500_000);
        let what = format!("{wrong:?}: p99");
        ended.judge_took(&mut table, &what, felt, 990, DEADLINE + SLACK);
    }
    if let (Some(before), Some(most)) = (before, most) {
        table.at_most("bytes of memory more", most.saturating_sub(before), MOST_MEMORY);
    }
    tell_turns(&mut table, &stack, &log);
    ended.judge(&mut table, BOUND, forgotten);
    table
}

/// Returns when it is right again.
async fn inflict(wrong: Wrong, span: Duration, server: &mut Server, proxy: &Proxy) {
    match wrong {
        Wrong::Killed => {
            server.kill();
            sleep(span).await;
            server.restart();
        }
        Wrong::Frozen => {
            server.freeze();
            sleep(span).await;
            server.thaw();
        }
        Wrong::Slow => {
            proxy.delay(Duration::from_millis(100));
            sleep(span).await;
            proxy.delay(Duration::ZERO);
        }
        Wrong::Silent | Wrong::Swallowed => {
            proxy.set(if wrong == Wrong::Silent { Way::BlackHole } else { Way::Swallow });
            sleep(span).await;
            proxy.set(Way::Open);
        }
        Wrong::Reset => proxy.reset(),
        Wrong::HalfClosed => proxy.half_close(),
        Wrong::ScriptsForgotten => drop(server.cli(&["SCRIPT", "FLUSH"])),
    }
}
