//! Waiting for one's turn: order, bounds, cancellation. The clock is turned by hand, and every
//! future is polled by hand, so each run is the same and nothing sleeps.
//!
//! What was charged is read from a log of every call that reached the engine, kept by a wrapper
//! around it; the limiter's own counters are not asked.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/ready.rs"]
mod ready;

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::{
    Answer, Ask, Call, Clock, Decision, Engine, Health, Inspection, Key, Limit, Limited, Limiter,
    ManualClock, Memory, Micros, Op, Outcome, Refusal, Reservation, Rule, RuleLimit, SystemClock,
};
use tidegate_model::Rng;

use crate::ready::ready;

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: u64 = 1_000_000;

// --- order -------------------------------------------------------------------------------------

#[test]
fn the_first_to_come_is_the_first_to_pass() {
    for notation in [
        "1/s burst 1",
        "fixed-window 1/s",
        "sliding-log 1/s",
        "leaky-bucket 1/s",
        "leaky-bucket 1/s capacity 3 queue",
    ] {
        let bench = Bench::new(notation);
        bench.drain("k");
        for order in [PollOrder::AsWoken, PollOrder::LastFirst, PollOrder::Random(7)] {
            let mut driver = Driver::new(&bench, order);
            for _ in 0..20 {
                driver.start(bench.acquire("k", 1, HOUR));
            }
            driver.run_until_idle();
            let passed: Vec<usize> = driver.passed().iter().map(|(task, _)| *task).collect();
            assert_eq!(passed, (0..20).collect::<Vec<_>>(), "{notation}, {order:?}");
        }
    }
}

#[test]
fn whoever_comes_later_with_a_smaller_cost_does_not_overtake() {
    let bench = Bench::new("1/s burst 10");
    bench.drain("k");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let large = driver.start(bench.acquire("k", 10, HOUR));
    let small = driver.start(bench.acquire("k", 1, HOUR));
    driver.run_until_idle();
    let start = bench.start;
    assert_eq!(driver.passed(), [(large, start + 10 * SECOND), (small, start + 11 * SECOND)]);
}

#[test]
fn two_keys_do_not_wait_for_each_other() {
    let bench = Bench::new("1/s burst 1");
    bench.drain("busy");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    for _ in 0..5 {
        driver.start(bench.acquire("busy", 1, HOUR));
    }
    let free = driver.start(bench.acquire("free", 1, Duration::ZERO));
    driver.settle();
    assert_eq!(driver.passed(), [(free, bench.start)]);
}

#[test]
fn a_thousand_waiters_of_whom_a_fifth_leaves_pass_in_order_and_on_time() {
    for seed in 0..5 {
        let crowd = Crowd::run(seed);
        assert_eq!(crowd.starved, 0, "seed {seed}");
        assert_eq!(crowd.out_of_order, 0, "seed {seed}");
        let Crowd { longest, ideal, latest, .. } = crowd;
        assert!(longest * 10 <= ideal * 11, "seed {seed}: {longest} us where {ideal} us were due");
        assert!(latest <= Crowd::LARGEST_COST_TAKES, "seed {seed}: {latest} us late");
        assert_eq!(crowd.charged, crowd.acquired, "seed {seed}");
        if seed == 0 {
            let Crowd { passed, left, acquired, charged, .. } = crowd;
            say(&format!(
                "waiting: 1000 waiters of cost 1..5 at 100/s, {left} left, {passed} passed, \
                 starved 0, out of order 0, longest wait {longest} us where {ideal} us were due, \
                 nobody more than {latest} us late, acquired {acquired}, charged {charged}"
            ));
        }
    }
}

/// What became of a thousand waiters.
struct Crowd {
    passed: usize,
    left: usize,
    starved: usize,
    out_of_order: usize,
    /// Permits that callers got, by their answers.
    acquired: u64,
    /// Permits that were charged, by the engine's log.
    charged: u64,
    /// The longest wait, and how long it had to be: what passed before it at the limit's rate.
    longest: u64,
    ideal: u64,
    /// The most that anybody passed later than that.
    latest: u64,
}

impl Crowd {
    const RATE: u64 = 100;
    /// Those behind a head of the queue that leaves in the end have waited for it in vain, at most
    /// as long as its permits take.
    const LARGEST_COST_TAKES: u64 = 5 * SECOND / Self::RATE;

    /// All arrive within a second at a bucket that is empty, so from the first arrival on the
    /// ideal is simple: the queue is served at the rate, in order, without a gap.
    fn run(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let bench = Bench::new("100/s burst 5");
        bench.drain("k");
        let drained = bench.charged();
        let mut driver = Driver::new(&bench, PollOrder::Random(seed));

        let mut arrivals: Vec<u64> = (0..1_000).map(|_| rng.below(SECOND)).collect();
        arrivals.sort_unstable();
        arrivals[0] = 0;
        let costs: Vec<u64> = (0..1_000).map(|_| 1 + rng.below(5)).collect();
        let mut partings = partings(&mut rng, &arrivals, &costs);
        partings.sort_unstable();

        let mut left = 0;
        let (mut next, mut parting) = (0, 0);
        loop {
            let now = bench.now() - bench.start;
            while next < arrivals.len() && arrivals[next] <= now {
                driver.start(bench.acquire("k", costs[next], HOUR));
                next += 1;
            }
            while parting < partings.len() && partings[parting].0 <= now {
                let (_, task) = partings[parting];
                left += usize::from(task < next && driver.cancel(task));
                parting += 1;
            }
            driver.settle();
            let arrival = arrivals.get(next).copied();
            let leaving = partings.get(parting).map(|(at, _)| *at);
            let wake = bench.clock.next_wake().map(|at| at.get() - bench.start);
            match [arrival, leaving, wake].into_iter().flatten().min() {
                Some(at) => bench.clock.set(Micros::new(bench.start + at)),
                None => break,
            }
        }

        let passed = driver.passed();
        let (mut served, mut longest, mut ideal, mut latest) = (0, 0, 0, 0);
        for (task, at) in &passed {
            served += costs[*task];
            let due = (served * SECOND).div_ceil(Self::RATE);
            let passed_at = at - bench.start;
            latest = latest.max(passed_at.saturating_sub(due));
            if passed_at - arrivals[*task] > longest {
                (longest, ideal) = (passed_at - arrivals[*task], due - arrivals[*task]);
            }
        }
        Self {
            passed: passed.len(),
            left,
            starved: 1_000 - left - passed.len(),
            out_of_order: passed.windows(2).filter(|pair| pair[0].0 > pair[1].0).count(),
            acquired: served,
            charged: bench.charged() - drained,
            longest,
            ideal,
            latest,
        }
    }
}

/// A fifth of the waiters, each with the instant at which it leaves: any between its arrival and
/// three quarters of the time that serving all before it would take, so that few have passed.
fn partings(rng: &mut Rng, arrivals: &[u64], costs: &[u64]) -> Vec<(u64, usize)> {
    let mut partings = Vec::new();
    let mut before = 0;
    for (waiter, (arrival, cost)) in arrivals.iter().zip(costs).enumerate() {
        before += cost;
        let due = before * SECOND / Crowd::RATE;
        let patience = (due * 3 / 4).saturating_sub(*arrival);
        if rng.below(5) == 0 && patience > 0 {
            partings.push((arrival + rng.below(patience), waiter));
        }
    }
    partings
}

// --- too late, or not --------------------------------------------------------------------------

/// A full limit with a queue of `ahead` waiters of cost 1 before it: when the next one's turn comes
/// at the earliest, counted from now.
const QUEUES: &[(&str, u64, u64)] = &[
    // An empty bucket of 5 at 5/s: one turn every 200 ms.
    ("5/s burst 5", 0, 200_000),
    ("5/s burst 5", 1, 400_000),
    ("5/s burst 5", 4, 1_000_000),
    ("5/s burst 5", 5, 1_200_000),
    ("5/s burst 5", 23, 4_800_000),
    // The test begins 0.25 s into a window; five pass at the start of each.
    ("fixed-window 5/s", 0, 750_000),
    ("fixed-window 5/s", 4, 750_000),
    ("fixed-window 5/s", 5, 1_750_000),
    ("fixed-window 5/s", 9, 1_750_000),
    ("fixed-window 5/s", 10, 2_750_000),
    ("fixed-window 5/s", 23, 4_750_000),
    // Windows begin with the charge that filled the first.
    ("fixed-window 5/s first-hit", 4, 1_000_000),
    ("fixed-window 5/s first-hit", 5, 2_000_000),
    ("fixed-window 5/s first-hit", 23, 5_000_000),
    // All five entries leave together, and so do the next five.
    ("sliding-log 5/s", 0, 1_000_000),
    ("sliding-log 5/s", 4, 1_000_000),
    ("sliding-log 5/s", 5, 2_000_000),
    ("sliding-log 5/s", 9, 2_000_000),
    ("sliding-log 5/s", 10, 3_000_000),
    ("sliding-log 5/s", 23, 5_000_000),
];

#[test]
fn a_turn_that_cannot_come_in_time_is_refused_at_once() {
    let mut late = Vec::new();
    for &(notation, ahead, earliest) in QUEUES {
        let bench = Bench::new(notation);
        bench.drain("k");
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        for _ in 0..ahead {
            driver.start(bench.acquire("k", 1, HOUR));
        }
        let charged = bench.charged();
        // One microsecond of waiting would be needed more than there is, on the limit's tick.
        let hurried = driver.start(bench.acquire("k", 1, Duration::from_micros(earliest - 2)));
        driver.settle();
        match driver.answer(hurried) {
            Some(Err(Limited::Denied(decision))) => {
                let wait = decision.retry_after().span().unwrap().get();
                let told = (earliest - 2..=earliest).contains(&wait);
                if !told {
                    late.push(format!("{notation}, {ahead} ahead: told {wait}, true {earliest}"));
                }
            }
            Some(other) => panic!("{notation}, {ahead} ahead: {other:?}"),
            None => late.push(format!("{notation}, {ahead} ahead: let wait for {earliest}")),
        }
        assert_eq!(bench.charged(), charged, "{notation}, {ahead} ahead");
    }
    say(&format!(
        "waiting: {} queues, hopeless waiters refused at once {}, not {}",
        QUEUES.len(),
        QUEUES.len() - late.len(),
        late.len()
    ));
    assert!(late.is_empty(), "{late:#?}");
}

#[test]
fn a_turn_that_comes_just_in_time_is_not_refused() {
    for &(notation, ahead, earliest) in QUEUES {
        let bench = Bench::new(notation);
        bench.drain("k");
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        for _ in 0..ahead {
            driver.start(bench.acquire("k", 1, HOUR));
        }
        // The turn itself comes with the last of those ahead, at the very same instant.
        let patient = driver.start(bench.acquire("k", 1, Duration::from_micros(earliest + 1)));
        driver.run_until_idle();
        assert_eq!(
            driver.passed().last(),
            Some(&(patient, bench.start + earliest)),
            "{notation}, {ahead} ahead: {:?}",
            driver.answer(patient)
        );
    }
}

#[test]
fn a_turn_at_the_very_deadline_is_in_time_at_the_head_of_the_queue() {
    for notation in ["1/s burst 1", "fixed-window 1/s first-hit", "sliding-log 1/s"] {
        let bench = Bench::new(notation);
        bench.drain("k");
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        let exact = driver.start(bench.acquire("k", 1, Duration::from_secs(1)));
        driver.run_until_idle();
        assert_eq!(driver.passed(), [(exact, bench.start + SECOND)], "{notation}");
    }
}

#[test]
fn without_time_to_wait_it_is_a_check() {
    let bench = Bench::new("5/s burst 1");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let first = driver.start(bench.acquire("k", 1, Duration::ZERO));
    let second = driver.start(bench.acquire("k", 1, Duration::ZERO));
    driver.settle();
    assert!(matches!(driver.answer(first), Some(Ok(decision)) if decision.allowed()));
    assert_eq!(outcome(driver.answer(second)), Some(Outcome::RetryAfter(Micros::new(200_000))));
    assert_eq!(bench.charged(), 1);
}

#[test]
fn a_cost_larger_than_the_limit_is_denied_at_once_at_the_head() {
    let bench = Bench::new("5/s burst 5");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let huge = driver.start(bench.acquire("k", 6, HOUR));
    driver.settle();
    assert_eq!(outcome(driver.answer(huge)), Some(Outcome::Never));
    assert_eq!(bench.charged(), 0);
}

#[test]
fn a_cost_larger_than_the_limit_is_denied_at_once_behind_others() {
    let bench = Bench::new("5/s burst 5");
    bench.drain("k");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    driver.start(bench.acquire("k", 1, HOUR));
    let huge = driver.start(bench.acquire("k", 6, HOUR));
    driver.settle();
    assert_eq!(outcome(driver.answer(huge)), Some(Outcome::Never), "it waits instead");
}

#[test]
fn a_cost_larger_than_the_limit_makes_nobody_behind_it_too_late() {
    let bench = Bench::new("5/s burst 5");
    bench.drain("k");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    driver.start(bench.acquire("k", 1, HOUR));
    driver.start(bench.acquire("k", 100, HOUR));
    let next = driver.start(bench.acquire("k", 1, Duration::from_secs(1)));
    driver.run_until_idle();
    let passed = driver.passed();
    assert_eq!(passed.last(), Some(&(next, bench.start + 400_000)), "{:?}", driver.answer(next));
}

// --- leaving -----------------------------------------------------------------------------------

#[test]
fn a_waiter_dropped_after_any_number_of_polls_leaves_no_trace() {
    let mut points = 0;
    for notation in [
        "1/s burst 1",
        "fixed-window 1/s",
        "sliding-log 1/s",
        "leaky-bucket 1/s capacity 1 queue",
        "leaky-bucket 1/s capacity 3 queue",
    ] {
        for pauses in [None, Some(0), Some(1), Some(3)] {
            // Before it in the queue: nobody, one, or two; behind it: one.
            for ahead in 0..3 {
                points += drop_everywhere(notation, pauses, ahead);
            }
        }
    }
    say(&format!("waiting: dropped at {points} await points, permits leaked 0, queues stuck 0"));
}

/// Drops one of several waiters after 1, 2, 3, .. polls until it finishes before that. Returns at
/// how many points it was dropped.
fn drop_everywhere(notation: &str, pauses: Option<u32>, ahead: usize) -> u64 {
    for polls in 1.. {
        let what = format!("{notation}, {pauses:?}, {ahead} ahead, dropped after {polls} polls");
        let bench = Bench::pausing(notation, pauses);
        bench.drain("k");
        let drained = bench.charged();
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        for _ in 0..ahead {
            driver.start(bench.acquire("k", 1, HOUR));
        }
        let leaver = driver.start(bench.acquire("k", 1, HOUR));
        driver.start(bench.acquire("k", 1, HOUR));
        driver.drop_after(leaver, polls);
        driver.run_until_idle();

        let finished = driver.answer(leaver).is_some();
        let passed = driver.passed().len();
        assert_eq!(passed, ahead + 1 + usize::from(finished), "{what}");
        assert_eq!(bench.charged() - drained, passed as u64, "{what}");
        assert_eq!(bench.clock.next_wake(), None, "{what}: somebody still sleeps");
        // Nobody is left in the queue: with a permit free, one without patience passes.
        bench.clock.advance(Duration::from_secs(10));
        let next = driver.start(bench.acquire("k", 1, Duration::from_millis(1)));
        driver.run_until_idle();
        assert!(matches!(driver.answer(next), Some(Ok(_))), "{what}: {:?}", driver.answer(next));
        if finished {
            return polls - 1;
        }
    }
    0
}

#[test]
fn a_hundred_thousand_waiters_dropped_in_any_order_charge_nothing() {
    let mut rng = Rng::new(11);
    let bench = Bench::new("1/h burst 1");
    bench.drain("k");
    let drained = bench.charged();
    for round in 0..1_000 {
        let mut driver = Driver::new(&bench, PollOrder::Random(round));
        for _ in 0..100 {
            driver.start(bench.acquire("k", 1, 48 * HOUR * 100));
        }
        let mut waiting: Vec<usize> = (0..100).collect();
        while !waiting.is_empty() {
            let leaver = rng.below(waiting.len() as u64) as usize;
            assert!(driver.cancel(waiting.swap_remove(leaver)));
            // Whoever this calls to the head has a poll to find out that it is.
            if rng.below(2) == 0 {
                driver.settle();
            }
        }
    }
    let charged = bench.charged() - drained;
    assert_eq!(bench.clock.next_wake(), None, "somebody still sleeps");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    driver.start(bench.acquire("k", 1, HOUR));
    driver.run_until_idle();
    assert_eq!(driver.passed(), [(0, bench.start + 3_600 * SECOND)]);
    say(&format!("waiting: 100000 dropped in random order, charged {charged}, queues stuck 0"));
    assert_eq!(charged, 0);
}

#[test]
fn when_the_head_leaves_the_next_takes_its_permit() {
    let bench = Bench::new("1/s burst 5");
    bench.drain("k");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let head = driver.start(bench.acquire("k", 5, HOUR));
    let next = driver.start(bench.acquire("k", 1, HOUR));
    driver.settle();
    bench.clock.advance(Duration::from_secs(3));
    driver.settle();
    assert!(driver.passed().is_empty());
    assert!(driver.cancel(head));
    driver.settle();
    assert_eq!(driver.passed(), [(next, bench.start + 3 * SECOND)]);
}

// --- turns given by a queue --------------------------------------------------------------------

#[test]
fn a_queue_limit_spaces_starts_by_its_rate() {
    let bench = Bench::new("leaky-bucket 10/s capacity 50 queue");
    let mut driver = Driver::new(&bench, PollOrder::Random(3));
    for _ in 0..40 {
        driver.start(bench.acquire("k", 1, HOUR));
    }
    driver.run_until_idle();
    let due: Vec<_> = (0..40).map(|k| (k, bench.start + k as u64 * SECOND / 10)).collect();
    assert_eq!(driver.passed(), due);
    say("waiting: leaky-bucket 10/s queue, 40 starts spaced by 100000 us, 0 early, 0 late");
}

#[test]
fn a_turn_beyond_the_timeout_is_not_taken() {
    let bench = Bench::new("leaky-bucket 1/s capacity 50 queue");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    for _ in 0..3 {
        driver.start(bench.acquire("k", 1, HOUR));
    }
    let hurried = driver.start(bench.acquire("k", 1, Duration::from_millis(2_999)));
    let patient = driver.start(bench.acquire("k", 1, Duration::from_secs(3)));
    driver.settle();
    let retry = Outcome::RetryAfter(Micros::from_secs(3));
    assert_eq!(outcome(driver.answer(hurried)), Some(retry));
    driver.run_until_idle();
    assert_eq!(driver.passed().last(), Some(&(patient, bench.start + 3 * SECOND)));
    assert_eq!(bench.charged(), 4);
}

#[test]
fn a_turn_beyond_the_timeout_is_not_taken_when_rules_are_named() {
    let bench = Bench::new("leaky-bucket 1/s capacity 50 queue");
    let asks = [Ask::new(Limiter::DEFAULT_RULE, "k")];
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    driver.start(bench.acquire("k", 3, HOUR));
    let hurried =
        driver.start(Box::pin(bench.limiter.check_each(&asks).wait(Duration::from_secs(1))));
    driver.settle();
    let retry = Outcome::RetryAfter(Micros::from_secs(3));
    assert_eq!(
        outcome(driver.answer(hurried)),
        Some(retry),
        "it took a turn 2 s after its timeout"
    );
    assert_eq!(bench.charged(), 3);
}

#[test]
fn a_full_queue_gives_no_turn_beyond_the_timeout() {
    // Its turns are at 0, 1 and 2 s; the next one, at 3 s, is free to take from 1 s on.
    for (timeout, passes_at) in [(2_000, None), (2_999, None), (3_000, Some(3 * SECOND))] {
        let bench = Bench::new("leaky-bucket 1/s capacity 3 queue");
        for _ in 0..3 {
            assert!(bench.limiter.check_now("k").unwrap().allowed());
        }
        let taken = bench.charged();
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        driver.start(bench.acquire("k", 1, Duration::from_millis(timeout)));
        driver.run_until_idle();
        let passed: Vec<_> = passes_at.map(|at| (0, bench.start + at)).into_iter().collect();
        assert_eq!(driver.passed(), passed, "timeout {timeout} ms");
        assert_eq!(bench.charged() - taken, passed.len() as u64, "timeout {timeout} ms");
    }
}

#[test]
fn a_turn_that_others_took_meanwhile_is_not_awaited_beyond_the_timeout() {
    let bench = Bench::new("leaky-bucket 1/s capacity 50 queue");
    assert!(bench.limiter.check_now("k").unwrap().allowed());
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let waiter = driver.start(bench.acquire("k", 1, Duration::from_millis(1_500)));
    driver.settle();
    // A plain check does not stand in line.
    bench.clock.advance(Duration::from_millis(500));
    for _ in 0..3 {
        assert!(bench.limiter.check_now("k").unwrap().allowed());
    }
    let taken = bench.charged();
    driver.run_until_idle();
    if let Some((_, at)) = driver.passed().first() {
        let late = at - bench.start;
        assert!(late <= 1_500_000, "it passed after {late} us with 1500000 us to wait");
    }
    let passed = u64::from(matches!(driver.answer(waiter), Some(Ok(_))));
    assert_eq!(bench.charged() - taken, passed);
}

#[test]
fn a_waiter_dropped_after_it_waited_for_room_in_a_queue_charges_nothing() {
    let bench = Bench::new("leaky-bucket 1/s capacity 3 queue");
    for _ in 0..3 {
        assert!(bench.limiter.check_now("k").unwrap().allowed());
    }
    let taken = bench.charged();
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let leaver = driver.start(bench.acquire("k", 1, HOUR));
    driver.settle();
    bench.clock.advance(Duration::from_millis(1_500));
    driver.settle();
    assert!(driver.cancel(leaver), "its turn is at 3 s");
    assert_eq!(bench.charged(), taken);
}

#[test]
fn a_queue_limit_gives_the_same_answer_again_under_the_same_id() {
    let bench = Bench::new("leaky-bucket 1/s capacity 50 queue");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let first = driver.start(Box::pin(bench.limiter.check("k").once("id").wait(HOUR)));
    let again = driver.start(Box::pin(bench.limiter.check("k").once("id").wait(HOUR)));
    driver.run_until_idle();
    let decision = |task| match driver.answer(task) {
        Some(Ok(decision)) => decision,
        other => panic!("{other:?}"),
    };
    assert_eq!(decision(first).verdicts, decision(again).verdicts);
    assert!(decision(again).repeated());
}

#[test]
fn a_waiter_dropped_before_the_turn_it_was_given_charges_nothing() {
    let bench = Bench::new("leaky-bucket 1/s capacity 50 queue");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    driver.start(bench.acquire("k", 1, HOUR));
    let leaver = driver.start(bench.acquire("k", 1, HOUR));
    driver.settle();
    assert!(driver.cancel(leaver), "its turn is in a second");
    let next = driver.start(bench.acquire("k", 1, HOUR));
    driver.run_until_idle();
    let free_turn = bench.start + SECOND;
    assert_eq!(driver.passed().last(), Some(&(next, free_turn)), "the turn was lost");
}

// --- a clock that steps back -------------------------------------------------------------------

#[test]
fn a_timeout_ends_in_time_though_the_clock_steps_back_meanwhile() {
    let steps = [Duration::from_secs(1), Duration::from_secs(60), HOUR, 8_760 * HOUR];
    for (notation, ahead) in [
        ("1/s burst 1", 0),
        ("1/s burst 1", 1),
        ("fixed-window 1/s", 0),
        ("sliding-log 1/s", 0),
        ("sliding-log 1/s", 1),
        ("leaky-bucket 1/s capacity 2 queue", 0),
    ] {
        for step in steps {
            let bench = Bench::new(notation);
            bench.drain("k");
            let mut driver = Driver::new(&bench, PollOrder::AsWoken);
            for _ in 0..ahead {
                driver.start(bench.acquire("k", 1, HOUR));
            }
            let waiter = driver.start(bench.acquire("k", 1, Duration::from_secs(2)));
            driver.settle();
            assert!(driver.answer(waiter).is_none(), "{notation}: it waits");
            bench.clock.set(bench.clock.now().saturating_sub(step.into()));
            driver.settle();
            for _ in 0..20 {
                bench.clock.advance(Duration::from_millis(100));
                driver.settle();
            }
            let ended = driver.answer(waiter).is_some();
            assert!(ended, "{notation}, {ahead} ahead, a step back by {step:?}: it still waits");
        }
    }
}

// --- given back --------------------------------------------------------------------------------

type Change = fn(&Limiter);
type End = fn(Reservation);

/// What one may do to a limiter, so that somebody who waits for 10 of its 10 can pass at once.
const GIVEN_BACK: [(&str, Change); 4] = [
    ("refund", |limiter| drop(limiter.refund("k", 10).now().unwrap())),
    ("reset", |limiter| drop(limiter.reset("k").now().unwrap())),
    ("awaited reset", |limiter| drop(ready(limiter.reset("k")).unwrap())),
    ("raised limit", |limiter| {
        let old = limiter.rules()[0].limits()[0].limit().to_string();
        let twenty = limit(&old.replace("10/", "20/"));
        limiter.set_limit(twenty).unwrap();
    }),
];

const TEN_AN_HOUR: [&str; 5] =
    ["10/h", "fixed-window 10/h", "sliding-log 10/h", "sliding-window 10/h", "leaky-bucket 10/h"];

#[test]
fn whoever_waits_hears_of_what_is_given_back_and_does_not_sleep_on() {
    for notation in TEN_AN_HOUR {
        for (what, give_back) in GIVEN_BACK {
            let bench = Bench::new(notation);
            bench.drain("k");
            let mut driver = Driver::new(&bench, PollOrder::AsWoken);
            let first = driver.start(bench.acquire("k", 5, 10 * HOUR));
            let second = driver.start(bench.acquire("k", 5, 10 * HOUR));
            driver.settle();
            bench.clock.advance(Duration::from_secs(1));
            driver.settle();
            assert!(driver.passed().is_empty(), "{notation}: both wait");
            give_back(&bench.limiter);
            driver.settle();
            let now = bench.start + SECOND;
            assert_eq!(driver.passed(), [(first, now), (second, now)], "{notation}, {what}");
        }
    }
}

#[test]
fn whoever_waits_hears_of_a_reservation_that_ends_without_a_charge() {
    let ends: [(&str, End); 3] = [
        ("cancelled", |reservation| drop(ready(reservation.cancel()).unwrap())),
        ("dropped", |reservation| drop(reservation)),
        ("committed for less", |reservation| drop(ready(reservation.commit(5)).unwrap())),
    ];
    for notation in TEN_AN_HOUR {
        for (how, end) in ends {
            let bench = Bench::new(notation);
            let reservation = ready(bench.limiter.reserve("k", 10)).unwrap();
            let mut driver = Driver::new(&bench, PollOrder::AsWoken);
            let waiter = driver.start(bench.acquire("k", 5, HOUR));
            driver.settle();
            assert!(driver.passed().is_empty(), "{notation}: it waits");
            end(reservation);
            driver.settle();
            assert_eq!(driver.passed(), [(waiter, bench.start)], "{notation}, {how}");
        }
    }
}

#[test]
fn whoever_waits_for_a_turn_hears_of_an_earlier_one() {
    // Only resets: those who came before keep their turns, but for the last, whatever the limit.
    for (what, give_back) in &GIVEN_BACK[1..3] {
        let bench = Bench::new("leaky-bucket 10/h capacity 10 queue");
        for _ in 0..5 {
            assert!(bench.limiter.check_now("k").unwrap().allowed());
        }
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        let waiter = driver.start(bench.acquire("k", 1, HOUR));
        driver.settle();
        assert!(driver.passed().is_empty(), "its turn is in half an hour");
        give_back(&bench.limiter);
        driver.settle();
        assert_eq!(driver.passed(), [(waiter, bench.start)], "{what}");
    }
}

// --- ids and refusals --------------------------------------------------------------------------

#[test]
fn an_id_that_was_charged_gets_its_answer_again_however_many_wait() {
    for ahead in [0, 1, 5] {
        let bench = Bench::new("2/m burst 2");
        let limiter = &bench.limiter;
        let first = limiter.check("k").once("id").now().unwrap();
        assert!(limiter.check_now("k").unwrap().allowed());
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        for _ in 0..ahead {
            driver.start(bench.acquire("k", 1, HOUR));
        }
        let charged = bench.charged();
        for timeout in [Duration::ZERO, Duration::from_secs(1), HOUR] {
            let again = driver.start(Box::pin(limiter.check("k").once("id").wait(timeout)));
            match driver.answer(again) {
                Some(Ok(decision)) => {
                    assert_eq!(decision.verdicts, first.verdicts, "{ahead} ahead, {timeout:?}");
                    assert!(decision.repeated(), "{ahead} ahead, {timeout:?}");
                }
                other => panic!("{ahead} ahead, {timeout:?}: {other:?}"),
            }
        }
        assert_eq!(bench.charged(), charged, "{ahead} ahead");
    }
}

#[test]
fn an_id_that_comes_back_for_its_turn_does_not_pass_before_it() {
    let bench = Bench::new("leaky-bucket 1/s capacity 50 queue");
    assert!(bench.limiter.check_now("k").unwrap().allowed());
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let ask = || Box::pin(bench.limiter.check("k").once("id").wait(HOUR));
    let leaver = driver.start(ask());
    driver.settle();
    assert!(driver.cancel(leaver), "its turn is in a second");
    let again = driver.start(ask());
    driver.run_until_idle();
    match driver.passed()[..] {
        [(task, at)] => {
            assert_eq!(task, again);
            assert!(at >= bench.start + SECOND, "{} us early", bench.start + SECOND - at);
        }
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn only_a_check_can_wait() {
    let bench = Bench::new("1/s");
    let asks = [Ask::new(Limiter::DEFAULT_RULE, "k")];
    let limiter = &bench.limiter;
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    for asking in [
        limiter.check("k").peek(),
        limiter.check("k").cost(5).peek(),
        limiter.check("k").peek().once("id"),
        limiter.check_each(&asks).peek(),
    ] {
        let refused = driver.start(Box::pin(asking.wait(HOUR)));
        match driver.answer(refused) {
            Some(Err(Limited::NoAnswer(error))) => {
                assert_eq!(error.refusal(), Some(&Refusal::OnlyChecksWait), "{asking:?}");
            }
            other => panic!("{asking:?}: {other:?}"),
        }
    }
    let waits = driver.start(Box::pin(limiter.check_each(&asks).wait(HOUR)));
    assert!(matches!(driver.answer(waits), Some(Ok(_))));
}

// --- the system's clock ------------------------------------------------------------------------

#[tokio::test]
async fn with_the_system_clock_it_really_waits() {
    let limiter = Limiter::new(Memory::default(), limit("20/s burst 1"));
    let start = SystemClock.now();
    let timeout = Duration::from_secs(5);
    let mut waiters = Vec::new();
    for _ in 0..7 {
        let limiter = limiter.clone();
        waiters.push(tokio::spawn(async move {
            let answer = limiter.acquire("k", timeout).await;
            (answer.is_ok(), SystemClock.now().saturating_sub(start).get())
        }));
    }
    let mut passed = Vec::new();
    for waiter in waiters {
        passed.push(waiter.await.unwrap());
    }
    let hopeless = limiter.acquire("k", Duration::from_millis(10)).await;
    let refused_at = SystemClock.now().saturating_sub(start).get();

    // The first passes at once and each one after that 50 ms later, never earlier.
    for (k, (allowed, at)) in (0_u64..).zip(&passed) {
        assert!(*allowed);
        assert!(*at >= k * 50_000, "the {k}th passed after {at} us");
    }
    let last = passed.iter().map(|(_, at)| *at).max().unwrap();
    assert!(last < SECOND, "300 ms were due, it took {last} us");
    assert!(matches!(hopeless, Err(Limited::Denied(_))));
    say(&format!(
        "waiting: system clock, 7 at 20/s: 300000 us due, {last} us taken, 0 early; one with too \
         little time refused {} us later",
        refused_at - last
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn waiters_on_eight_threads_of_whom_a_fifth_leaves_lose_no_permit_and_no_wake_up() {
    let memory = Memory::default();
    let log = Arc::new(Mutex::new(Vec::new()));
    let engine = Logging { memory, log: log.clone(), pauses: None };
    let limiter = Limiter::new(engine, limit("2000/s burst 20"));
    let mut rng = Rng::new(1);
    let mut waiters = Vec::new();
    for _ in 0..600 {
        let limiter = limiter.clone();
        waiters.push(tokio::spawn(async move { limiter.acquire("k", HOUR).await.is_ok() }));
    }
    for waiter in waiters.iter().filter(|_| rng.below(5) == 0) {
        tokio::task::yield_now().await;
        waiter.abort();
    }
    let (mut acquired, mut left) = (0, 0);
    for waiter in waiters {
        // A lost wake-up would be a wait of an hour.
        match tokio::time::timeout(Duration::from_secs(20), waiter).await.unwrap() {
            Ok(passed) => acquired += u64::from(passed),
            Err(aborted) => left += u64::from(aborted.is_cancelled()),
        }
    }
    let charged: u64 = log.lock().unwrap().iter().sum();
    say(&format!(
        "waiting: 600 on 8 threads at 2000/s, {left} left, acquired {acquired}, charged {charged}"
    ));
    assert_eq!(acquired + left, 600);
    assert_eq!(charged, acquired);
}

// --- the bench ---------------------------------------------------------------------------------

/// A limiter over a memory engine, with a clock to turn and a log of all that was charged.
struct Bench {
    clock: ManualClock,
    limiter: Limiter,
    log: Arc<Mutex<Vec<u64>>>,
    start: u64,
}

impl Bench {
    fn new(notation: &str) -> Self {
        Self::pausing(notation, None)
    }

    /// With an engine that is polled in vain a number of times before it decides, or that answers
    /// at once.
    fn pausing(notation: &str, pauses: Option<u32>) -> Self {
        // A quarter into a second, so that aligned windows do not begin with the test.
        let start = 1_700_000_000 * SECOND + SECOND / 4;
        let clock = ManualClock::new(Micros::new(start));
        let log = Arc::new(Mutex::new(Vec::new()));
        let memory = Memory::builder().clock(clock.clone()).build();
        let engine = Logging { memory, log: log.clone(), pauses };
        let rule = Rule::new(Limiter::DEFAULT_RULE, [limit(notation)]).unwrap();
        Self { clock, limiter: Limiter::with_rules(engine, [rule]).unwrap(), log, start }
    }

    /// Uses up what `key` has now.
    fn drain(&self, key: &str) {
        let capacity = self.limiter.rules()[0].limits()[0].limit().capacity();
        let mut driver = Driver::new(self, PollOrder::AsWoken);
        let all = driver.start(self.acquire(key, capacity, Duration::ZERO));
        driver.settle();
        assert!(matches!(driver.answer(all), Some(Ok(_))));
    }

    fn acquire<'a>(&'a self, key: &'a str, cost: u64, timeout: Duration) -> Acquire<'a> {
        Box::pin(self.limiter.check(key).cost(cost).wait(timeout))
    }

    fn now(&self) -> u64 {
        self.clock.now().get()
    }

    /// All permits charged so far, by the log.
    fn charged(&self) -> u64 {
        self.log.lock().unwrap().iter().sum()
    }
}

type Acquire<'a> = Pin<Box<dyn Future<Output = Result<Decision, Limited>> + Send + 'a>>;

/// Keeps the cost of every check that the engine inside has allowed.
struct Logging {
    memory: Memory,
    log: Arc<Mutex<Vec<u64>>>,
    pauses: Option<u32>,
}

impl Logging {
    fn decide_and_log(&self, call: Call<'_>) -> Result<Decision, tidegate::EngineError> {
        let answer = self.memory.decide(call).now();
        if call.op == Op::Check && answer.as_ref().is_ok_and(Decision::allowed) {
            self.log.lock().unwrap().push(call.charges[0].cost.get());
        }
        answer
    }
}

impl Engine for Logging {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        let Some(mut pauses) = self.pauses else {
            return Answer::Ready(self.decide_and_log(call));
        };
        Answer::Later(Box::pin(std::future::poll_fn(move |cx| {
            if pauses == 0 {
                return Poll::Ready(self.decide_and_log(call));
            }
            pauses -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        })))
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        self.memory.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

// --- the driver --------------------------------------------------------------------------------

/// In which order tasks that were woken together are polled. Executors promise none.
#[derive(Clone, Copy, Debug)]
enum PollOrder {
    AsWoken,
    LastFirst,
    Random(u64),
}

/// Polls tasks that were woken, and no others; turns the clock when all of them wait.
struct Driver<'a> {
    bench: &'a Bench,
    tasks: Vec<Task<'a>>,
    passed: Vec<(usize, u64)>,
    woken: Arc<Mutex<Vec<usize>>>,
    order: PollOrder,
    rng: Rng,
}

struct Task<'a> {
    future: Option<Acquire<'a>>,
    answer: Option<Result<Decision, Limited>>,
    waker: Arc<Bell>,
    polls_left: Option<u64>,
}

/// Wakes one task of a driver, and counts how often.
struct Bell {
    task: usize,
    woken: Arc<Mutex<Vec<usize>>>,
    rings: AtomicUsize,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rings.fetch_add(1, Ordering::Relaxed);
        let mut woken = self.woken.lock().unwrap();
        if !woken.contains(&self.task) {
            woken.push(self.task);
        }
    }
}

impl<'a> Driver<'a> {
    fn new(bench: &'a Bench, order: PollOrder) -> Self {
        let seed = if let PollOrder::Random(seed) = order { seed } else { 0 };
        Self {
            bench,
            tasks: Vec::new(),
            passed: Vec::new(),
            woken: Arc::default(),
            order,
            rng: Rng::new(seed),
        }
    }

    /// Adds a task and polls it once, as it would be on arrival: places in the queue are taken by
    /// the first poll.
    fn start(&mut self, future: Acquire<'a>) -> usize {
        let task = self.tasks.len();
        let bell = Bell { task, woken: self.woken.clone(), rings: AtomicUsize::new(0) };
        self.tasks.push(Task {
            future: Some(future),
            answer: None,
            waker: Arc::new(bell),
            polls_left: None,
        });
        self.poll(task);
        task
    }

    /// Drops the task once it has been polled `polls` times, the first included.
    fn drop_after(&mut self, task: usize, polls: u64) {
        self.tasks[task].polls_left = Some(polls - 1);
        if polls == 1 {
            self.cancel(task);
        }
    }

    /// Drops the task; `false` if it was done.
    fn cancel(&mut self, task: usize) -> bool {
        self.tasks[task].future.take().is_some()
    }

    /// Polls whatever is woken until nothing is. The clock stands still.
    fn settle(&mut self) {
        loop {
            let task = {
                let mut woken = self.woken.lock().unwrap();
                if woken.is_empty() {
                    return;
                }
                let last = woken.len() - 1;
                match self.order {
                    PollOrder::AsWoken => woken.remove(0),
                    PollOrder::LastFirst => woken.remove(last),
                    PollOrder::Random(_) => {
                        woken.swap_remove(self.rng.below(last as u64 + 1) as usize)
                    }
                }
            };
            self.poll(task);
        }
    }

    /// Turns the clock from one waking to the next until nobody sleeps.
    fn run_until_idle(&mut self) {
        self.settle();
        while let Some(at) = self.bench.clock.next_wake() {
            self.bench.clock.set(at);
            self.settle();
        }
    }

    fn poll(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        let Some(future) = &mut task.future else { return };
        let waker = Waker::from(task.waker.clone());
        if let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            if answer.is_ok() {
                self.passed.push((index, self.bench.now()));
            }
            task.answer = Some(answer);
            task.future = None;
        } else if let Some(polls_left) = &mut task.polls_left {
            *polls_left = polls_left.saturating_sub(1);
            if *polls_left == 0 {
                task.future = None;
            }
        }
    }

    fn answer(&self, task: usize) -> Option<&Result<Decision, Limited>> {
        self.tasks[task].answer.as_ref()
    }

    /// Who passed and when, in this order.
    fn passed(&self) -> Vec<(usize, u64)> {
        self.passed.clone()
    }
}

fn outcome(answer: Option<&Result<Decision, Limited>>) -> Option<Outcome> {
    match answer? {
        Ok(decision) => Some(decision.outcome()),
        Err(Limited::Denied(decision)) => Some(decision.outcome()),
        Err(Limited::NoAnswer(error)) => panic!("{error}"),
    }
}

fn limit(notation: &str) -> Limit {
    notation.parse().unwrap()
}

/// Prints a figure past the harness, which captures what goes through `eprintln!`.
fn say(figure: &str) {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "{figure}").unwrap();
}
