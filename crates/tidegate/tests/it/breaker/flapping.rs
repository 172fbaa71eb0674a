//! Stores that fail intermittently. Each gets one check per millisecond.

use std::io::Write;
use std::time::Duration;

use tidegate::Circuit;
use tidegate_model::TraceRng;

use testkit::engines::{BreakerFixture, StoreMode};

/// Runs a store for `seconds`. `mode` chooses its behaviour from the time and the number of calls
/// so far. Returns the fixture, the number of transitions and the number of replies.
fn watch(
    seconds: u64,
    mut mode: impl FnMut(Duration, u64) -> StoreMode,
) -> (BreakerFixture, usize, u64) {
    let bench = BreakerFixture::new(|breaker| breaker);
    let mut replies = 0;
    for ms in 0..seconds * 1_000 {
        bench.store.set(mode(Duration::from_millis(ms), bench.store.calls()));
        replies += u64::from(bench.check("k").is_ok());
        bench.clock.advance(Duration::from_millis(1));
    }
    let transitions = bench.events().len();
    (bench, transitions, replies)
}

#[test]
fn the_circuit_of_a_store_that_fails_at_random_stays_open() {
    let mut random = TraceRng::new(42);
    let mode = |_, _| if random.below(10) < 6 { StoreMode::Unavailable } else { StoreMode::Reply };
    let (bench, transitions, replies) = watch(600, mode);
    print_figure(&format!(
        "60 % fail at random, 10 min: {transitions} transitions, {replies} replies"
    ));
    // Twelve successful probes in a row happen once in hours.
    assert!((1..=9).contains(&transitions), "{:?}", bench.events());
}

#[test]
fn a_latency_that_rises_through_the_deadline_and_falls_again_opens_the_circuit_a_few_times_at_most()
{
    const DEADLINE: f64 = 25.0;
    for noise in [0.0, 0.3] {
        let mut random = TraceRng::new(7);
        let mode = |at: Duration, _| {
            // A minute up to 200 ms, and a minute down.
            let minute = at.as_secs_f64() / 60.0;
            let usual = 200.0 * if minute < 1.0 { minute } else { 2.0 - minute };
            let share = random.below(1_000_000) as f64 / 500_000.0 - 1.0;
            let late = usual * (1.0 + noise * share) > DEADLINE;
            if late { StoreMode::Ambiguous } else { StoreMode::Reply }
        };
        let (bench, transitions, replies) = watch(120, mode);
        print_figure(&format!(
            "latency 0 to 200 ms and back, noise {noise}, deadline 25 ms, 2 min: {transitions} transitions, {replies} replies"
        ));
        let max_transitions = if noise == 0.0 { 2 } else { 10 };
        assert!((2..=max_transitions).contains(&transitions), "{:?}", bench.events());
        assert_eq!(bench.circuit(), Circuit::Closed);
    }
}

/// A store that serves 500 calls a second gets 1000.
#[test]
fn a_store_that_breaks_under_its_load_is_not_overloaded_again_and_again() {
    let (mut moment, mut before) = (0, 0);
    let mode = |at: Duration, calls| {
        let now = at.as_millis() / 100;
        if now != moment {
            (moment, before) = (now, calls);
        }
        if calls - before >= 50 { StoreMode::Ambiguous } else { StoreMode::Reply }
    };
    let (bench, transitions, replies) = watch(300, mode);
    print_figure(&format!("overloaded for 5 min: {transitions} transitions, {replies} replies"));
    assert!(transitions <= 200, "{:?}", bench.events());
}

#[test]
fn a_few_failures_among_many_calls_open_nothing() {
    let mut random = TraceRng::new(3);
    // Of its first ten calls, half may fail by chance.
    let mode = |at: Duration, _| match at.as_secs() > 0 && random.below(10) < 3 {
        true => StoreMode::Unavailable,
        false => StoreMode::Reply,
    };
    let (bench, transitions, _) = watch(60, mode);
    assert_eq!(transitions, 0, "{:?}", bench.events());
}

/// Prints a figure past the capture of test output.
fn print_figure(line: &str) {
    let _ = writeln!(std::io::stderr(), "breaker: {line}");
}
