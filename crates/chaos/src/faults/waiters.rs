//! A thousand callers wait for their turn, each with a cost of its own, and some give up.

use std::time::Duration;

use tidegate::Rule;
use tidegate_model::Rng;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use super::Options;
use super::saturate::Pings;
use super::scene::{SLACK, late};
use crate::load::Timers;
use crate::log::{Entry, Log, micros};
use crate::server::Server;
use crate::stack::{DEADLINE, PATIENCE, Setup};
use crate::table::Table;

/// The line moves by one answer of Redis after the other: 6 ms for each at this rate.
const RATE: u64 = 500;
/// What comes while a machine stands still for a tenth of a second is not lost.
const BURST: u64 = 100;
const MOST_COST: u64 = 5;
/// Of a hundred, so many give up.
const GIVE_UP: u64 = 20;
/// Between one caller and the next.
const GAP: Duration = Duration::from_micros(500);

/// One caller, in microseconds since the beginning.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    cost: u64,
    begun: u64,
    ended: u64,
    ending: Ending,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Passed,
    GaveUp,
    Failed,
}

pub(super) async fn run(options: &Options) -> Table {
    let count = options.count(1_000, 10_000);
    let server = Server::start();
    let stack = Setup::on(&server.url()).deadline(PATIENCE).build();
    stack.until_up().await;
    let limit = format!("{RATE}/s burst {BURST}").parse().unwrap();
    let limiter = stack.limiter([Rule::new("turns", [limit]).unwrap()]);
    limiter.check("somebody else").await.unwrap();
    let mut rng = Rng::new(options.seed);
    // All together, without those who give up; nobody is to be turned away for its length.
    let longest = Duration::from_secs(count * MOST_COST / RATE + 10);
    let (log, zero) = (Log::new(), tokio::time::Instant::now());
    let bare = log.beside();
    let timers = Timers::begin(&bare);
    let pings = Pings::begin(server.port(), &log);
    let mut tasks = JoinSet::new();
    for nth in 0..count as u32 {
        let (limiter, log) = (limiter.clone(), log.clone());
        let cost = rng.between(1, MOST_COST);
        let gives_up = rng.below(100) < GIVE_UP;
        // Before its turn comes, which those before it need about so long for.
        let patience = Duration::from_micros(rng.below(1 + 3_000 * u64::from(nth)));
        tasks.spawn(async move {
            let begun = log.now();
            let wait = async { limiter.check("all").cost(cost).wait(longest).await };
            let ending = match timeout(if gives_up { patience } else { 2 * longest }, wait).await {
                Ok(Ok(decision)) if decision.allowed() => Ending::Passed,
                Err(_) if gives_up => Ending::GaveUp,
                _ => Ending::Failed,
            };
            (nth, Waiter { cost, begun, ended: log.now(), ending })
        });
        sleep_until(zero + GAP * (nth + 1)).await;
    }
    let mut waiters = tasks.join_all().await;
    waiters.sort_unstable_by_key(|(nth, _)| *nth);
    let waiters: Vec<Waiter> = waiters.into_iter().map(|(_, waiter)| waiter).collect();
    timers.end().await;
    let pings = pings.end().await;
    let slowest = pings.iter().map(Entry::took).max().unwrap_or(0);
    judge(&waiters, late(&bare.read(), 1000), slowest)
}

fn judge(waiters: &[Waiter], late: Duration, slowest: u64) -> Table {
    let mut table = Table::new(&format!("{} callers wait for {RATE}/s", waiters.len()));
    let count = |ending| waiters.iter().filter(|waiter| waiter.ending == ending).count() as u64;
    table.tell("passed", count(Ending::Passed));
    table.at_least("gave up", count(Ending::GaveUp), waiters.len() as u64 / 7);
    table.exactly("starved or refused", count(Ending::Failed), 0);
    // Before it stands in line each asks once. Those who came closer together than that takes have no
    // order, and it takes longer where a bare client has to wait.
    let apart = micros(DEADLINE + SLACK) + 2 * slowest;
    table.exactly("passed before somebody who came earlier", inversions(waiters, apart), 0);
    table.tell("the same, however close together", inversions(waiters, 0));
    let waits = waiters.iter().filter(|waiter| waiter.ending == Ending::Passed);
    let longest = waits.map(|waiter| waiter.ended - waiter.begun).max().unwrap_or(0);
    let ideal = longest_ideal(waiters);
    let own = longest.saturating_sub(micros(late));
    table.tell("longest wait", format!("{:?}", Duration::from_micros(longest)));
    table.tell("ideal", format!("{:?}", Duration::from_micros(ideal)));
    // What bare timers were late is the machine's.
    table.tell("longest bare PING", format!("{:?}", Duration::from_micros(slowest)));
    table.tell("bare timers were late by at most", format!("{late:?}"));
    table.at_most("longest wait over ideal", own as f64 / ideal.max(1) as f64, 1.1);
    table
}

/// Those who passed before somebody who had come at least so much earlier.
fn inversions(waiters: &[Waiter], apart: u64) -> u64 {
    let mut passed: Vec<&Waiter> =
        waiters.iter().filter(|waiter| waiter.ending == Ending::Passed).collect();
    passed.sort_unstable_by_key(|waiter| waiter.ended);
    // From behind: who came first of all that passed later?
    let (mut earliest, mut count) = (u64::MAX, 0);
    for waiter in passed.into_iter().rev() {
        count += u64::from(waiter.begun > earliest.saturating_add(apart));
        earliest = earliest.min(waiter.begun);
    }
    count
}

/// The longest wait if nothing took any time: first come first served, and whoever gives up at the
/// head of the line has kept the others waiting until then.
fn longest_ideal(waiters: &[Waiter]) -> u64 {
    // In permits times a million, so that a microsecond brings `RATE`.
    const UNIT: u64 = 1_000_000;
    let (mut level, mut now, mut longest) = (BURST * UNIT, 0, 0);
    for waiter in waiters {
        let turn = now.max(waiter.begun);
        level = (level + (turn - now) * RATE).min(BURST * UNIT);
        let missing = (waiter.cost * UNIT).saturating_sub(level).div_ceil(RATE);
        let gone = waiter.ending == Ending::GaveUp && waiter.ended < turn + missing;
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

    fn passed(cost: u64, begun: u64, ended: u64) -> Waiter {
        Waiter { cost, begun, ended, ending: Ending::Passed }
    }

    #[test]
    fn whoever_comes_later_and_passes_earlier_is_counted() {
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
        let gives_up =
            |cost, begun, ended| Waiter { ending: Ending::GaveUp, ..passed(cost, begun, ended) };
        let full = passed(BURST, 0, 0);
        for (waiters, expected) in [
            (vec![full], 0),
            (vec![full, passed(3, 0, 0)], 6_000),
            (vec![full, passed(3, 1_000, 0)], 5_000),
            // Who gives up takes nothing; at the head of the line, what came meanwhile is there.
            (vec![full, gives_up(5, 0, 9_000), passed(2, 0, 0)], 9_000),
            (vec![full, gives_up(5, 0, 1_000), passed(2, 0, 0)], 4_000),
        ] {
            assert_eq!(longest_ideal(&waiters), expected, "{waiters:?}");
        }
    }
}
