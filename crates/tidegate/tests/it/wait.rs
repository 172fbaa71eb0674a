//! Waiting for permits: order, bounds, cancellation. The clock is manual, and every future is
//! polled by hand, so each run is the same and nothing sleeps.
//!
//! Charges are read from a log of every call that reached the engine, kept by a wrapper around it.
//! The limiter's own counters are not used.

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::policy::ListMode;
use tidegate::{
    Call, Clock, Decision, Engine, EngineFuture, Expiry, Health, HoldId, Inspection, Key, Limit,
    Limited, Limiter, ManualClock, Memory, Micros, Op, Outcome, Refusal, Reservation, Rule,
    RuleCheck, RuleLimit, SystemClock,
};
use tidegate_model::TraceRng;

use testkit::now_or_never::now_or_panic;

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: u64 = 1_000_000;

// --- order -------------------------------------------------------------------------------------

#[test]
fn waiters_pass_in_the_order_of_their_arrival() {
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
fn a_later_waiter_with_a_smaller_cost_does_not_overtake() {
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
fn a_thousand_waiters_of_which_a_fifth_is_dropped_pass_in_order_and_on_time() {
    for seed in 0..5 {
        let waiters = WaiterStats::run(seed);
        assert_eq!(waiters.starved, 0, "seed {seed}");
        assert_eq!(waiters.out_of_order, 0, "seed {seed}");
        let WaiterStats { longest, ideal, latest, .. } = waiters;
        assert!(longest * 10 <= ideal * 11, "seed {seed}: {longest} us where {ideal} us were due");
        assert!(latest <= WaiterStats::LARGEST_COST_TAKES, "seed {seed}: {latest} us late");
        assert_eq!(waiters.charged, waiters.acquired, "seed {seed}");
        if seed == 0 {
            let WaiterStats { passed, dropped, acquired, charged, .. } = waiters;
            print_figure(&format!(
                "waiting: 1000 waiters of cost 1..5 at 100/s, {dropped} dropped, {passed} passed, \
                 starved 0, out of order 0, longest wait {longest} us where {ideal} us were due, \
                 at most {latest} us late, acquired {acquired}, charged {charged}"
            ));
        }
    }
}

/// Results of a thousand waiters.
struct WaiterStats {
    passed: usize,
    dropped: usize,
    starved: usize,
    out_of_order: usize,
    /// Permits that callers acquired, by their results.
    acquired: u64,
    /// Permits that were charged, by the engine's log.
    charged: u64,
    /// The longest wait, and its ideal length: all permits before it at the limit's rate.
    longest: u64,
    ideal: u64,
    /// The largest delay of a waiter beyond its ideal wait.
    latest: u64,
}

impl WaiterStats {
    const RATE: u64 = 100;
    /// Waiters behind a head that is dropped have waited for it in vain, at most as long as its
    /// permits take.
    const LARGEST_COST_TAKES: u64 = 5 * SECOND / Self::RATE;

    /// All arrive within a second at an empty bucket. So the ideal is simple: from the first
    /// arrival on, the queue is served at the rate, in order, without a gap.
    fn run(seed: u64) -> Self {
        let mut rng = TraceRng::new(seed);
        let bench = Bench::new("100/s burst 5");
        bench.drain("k");
        let drained = bench.charged();
        let mut driver = Driver::new(&bench, PollOrder::Random(seed));

        let mut arrivals: Vec<u64> = (0..1_000).map(|_| rng.below(SECOND)).collect();
        arrivals.sort_unstable();
        arrivals[0] = 0;
        let costs: Vec<u64> = (0..1_000).map(|_| 1 + rng.below(5)).collect();
        let mut drops = drops(&mut rng, &arrivals, &costs);
        drops.sort_unstable();

        let mut dropped = 0;
        let (mut next, mut next_drop) = (0, 0);
        loop {
            let now = bench.now() - bench.start;
            while next < arrivals.len() && arrivals[next] <= now {
                driver.start(bench.acquire("k", costs[next], HOUR));
                next += 1;
            }
            while next_drop < drops.len() && drops[next_drop].0 <= now {
                let (_, task) = drops[next_drop];
                dropped += usize::from(task < next && driver.cancel(task));
                next_drop += 1;
            }
            driver.settle();
            let arrival = arrivals.get(next).copied();
            let dropped_at = drops.get(next_drop).map(|(at, _)| *at);
            let wake = bench.clock.next_wake().map(|at| at.get() - bench.start);
            match [arrival, dropped_at, wake].into_iter().flatten().min() {
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
            dropped,
            starved: 1_000 - dropped - passed.len(),
            out_of_order: passed.windows(2).filter(|pair| pair[0].0 > pair[1].0).count(),
            acquired: served,
            charged: bench.charged() - drained,
            longest,
            ideal,
            latest,
        }
    }
}

/// A fifth of the waiters, each with the instant at which it is dropped. The instant lies between
/// its arrival and three quarters of the time for all waiters before it, so that few have passed.
fn drops(rng: &mut TraceRng, arrivals: &[u64], costs: &[u64]) -> Vec<(u64, usize)> {
    let mut drops = Vec::new();
    let mut before = 0;
    for (waiter, (arrival, cost)) in arrivals.iter().zip(costs).enumerate() {
        before += cost;
        let due = before * SECOND / WaiterStats::RATE;
        let max_wait = (due * 3 / 4).saturating_sub(*arrival);
        if rng.below(5) == 0 && max_wait > 0 {
            drops.push((arrival + rng.below(max_wait), waiter));
        }
    }
    drops
}

// --- deadlines ----------------------------------------------------------------------------------

/// A full limit, the number of waiters of cost 1 in its queue, and the earliest turn of the next
/// waiter, from now.
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
fn a_waiter_whose_turn_is_too_late_is_denied_at_once() {
    let mut late = Vec::new();
    for &(notation, ahead, earliest) in QUEUES {
        let bench = Bench::new(notation);
        bench.drain("k");
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        for _ in 0..ahead {
            driver.start(bench.acquire("k", 1, HOUR));
        }
        let charged = bench.charged();
        // The timeout is just shorter than the wait, on the limit's tick.
        let impatient = driver.start(bench.acquire("k", 1, Duration::from_micros(earliest - 2)));
        driver.settle();
        match driver.result(impatient) {
            Some(Err(Limited::Denied(decision))) => {
                let wait = decision.retry_after().span().unwrap().get();
                let reported = (earliest - 2..=earliest).contains(&wait);
                if !reported {
                    late.push(format!(
                        "{notation}, {ahead} ahead: reported {wait}, true {earliest}"
                    ));
                }
            }
            Some(other) => panic!("{notation}, {ahead} ahead: {other:?}"),
            None => late.push(format!("{notation}, {ahead} ahead: waits for {earliest}")),
        }
        assert_eq!(bench.charged(), charged, "{notation}, {ahead} ahead");
    }
    print_figure(&format!(
        "waiting: {} queues, late waiters denied at once {}, not {}",
        QUEUES.len(),
        QUEUES.len() - late.len(),
        late.len()
    ));
    assert!(late.is_empty(), "{late:#?}");
}

#[test]
fn a_waiter_whose_turn_is_just_in_time_is_not_denied() {
    for &(notation, ahead, earliest) in QUEUES {
        let bench = Bench::new(notation);
        bench.drain("k");
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        for _ in 0..ahead {
            driver.start(bench.acquire("k", 1, HOUR));
        }
        // The turn comes with the last of the waiters ahead, at the same instant.
        let patient = driver.start(bench.acquire("k", 1, Duration::from_micros(earliest + 1)));
        driver.run_until_idle();
        assert_eq!(
            driver.passed().last(),
            Some(&(patient, bench.start + earliest)),
            "{notation}, {ahead} ahead: {:?}",
            driver.result(patient)
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
fn with_a_timeout_of_zero_it_is_a_check() {
    let bench = Bench::new("5/s burst 1");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let first = driver.start(bench.acquire("k", 1, Duration::ZERO));
    let second = driver.start(bench.acquire("k", 1, Duration::ZERO));
    driver.settle();
    assert!(matches!(driver.result(first), Some(Ok(decision)) if decision.allowed()));
    assert_eq!(outcome(driver.result(second)), Some(Outcome::RetryAfter(Micros::new(200_000))));
    assert_eq!(bench.charged(), 1);
}

#[test]
fn a_cost_larger_than_the_limit_is_denied_at_once_at_the_head() {
    let bench = Bench::new("5/s burst 5");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let huge = driver.start(bench.acquire("k", 6, HOUR));
    driver.settle();
    assert_eq!(outcome(driver.result(huge)), Some(Outcome::Never));
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
    assert_eq!(outcome(driver.result(huge)), Some(Outcome::Never), "it waits");
}

#[test]
fn a_cost_larger_than_the_limit_delays_no_waiter_behind_it() {
    let bench = Bench::new("5/s burst 5");
    bench.drain("k");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    driver.start(bench.acquire("k", 1, HOUR));
    driver.start(bench.acquire("k", 100, HOUR));
    let next = driver.start(bench.acquire("k", 1, Duration::from_secs(1)));
    driver.run_until_idle();
    let passed = driver.passed();
    assert_eq!(passed.last(), Some(&(next, bench.start + 400_000)), "{:?}", driver.result(next));
}

// --- cancellation -------------------------------------------------------------------------------

#[test]
fn a_waiter_dropped_after_any_number_of_polls_leaves_no_state() {
    let mut points = 0;
    for notation in [
        "1/s burst 1",
        "fixed-window 1/s",
        "sliding-log 1/s",
        "leaky-bucket 1/s capacity 1 queue",
        "leaky-bucket 1/s capacity 3 queue",
    ] {
        for pauses in [None, Some(0), Some(1), Some(3)] {
            // Zero to two waiters ahead of it in the queue, and one behind it.
            for ahead in 0..3 {
                points += drop_everywhere(notation, pauses, ahead);
            }
        }
    }
    print_figure(&format!(
        "waiting: dropped at {points} await points, permits leaked 0, queues stuck 0"
    ));
}

/// Drops one of several waiters after 1, 2, 3, .. polls until it finishes earlier. Returns the
/// number of points at which it was dropped.
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
        let dropped = driver.start(bench.acquire("k", 1, HOUR));
        driver.start(bench.acquire("k", 1, HOUR));
        driver.drop_after(dropped, polls);
        driver.run_until_idle();

        let finished = driver.result(dropped).is_some();
        let passed = driver.passed().len();
        assert_eq!(passed, ahead + 1 + usize::from(finished), "{what}");
        assert_eq!(bench.charged() - drained, passed as u64, "{what}");
        assert_eq!(bench.clock.next_wake(), None, "{what}: a task still sleeps");
        // The queue is empty: with a free permit, a waiter with a short timeout passes.
        bench.clock.advance(Duration::from_secs(10));
        let next = driver.start(bench.acquire("k", 1, Duration::from_millis(1)));
        driver.run_until_idle();
        assert!(matches!(driver.result(next), Some(Ok(_))), "{what}: {:?}", driver.result(next));
        if finished {
            return polls - 1;
        }
    }
    0
}

#[test]
fn a_hundred_thousand_waiters_dropped_in_any_order_charge_nothing() {
    let mut rng = TraceRng::new(11);
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
            let dropped = rng.below(waiting.len() as u64) as usize;
            assert!(driver.cancel(waiting.swap_remove(dropped)));
            // The next head of the queue may be polled before the next drop.
            if rng.below(2) == 0 {
                driver.settle();
            }
        }
    }
    let charged = bench.charged() - drained;
    assert_eq!(bench.clock.next_wake(), None, "a task still sleeps");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    driver.start(bench.acquire("k", 1, HOUR));
    driver.run_until_idle();
    assert_eq!(driver.passed(), [(0, bench.start + 3_600 * SECOND)]);
    print_figure(&format!(
        "waiting: 100000 dropped in random order, charged {charged}, queues stuck 0"
    ));
    assert_eq!(charged, 0);
}

#[test]
fn when_the_head_is_dropped_the_next_takes_its_permit() {
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

// --- turns of a queue limit ---------------------------------------------------------------------

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
    print_figure(
        "waiting: leaky-bucket 10/s queue, 40 starts spaced by 100000 us, 0 early, 0 late",
    );
}

#[test]
fn a_turn_beyond_the_timeout_is_not_taken() {
    let bench = Bench::new("leaky-bucket 1/s capacity 50 queue");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    for _ in 0..3 {
        driver.start(bench.acquire("k", 1, HOUR));
    }
    let impatient = driver.start(bench.acquire("k", 1, Duration::from_millis(2_999)));
    let patient = driver.start(bench.acquire("k", 1, Duration::from_secs(3)));
    driver.settle();
    let retry = Outcome::RetryAfter(Micros::from_secs(3));
    assert_eq!(outcome(driver.result(impatient)), Some(retry));
    driver.run_until_idle();
    assert_eq!(driver.passed().last(), Some(&(patient, bench.start + 3 * SECOND)));
    assert_eq!(bench.charged(), 4);
}

#[test]
fn a_turn_beyond_the_timeout_is_not_taken_when_rules_are_named() {
    let bench = Bench::new("leaky-bucket 1/s capacity 50 queue");
    let checks = [RuleCheck::new(Limiter::DEFAULT_RULE, "k")];
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    driver.start(bench.acquire("k", 3, HOUR));
    let impatient =
        driver.start(Box::pin(bench.limiter.check_each(&checks).wait(Duration::from_secs(1))));
    driver.settle();
    let retry = Outcome::RetryAfter(Micros::from_secs(3));
    assert_eq!(
        outcome(driver.result(impatient)),
        Some(retry),
        "it took a turn 2 s after its timeout"
    );
    assert_eq!(bench.charged(), 3);
}

#[test]
fn a_full_queue_gives_no_turn_beyond_the_timeout() {
    // Its turns are at 0, 1 and 2 s; the next one, at 3 s, can be taken from 1 s on.
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
    // A plain check does not join the queue.
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
    let passed = u64::from(matches!(driver.result(waiter), Some(Ok(_))));
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
    let dropped = driver.start(bench.acquire("k", 1, HOUR));
    driver.settle();
    bench.clock.advance(Duration::from_millis(1_500));
    driver.settle();
    assert!(driver.cancel(dropped), "its turn is at 3 s");
    assert_eq!(bench.charged(), taken);
}

#[test]
fn a_queue_limit_repeats_its_decision_under_the_same_id() {
    let bench = Bench::new("leaky-bucket 1/s capacity 50 queue");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let first = driver.start(Box::pin(bench.limiter.check("k").idempotency_key("id").wait(HOUR)));
    let repeated =
        driver.start(Box::pin(bench.limiter.check("k").idempotency_key("id").wait(HOUR)));
    driver.run_until_idle();
    let decision = |task| match driver.result(task) {
        Some(Ok(decision)) => decision,
        other => panic!("{other:?}"),
    };
    assert_eq!(decision(first).verdicts, decision(repeated).verdicts);
    assert!(decision(repeated).repeated());
}

#[test]
fn a_waiter_dropped_before_its_turn_charges_nothing() {
    let bench = Bench::new("leaky-bucket 1/s capacity 50 queue");
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    driver.start(bench.acquire("k", 1, HOUR));
    let dropped = driver.start(bench.acquire("k", 1, HOUR));
    driver.settle();
    assert!(driver.cancel(dropped), "its turn is in a second");
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
            assert!(driver.result(waiter).is_none(), "{notation}: it waits");
            bench.clock.set(bench.clock.now().saturating_sub(step.into()));
            driver.settle();
            for _ in 0..20 {
                bench.clock.advance(Duration::from_millis(100));
                driver.settle();
            }
            let ended = driver.result(waiter).is_some();
            assert!(ended, "{notation}, {ahead} ahead, a step back by {step:?}: it still waits");
        }
    }
}

// --- bounds --------------------------------------------------------------------------------------

#[test]
fn a_waiter_beyond_the_cap_is_denied_at_once() {
    let bench = Bench::new("1/s burst 1");
    let _same = bench.limiter.clone().max_waiting_per_key(3);
    bench.drain("k");
    let drained = bench.charged();
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let first = driver.start(bench.acquire("k", 1, HOUR));
    for _ in 0..2 {
        driver.start(bench.acquire("k", 1, HOUR));
    }
    let beyond = driver.start(bench.acquire("k", 2, HOUR));
    // Never: the cost is above the capacity, and that is known before the cap counts.
    assert_eq!(outcome(driver.result(beyond)), Some(Outcome::Never));
    let beyond = driver.start(bench.acquire("k", 1, HOUR));
    let wait = Outcome::RetryAfter(Micros::from_secs(4));
    assert_eq!(outcome(driver.result(beyond)), Some(wait), "after the three that wait");
    assert_eq!((bench.limiter.waiting(), bench.limiter.refused_waits()), (3, 1));
    bench.drain("other");
    let other = driver.start(bench.acquire("other", 1, HOUR));
    assert!(driver.result(other).is_none(), "another key has a queue of its own");
    assert!(driver.cancel(first));
    let fourth = driver.start(bench.acquire("k", 1, HOUR));
    assert!(driver.result(fourth).is_none(), "there is room again");
    assert_eq!(bench.charged() - drained, 1, "that of the other key");
    driver.run_until_idle();
    assert_eq!((driver.passed().len(), bench.limiter.waiting()), (4, 0));
}

#[test]
fn a_waiter_for_a_slot_beyond_the_cap_is_denied_with_a_time_to_retry() {
    let rule = Rule::new("slots", [limit("concurrency 1 lease 30s")]).unwrap();
    let memory = Memory::builder().clock(ManualClock::default()).build();
    let limiter = Limiter::with_rules(memory, [rule]).unwrap().max_waiting_per_key(1);
    let slot = now_or_panic(limiter.enter("k")).unwrap();
    let enter = || Box::pin(limiter.enter("k").wait(HOUR));
    let mut waiting = enter();
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    let Err(Limited::Denied(denied)) = now_or_panic(enter()) else { panic!("it passes") };
    assert_eq!(denied.outcome(), Outcome::RetryAfter(Micros::from_secs(30)), "the lease");
    drop(slot);
    // The slot is free, and the first waiter gets it.
    let Err(Limited::Denied(denied)) = now_or_panic(enter()) else { panic!("it passes") };
    assert_eq!(denied.outcome(), Outcome::RetryAfter(Micros::from_millis(50)));
    assert!(waiting.as_mut().poll(&mut context).is_ready());
}

#[test]
fn settling_wakes_only_queues_of_its_keys() {
    type End = fn(&Limiter, Reservation);
    let ends: [(&str, End); 6] = [
        ("cancelled", |_, reservation| drop(now_or_panic(reservation.cancel()).unwrap())),
        ("dropped", |_, reservation| drop(reservation)),
        ("by id", |limiter, reservation| {
            drop(now_or_panic(limiter.reservation(reservation.keep()).cancel()).unwrap());
        }),
        ("refund", |limiter, _kept| drop(limiter.refund("k-7", 1).now().unwrap())),
        ("record", |limiter, _kept| drop(limiter.record("k-7", 1).now().unwrap())),
        ("reset", |limiter, _kept| drop(limiter.reset("k-7").now().unwrap())),
    ];
    for (how, end) in ends {
        let bench = Bench::new("10/h");
        let keys: Vec<String> = (0..100).map(|key| format!("k-{key}")).collect();
        let mut reserved: Vec<Reservation> = keys
            .iter()
            .map(|key| now_or_panic(bench.limiter.reserve(key, 10).ttl(HOUR)).unwrap())
            .collect();
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        for key in &keys {
            driver.start(bench.acquire(key, 1, 2 * HOUR));
        }
        driver.settle();
        let woken = |driver: &Driver<'_>| {
            let count = |task: &Task<'_>| task.waker.wake_ups.load(Ordering::Relaxed);
            driver.tasks.iter().map(count).collect::<Vec<_>>()
        };
        let mut expected = woken(&driver);
        end(&bench.limiter, reserved.remove(7));
        expected[7] += 1;
        assert_eq!(woken(&driver), expected, "{how}");
        for reservation in reserved {
            reservation.keep();
        }
    }
}

/// As Redis does: it knows the limits of a hold, and the keys by names that only Redis has.
#[test]
fn settling_wakes_the_queues_of_its_limits_if_the_store_does_not_know_the_keys() {
    let clock = ManualClock::default();
    let memory = Memory::builder().clock(clock).build();
    let engine =
        LoggingEngine { memory, log: Arc::default(), pauses: None, knows_held_keys: false };
    let rules = ["a", "b"].map(|name| Rule::new(name, [limit("10/h")]).unwrap());
    let limiter = Limiter::with_rules(engine, rules).unwrap();
    let policy = limiter.policy();
    let check = |rule| [RuleCheck::new(rule, "k").cost(10)];
    let (a, b) = (check("a"), check("b"));
    let plan_of = |checks| policy.plan_checks(checks, ListMode::Evaluate, Micros::ZERO).unwrap();
    let id = HoldId::from(1);
    let hold = Op::hold(id, Micros::from_secs(3_600), Expiry::Release);
    assert!(now_or_panic(limiter.decide(hold, &plan_of(&a))).unwrap().allowed());
    assert!(now_or_panic(limiter.check_each(&b)).unwrap().allowed());
    let mut waiting =
        [&a, &b].map(|checks| Box::pin(limiter.check_each(&checks[..]).wait(2 * HOUR)));
    let wakers = [(); 2].map(|()| Arc::new(DriverWaker::default()));
    for (future, waker) in waiting.iter_mut().zip(&wakers) {
        let waker = Waker::from(Arc::clone(waker));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert!(now_or_panic(limiter.reservation(id).cancel()).is_ok());
    let woken = wakers.each_ref().map(|waker| waker.wake_ups.load(Ordering::Relaxed));
    assert_eq!(woken, [1, 0]);
}

// --- returned permits ---------------------------------------------------------------------------

type Change = fn(&Limiter);
type End = fn(Reservation);

/// Changes of a limiter after which a waiter for 10 of 10 permits passes at once.
const RETURNED: [(&str, Change); 4] = [
    ("refund", |limiter| drop(limiter.refund("k", 10).now().unwrap())),
    ("reset", |limiter| drop(limiter.reset("k").now().unwrap())),
    ("awaited reset", |limiter| drop(now_or_panic(limiter.reset("k")).unwrap())),
    ("raised limit", |limiter| {
        let old = limiter.rules()[0].limits()[0].limit().to_string();
        let twenty = limit(&old.replace("10/", "20/"));
        limiter.set_limit(twenty).unwrap();
    }),
];

const TEN_AN_HOUR: [&str; 5] =
    ["10/h", "fixed-window 10/h", "sliding-log 10/h", "sliding-window 10/h", "leaky-bucket 10/h"];

#[test]
fn a_waiter_wakes_up_when_permits_are_returned() {
    for notation in TEN_AN_HOUR {
        for (what, return_permits) in RETURNED {
            let bench = Bench::new(notation);
            bench.drain("k");
            let mut driver = Driver::new(&bench, PollOrder::AsWoken);
            let first = driver.start(bench.acquire("k", 5, 10 * HOUR));
            let second = driver.start(bench.acquire("k", 5, 10 * HOUR));
            driver.settle();
            bench.clock.advance(Duration::from_secs(1));
            driver.settle();
            assert!(driver.passed().is_empty(), "{notation}: both wait");
            return_permits(&bench.limiter);
            driver.settle();
            let now = bench.start + SECOND;
            assert_eq!(driver.passed(), [(first, now), (second, now)], "{notation}, {what}");
        }
    }
}

#[test]
fn a_waiter_wakes_up_when_a_reservation_ends_without_a_charge() {
    let ends: [(&str, End); 3] = [
        ("cancelled", |reservation| drop(now_or_panic(reservation.cancel()).unwrap())),
        ("dropped", |reservation| drop(reservation)),
        ("committed for less", |reservation| drop(now_or_panic(reservation.commit(5)).unwrap())),
    ];
    for notation in TEN_AN_HOUR {
        for (how, end) in ends {
            let bench = Bench::new(notation);
            let reservation = now_or_panic(bench.limiter.reserve("k", 10)).unwrap();
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
fn a_waiter_for_a_turn_wakes_up_for_an_earlier_one() {
    // Only resets: earlier requests keep their turns, except the last, under any limit.
    for (what, return_permits) in &RETURNED[1..3] {
        let bench = Bench::new("leaky-bucket 10/h capacity 10 queue");
        for _ in 0..5 {
            assert!(bench.limiter.check_now("k").unwrap().allowed());
        }
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        let waiter = driver.start(bench.acquire("k", 1, HOUR));
        driver.settle();
        assert!(driver.passed().is_empty(), "its turn is in half an hour");
        return_permits(&bench.limiter);
        driver.settle();
        assert_eq!(driver.passed(), [(waiter, bench.start)], "{what}");
    }
}

// --- ids and refusals --------------------------------------------------------------------------

#[test]
fn an_id_that_was_charged_gets_its_decision_again_however_many_wait() {
    for ahead in [0, 1, 5] {
        let bench = Bench::new("2/m burst 2");
        let limiter = &bench.limiter;
        let first = limiter.check("k").idempotency_key("id").now().unwrap();
        assert!(limiter.check_now("k").unwrap().allowed());
        let mut driver = Driver::new(&bench, PollOrder::AsWoken);
        for _ in 0..ahead {
            driver.start(bench.acquire("k", 1, HOUR));
        }
        let charged = bench.charged();
        for timeout in [Duration::ZERO, Duration::from_secs(1), HOUR] {
            let repeated =
                driver.start(Box::pin(limiter.check("k").idempotency_key("id").wait(timeout)));
            match driver.result(repeated) {
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
fn an_id_that_retries_for_its_turn_does_not_pass_before_it() {
    let bench = Bench::new("leaky-bucket 1/s capacity 50 queue");
    assert!(bench.limiter.check_now("k").unwrap().allowed());
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    let check = || Box::pin(bench.limiter.check("k").idempotency_key("id").wait(HOUR));
    let dropped = driver.start(check());
    driver.settle();
    assert!(driver.cancel(dropped), "its turn is in a second");
    let repeated = driver.start(check());
    driver.run_until_idle();
    match driver.passed()[..] {
        [(task, at)] => {
            assert_eq!(task, repeated);
            assert!(at >= bench.start + SECOND, "{} us early", bench.start + SECOND - at);
        }
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn only_a_check_can_wait() {
    let bench = Bench::new("1/s");
    let checks = [RuleCheck::new(Limiter::DEFAULT_RULE, "k")];
    let limiter = &bench.limiter;
    let mut driver = Driver::new(&bench, PollOrder::AsWoken);
    for check in [
        limiter.check("k").peek(),
        limiter.check("k").cost(5).peek(),
        limiter.check("k").peek().idempotency_key("id"),
        limiter.check_each(&checks).peek(),
    ] {
        let refused = driver.start(Box::pin(check.wait(HOUR)));
        match driver.result(refused) {
            Some(Err(Limited::NoAnswer(error))) => {
                assert_eq!(error.refusal(), Some(&Refusal::OnlyChecksWait), "{check:?}");
            }
            other => panic!("{check:?}: {other:?}"),
        }
    }
    let waits = driver.start(Box::pin(limiter.check_each(&checks).wait(HOUR)));
    assert!(matches!(driver.result(waits), Some(Ok(_))));
}

// --- system clock -------------------------------------------------------------------------------

#[tokio::test]
async fn with_the_system_clock_it_waits_in_real_time() {
    let limiter = Limiter::new(Memory::default(), limit("20/s burst 1"));
    let start = SystemClock.now();
    let timeout = Duration::from_secs(5);
    let mut waiters = Vec::new();
    for _ in 0..7 {
        let limiter = limiter.clone();
        waiters.push(tokio::spawn(async move {
            let result = limiter.acquire("k", timeout).await;
            (result.is_ok(), SystemClock.now().saturating_sub(start).get())
        }));
    }
    let mut passed = Vec::new();
    for waiter in waiters {
        passed.push(waiter.await.unwrap());
    }
    let slow = Limiter::new(Memory::default(), limit("1/h"));
    assert!(slow.acquire("k", timeout).await.is_ok());
    let too_short = slow.acquire("k", Duration::from_millis(10)).await;
    let refused_at = SystemClock.now().saturating_sub(start).get();

    // The first passes at once and each later one after another 50 ms, never earlier.
    for (k, (allowed, at)) in (0_u64..).zip(&passed) {
        assert!(*allowed);
        assert!(*at >= k * 50_000, "the {k}th passed after {at} us");
    }
    let last = passed.iter().map(|(_, at)| *at).max().unwrap();
    assert!(last < 60 * SECOND, "300 ms were due, it took {last} us");
    assert!(matches!(too_short, Err(Limited::Denied(_))));
    print_figure(&format!(
        "waiting: system clock, 7 at 20/s: 300000 us due, {last} us taken, 0 early; one with too \
         little time refused {} us later",
        refused_at - last
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn waiters_on_eight_threads_of_which_a_fifth_is_dropped_lose_no_permit_and_no_wake_up() {
    let memory = Memory::default();
    let log = Arc::new(Mutex::new(Vec::new()));
    let engine = LoggingEngine { memory, log: log.clone(), pauses: None, knows_held_keys: true };
    let limiter = Limiter::new(engine, limit("2000/s burst 20"));
    let mut rng = TraceRng::new(1);
    let mut waiters = Vec::new();
    for _ in 0..600 {
        let limiter = limiter.clone();
        waiters.push(tokio::spawn(async move { limiter.acquire("k", HOUR).await.is_ok() }));
    }
    for waiter in waiters.iter().filter(|_| rng.below(5) == 0) {
        tokio::task::yield_now().await;
        waiter.abort();
    }
    let (mut acquired, mut dropped) = (0, 0);
    for waiter in waiters {
        // A lost wake-up would be a wait of an hour.
        match tokio::time::timeout(Duration::from_secs(20), waiter).await.unwrap() {
            Ok(passed) => acquired += u64::from(passed),
            Err(aborted) => dropped += u64::from(aborted.is_cancelled()),
        }
    }
    let charged: u64 = log.lock().unwrap().iter().sum();
    print_figure(&format!(
        "waiting: 600 on 8 threads at 2000/s, {dropped} dropped, acquired {acquired}, charged {charged}"
    ));
    assert_eq!(acquired + dropped, 600);
    assert_eq!(charged, acquired);
}

// --- test bench ---------------------------------------------------------------------------------

/// A limiter over a memory engine, with a manual clock and a log of all charges.
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

    /// With an engine that returns `Pending` a number of times before it decides, or that decides
    /// at once.
    fn pausing(notation: &str, pauses: Option<u32>) -> Self {
        // A quarter into a second, so that aligned windows do not begin with the test.
        let start = 1_700_000_000 * SECOND + SECOND / 4;
        let clock = ManualClock::new(Micros::new(start));
        let log = Arc::new(Mutex::new(Vec::new()));
        let memory = Memory::builder().clock(clock.clone()).build();
        let log_of_engine = log.clone();
        let engine = LoggingEngine { memory, log: log_of_engine, pauses, knows_held_keys: true };
        let rule = Rule::new(Limiter::DEFAULT_RULE, [limit(notation)]).unwrap();
        Self { clock, limiter: Limiter::with_rules(engine, [rule]).unwrap(), log, start }
    }

    /// Uses up what `key` has now.
    fn drain(&self, key: &str) {
        let capacity = self.limiter.rules()[0].limits()[0].limit().capacity();
        let mut driver = Driver::new(self, PollOrder::AsWoken);
        let all = driver.start(self.acquire(key, capacity, Duration::ZERO));
        driver.settle();
        assert!(matches!(driver.result(all), Some(Ok(_))));
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

/// Logs the cost of every check that the inner engine allows.
struct LoggingEngine {
    memory: Memory,
    log: Arc<Mutex<Vec<u64>>>,
    pauses: Option<u32>,
    /// Whether the decision about a hold has more than its limits.
    knows_held_keys: bool,
}

impl LoggingEngine {
    fn decide_and_log(&self, call: Call<'_>) -> Result<Decision, tidegate::EngineError> {
        let result = self.memory.decide(call).now();
        if call.op == Op::Check && result.as_ref().is_ok_and(Decision::allowed) {
            self.log.lock().unwrap().push(call.charges[0].cost.get());
        }
        match self.knows_held_keys {
            true => result,
            false => result.map(|decision| {
                let mut known = Decision::new(decision.source, decision.verdicts.clone());
                known.details_mut().held = decision.held().to_vec();
                known.details_mut().hold = decision.hold();
                known
            }),
        }
    }
}

impl Engine for LoggingEngine {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        let Some(mut pauses) = self.pauses else {
            return EngineFuture::Ready(self.decide_and_log(call));
        };
        EngineFuture::Pending(Box::pin(std::future::poll_fn(move |cx| {
            if pauses == 0 {
                return Poll::Ready(self.decide_and_log(call));
            }
            pauses -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        })))
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.memory.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

// --- driver -------------------------------------------------------------------------------------

/// The order in which tasks that were woken together are polled. Executors guarantee none.
#[derive(Clone, Copy, Debug)]
enum PollOrder {
    AsWoken,
    LastFirst,
    Random(u64),
}

/// Polls tasks that were woken, and no others; advances the clock when all of them wait.
struct Driver<'a> {
    bench: &'a Bench,
    tasks: Vec<Task<'a>>,
    passed: Vec<(usize, u64)>,
    woken: Arc<Mutex<Vec<usize>>>,
    order: PollOrder,
    rng: TraceRng,
}

struct Task<'a> {
    future: Option<Acquire<'a>>,
    result: Option<Result<Decision, Limited>>,
    waker: Arc<DriverWaker>,
    polls_left: Option<u64>,
}

/// Wakes one task of a driver, and counts its wake-ups.
#[derive(Default)]
struct DriverWaker {
    task: usize,
    woken: Arc<Mutex<Vec<usize>>>,
    wake_ups: AtomicUsize,
}

impl Wake for DriverWaker {
    fn wake(self: Arc<Self>) {
        self.wake_ups.fetch_add(1, Ordering::Relaxed);
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
            rng: TraceRng::new(seed),
        }
    }

    /// Adds a task and polls it once, as on arrival: the first poll takes the position in the
    /// queue.
    fn start(&mut self, future: Acquire<'a>) -> usize {
        let task = self.tasks.len();
        let task_waker =
            DriverWaker { task, woken: self.woken.clone(), wake_ups: AtomicUsize::new(0) };
        self.tasks.push(Task {
            future: Some(future),
            result: None,
            waker: Arc::new(task_waker),
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

    /// Polls woken tasks until none is left. The clock stands still.
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

    /// Advances the clock from one wake-up to the next until no task sleeps.
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
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            if result.is_ok() {
                self.passed.push((index, self.bench.now()));
            }
            task.result = Some(result);
            task.future = None;
        } else if let Some(polls_left) = &mut task.polls_left {
            *polls_left = polls_left.saturating_sub(1);
            if *polls_left == 0 {
                task.future = None;
            }
        }
    }

    fn result(&self, task: usize) -> Option<&Result<Decision, Limited>> {
        self.tasks[task].result.as_ref()
    }

    /// The tasks that passed, in this order, with their instants.
    fn passed(&self) -> Vec<(usize, u64)> {
        self.passed.clone()
    }
}

fn outcome(result: Option<&Result<Decision, Limited>>) -> Option<Outcome> {
    match result? {
        Ok(decision) => Some(decision.outcome()),
        Err(Limited::Denied(decision)) => Some(decision.outcome()),
        Err(Limited::NoAnswer(error)) => panic!("{error}"),
    }
}

fn limit(notation: &str) -> Limit {
    notation.parse().unwrap()
}

/// Prints a figure to stderr past the test harness, which captures `eprintln!`.
fn print_figure(figure: &str) {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "{figure}").unwrap();
}
