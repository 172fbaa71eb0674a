//! A thousand callers with different costs wait for permits, and some give up.

use std::time::Duration;

use tidegate::Rule;
use tidegate_model::TraceRng;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use super::options::Options;
use super::overload::Pings;
use super::scenario::late;
use crate::load::Timers;
use crate::log::{CallLog, LoggedCall, micros};
use crate::stack::{Setup, TIMEOUT};
use crate::table::FigureTable;
use testkit::redis::RedisServer;

/// The queue advances by one reply of Redis at a time: 6 ms each at this rate.
const RATE: u64 = 500;
/// Permits of a tenth of a second fit in, so that a stalled machine loses none.
const BURST: u64 = 100;
const MAX_COST: u64 = 5;
/// Percentage of callers that give up.
const GIVE_UP: u64 = 20;
/// Time between two callers.
const GAP: Duration = Duration::from_micros(500);

/// One caller; times in microseconds since the start.
#[derive(Clone, Copy, Debug)]
struct WaitingCaller {
    cost: u64,
    begun: u64,
    ended: u64,
    ending: WaitEnd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitEnd {
    Passed,
    GaveUp,
    Failed,
}

pub(super) async fn run(options: &Options) -> FigureTable {
    let count = options.count(1_000, 10_000);
    let server = RedisServer::start();
    let stack = Setup::on(&server.url()).deadline(TIMEOUT).build();
    stack.until_up().await;
    let limit = format!("{RATE}/s burst {BURST}").parse().unwrap();
    let limiter = stack.limiter([Rule::new("turns", [limit]).unwrap()]);
    limiter.check("another key").await.unwrap();
    let mut rng = TraceRng::new(options.seed);
    // Upper bound for all callers, so that no wait is refused for its length.
    let longest = Duration::from_secs(count * MAX_COST / RATE + 10);
    let (log, zero) = (CallLog::new(), tokio::time::Instant::now());
    let bare = log.sibling();
    let timers = Timers::start(&bare);
    let pings = Pings::start(server.port(), &log);
    let mut tasks = JoinSet::new();
    for nth in 0..count as u32 {
        let (limiter, log) = (limiter.clone(), log.clone());
        let cost = rng.between(1, MAX_COST);
        let gives_up = rng.below(100) < GIVE_UP;
        // Shorter than the expected wait, so that it gives up before its turn.
        let gives_up_after = Duration::from_micros(rng.below(1 + 3_000 * u64::from(nth)));
        tasks.spawn(async move {
            let begun = log.now();
            let wait = async { limiter.check("all").cost(cost).wait(longest).await };
            let ending =
                match timeout(if gives_up { gives_up_after } else { 2 * longest }, wait).await {
                    Ok(Ok(decision)) if decision.allowed() => WaitEnd::Passed,
                    Err(_) if gives_up => WaitEnd::GaveUp,
                    _ => WaitEnd::Failed,
                };
            (nth, WaitingCaller { cost, begun, ended: log.now(), ending })
        });
        sleep_until(zero + GAP * (nth + 1)).await;
    }
    let mut waiters = tasks.join_all().await;
    waiters.sort_unstable_by_key(|(nth, _)| *nth);
    let waiters: Vec<WaitingCaller> = waiters.into_iter().map(|(_, waiter)| waiter).collect();
    timers.stop().await;
    let pings = pings.stop().await;
    let slowest = pings.iter().map(LoggedCall::took).max().unwrap_or(0);
    judge(&waiters, late(&bare.read(), 1000), slowest)
}

/// Most of the time that a check takes on a quiet machine.
const CHECK_TIME: Duration = Duration::from_millis(30);

fn judge(waiters: &[WaitingCaller], late: Duration, slowest: u64) -> FigureTable {
    let mut table = FigureTable::new(&format!("{} callers wait for {RATE}/s", waiters.len()));
    let count = |ending| waiters.iter().filter(|waiter| waiter.ending == ending).count() as u64;
    table.report("passed", count(WaitEnd::Passed));
    table.at_least("gave up", count(WaitEnd::GaveUp), 1);
    table.exactly("starved or refused", count(WaitEnd::Failed), 0);
    // Each caller sends one check before it queues. Callers that start closer together than a check
    // takes have no order, and a check takes longer where a bare client has to wait.
    let apart = micros(CHECK_TIME) + 2 * slowest;
    let passed_before = inversions(waiters, apart);
    table.goal("passed before an earlier caller", passed_before, 0);
    // Without an order, almost every caller would.
    table.at_most("passed before an earlier caller", passed_before, waiters.len() as u64 / 4);
    table.report("the same, without tolerance", inversions(waiters, 0));
    let waits = waiters.iter().filter(|waiter| waiter.ending == WaitEnd::Passed);
    let longest = waits.map(|waiter| waiter.ended - waiter.begun).max().unwrap_or(0);
    let ideal = longest_ideal(waiters);
    let own = longest.saturating_sub(micros(late));
    table.report("longest wait", format!("{:?}", Duration::from_micros(longest)));
    table.report("ideal", format!("{:?}", Duration::from_micros(ideal)));
    // The delay of bare timers is the machine's.
    table.report("longest bare PING", format!("{:?}", Duration::from_micros(slowest)));
    table.report("bare timers were late by at most", format!("{late:?}"));
    table.goal("longest wait over ideal", own as f64 / ideal.max(1) as f64, 1.1);
    table
}

/// Number of callers that passed before one that started at least `apart` earlier.
fn inversions(waiters: &[WaitingCaller], apart: u64) -> u64 {
    let mut passed: Vec<&WaitingCaller> =
        waiters.iter().filter(|waiter| waiter.ending == WaitEnd::Passed).collect();
    passed.sort_unstable_by_key(|waiter| waiter.ended);
    // Backwards: the earliest start of all callers that passed later.
    let (mut earliest, mut count) = (u64::MAX, 0);
    for waiter in passed.into_iter().rev() {
        count += u64::from(waiter.begun > earliest.saturating_add(apart));
        earliest = earliest.min(waiter.begun);
    }
    count
}

/// The longest wait if calls took no time: first come, first served. A caller that gives up at the
/// head of the queue blocks the others until then.
fn longest_ideal(waiters: &[WaitingCaller]) -> u64 {
    // In permits times a million, so that a microsecond brings `RATE`.
    const UNIT: u64 = 1_000_000;
    let (mut level, mut now, mut longest) = (BURST * UNIT, 0, 0);
    for waiter in waiters {
        let turn = now.max(waiter.begun);
        level = (level + (turn - now) * RATE).min(BURST * UNIT);
        let missing = (waiter.cost * UNIT).saturating_sub(level).div_ceil(RATE);
        let gone = waiter.ending == WaitEnd::GaveUp && waiter.ended < turn + missing;
        let end = if gone { waiter.ended.max(turn) } else { turn + missing };
        level = (level + (end - turn) * RATE).min(BURST * UNIT);
        now = end;
        if !gone {
            level -= waiter.cost * UNIT;
            longest = longest.max(end - waiter.begun);
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(cost: u64, begun: u64, ended: u64) -> WaitingCaller {
        WaitingCaller { cost, begun, ended, ending: WaitEnd::Passed }
    }

    #[test]
    fn a_caller_that_starts_later_and_passes_earlier_is_counted() {
        for (waiters, apart, expected) in [
            (vec![passed(1, 0, 10), passed(1, 1, 11)], 0, 0),
            (vec![passed(1, 0, 11), passed(1, 1, 10)], 0, 1),
            (vec![passed(1, 0, 11), passed(1, 1, 10)], 1, 0),
            (vec![passed(1, 0, 12), passed(1, 5, 10), passed(1, 6, 11)], 3, 2),
        ] {
            assert_eq!(inversions(&waiters, apart), expected, "{waiters:?}");
        }
    }

    #[test]
    fn the_ideal_wait_is_that_of_the_bucket() {
        let gives_up = |cost, begun, ended| WaitingCaller {
            ending: WaitEnd::GaveUp,
            ..passed(cost, begun, ended)
        };
        let full = passed(BURST, 0, 0);
        for (waiters, expected) in [
            (vec![full], 0),
            (vec![full, passed(3, 0, 0)], 6_000),
            (vec![full, passed(3, 1_000, 0)], 5_000),
            // A caller that gives up takes nothing; permits refilled meanwhile stay available.
            (vec![full, gives_up(5, 0, 9_000), passed(2, 0, 0)], 9_000),
            (vec![full, gives_up(5, 0, 1_000), passed(2, 0, 0)], 4_000),
        ] {
            assert_eq!(longest_ideal(&waiters), expected, "{waiters:?}");
        }
    }
}
