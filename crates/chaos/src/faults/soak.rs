//! Random faults, one after the other, under load. Every call gets a decision.

use std::time::Duration;

use tidegate_model::TraceRng;
use tokio::time::sleep;

use super::options::Options;
use super::scenario::{BOUND, SECOND, SLACK, Scenario, first_by_store, report_transitions, span};
use crate::process_memory::memory;
use crate::proxy::{Proxy, ProxyMode};
use crate::stack::{DEADLINE, Setup};
use crate::table::FigureTable;
use testkit::redis::RedisServer;

const MAX_MEMORY: u64 = 16 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InjectedFault {
    Killed,
    Frozen,
    Slow,
    Silent,
    RepliesDropped,
    Reset,
    HalfClosed,
    ScriptsFlushed,
}

const ALL: [InjectedFault; 8] = [
    InjectedFault::Killed,
    InjectedFault::Frozen,
    InjectedFault::Slow,
    InjectedFault::Silent,
    InjectedFault::RepliesDropped,
    InjectedFault::Reset,
    InjectedFault::HalfClosed,
    InjectedFault::ScriptsFlushed,
];

pub(super) async fn run(options: &Options) -> FigureTable {
    let whole = options.span(20 * SECOND, 1800 * SECOND);
    let every = if options.is_long() { 60 * SECOND } else { 4 * SECOND };
    let mut server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let stack = Setup::on(&proxy.url()).build();
    stack.until_up().await;
    let scene = Scenario::start(&stack, options);
    sleep(SECOND).await;
    let before = memory();
    let mut rng = TraceRng::new(options.seed);
    let (mut left, mut state_losses, mut done) = (Vec::new(), 0, Vec::new());
    let mut max = before;
    for _ in 0..whole.as_millis() / every.as_millis() {
        if left.is_empty() {
            left = ALL.to_vec();
        }
        // Each fault comes once before one comes twice.
        let fault = left.swap_remove(rng.below(left.len() as u64) as usize);
        state_losses += u64::from(fault == InjectedFault::Killed);
        let begun = scene.log.now();
        inject(fault, every / 3, &mut server, &proxy).await;
        let over = scene.log.now();
        done.push((fault, begun, over));
        scene.until_store_decides(over, 2 * every / 3).await;
        max = max.max(memory());
    }

    let log = scene.log.clone();
    let ended = scene.stop().await;
    let mut table = FigureTable::new(&format!("a fault every {every:?} for {whole:?}"));
    for (fault, begun, over) in done {
        let back = first_by_store(&ended.log, over).map(|first| span(over, first));
        table.claim(&format!("{fault:?}: redis decides again"), back.is_some(), back.is_some());
        let back = back.unwrap_or(Duration::MAX);
        table.goal(&format!("{fault:?}: redis decides again after"), back, SECOND);
        // A short fault affects calls for a while.
        let felt = begun..over.max(begun + 500_000);
        let what = format!("{fault:?}: p99");
        ended.judge_took(&mut table, &what, felt, 990, DEADLINE + SLACK);
    }
    if let (Some(before), Some(max)) = (before, max) {
        table.at_most("memory growth in bytes", max.saturating_sub(before), MAX_MEMORY);
    }
    report_transitions(&mut table, &stack, &log);
    ended.judge(&mut table, BOUND, state_losses);
    table
}

/// Injects a fault and returns when it is over.
async fn inject(fault: InjectedFault, span: Duration, server: &mut RedisServer, proxy: &Proxy) {
    match fault {
        InjectedFault::Killed => {
            server.kill();
            sleep(span).await;
            server.restart();
        }
        InjectedFault::Frozen => {
            server.freeze();
            sleep(span).await;
            server.thaw();
        }
        InjectedFault::Slow => {
            proxy.delay(Duration::from_millis(100));
            sleep(span).await;
            proxy.delay(Duration::ZERO);
        }
        InjectedFault::Silent | InjectedFault::RepliesDropped => {
            proxy.set(if fault == InjectedFault::Silent {
                ProxyMode::BlackHole
            } else {
                ProxyMode::DropReplies
            });
            sleep(span).await;
            proxy.set(ProxyMode::Open);
        }
        InjectedFault::Reset => proxy.reset(),
        InjectedFault::HalfClosed => proxy.half_close(),
        InjectedFault::ScriptsFlushed => drop(server.cli(&["SCRIPT", "FLUSH"])),
    }
}
