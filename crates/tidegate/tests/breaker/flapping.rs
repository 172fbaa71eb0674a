//! Stores that are neither well nor gone. Each is asked once in a millisecond.

use std::io::Write;
use std::time::Duration;

use tidegate::Circuit;
use tidegate_model::Rng;

use super::store::{Bench, Fate};

/// What is seen of a store in so many seconds, in which each call meets the fate that is told for the time
/// since the beginning and the calls that have reached it.
fn watch(seconds: u64, mut fate: impl FnMut(Duration, u64) -> Fate) -> (Bench, usize, u64) {
    let bench = Bench::new(|breaker| breaker);
    let mut reached = 0;
    for ms in 0..seconds * 1_000 {
        bench.store.set(fate(Duration::from_millis(ms), bench.store.asked()));
        reached += u64::from(bench.check("k").is_ok());
        bench.clock.advance(Duration::from_millis(1));
    }
    let transitions = bench.events().len();
    (bench, transitions, reached)
}

#[test]
fn a_store_that_fails_at_random_is_left_alone() {
    let mut random = Rng::new(42);
    let fate = |_, _| if random.below(10) < 6 { Fate::Unavailable } else { Fate::Answer };
    let (bench, transitions, reached) = watch(600, fate);
    say(&format!("60 % fail at random, 10 min: {transitions} transitions, {reached} answered"));
    // Twelve good probes in a row come once in hours.
    assert!((1..=9).contains(&transitions), "{:?}", bench.events());
}

#[test]
fn a_latency_that_rises_through_the_deadline_and_falls_again_opens_it_a_few_times_at_most() {
    const DEADLINE: f64 = 25.0;
    for noise in [0.0, 0.3] {
        let mut random = Rng::new(7);
        let fate = |at: Duration, _| {
            // A minute up to 200 ms, and a minute down.
            let minute = at.as_secs_f64() / 60.0;
            let usual = 200.0 * if minute < 1.0 { minute } else { 2.0 - minute };
            let share = random.below(1_000_000) as f64 / 500_000.0 - 1.0;
            let late = usual * (1.0 + noise * share) > DEADLINE;
            if late { Fate::Ambiguous } else { Fate::Answer }
        };
        let (bench, transitions, reached) = watch(120, fate);
        say(&format!(
            "latency 0 to 200 ms and back, noise {noise}, deadline 25 ms, 2 min: {transitions} transitions, {reached} answered"
        ));
        let most = if noise == 0.0 { 2 } else { 10 };
        assert!((2..=most).contains(&transitions), "{:?}", bench.events());
        assert_eq!(bench.circuit(), Circuit::Closed);
    }
}

/// A store that answers 500 calls in a second and no more is asked for 1000.
#[test]
fn a_store_that_breaks_under_its_load_is_not_loaded_again_and_again() {
    let (mut moment, mut before) = (0, 0);
    let fate = |at: Duration, asked| {
        let now = at.as_millis() / 100;
        if now != moment {
            (moment, before) = (now, asked);
        }
        if asked - before >= 50 { Fate::Ambiguous } else { Fate::Answer }
    };
    let (bench, transitions, reached) = watch(300, fate);
    say(&format!("overloaded for 5 min: {transitions} transitions, {reached} answered"));
    assert!(transitions <= 200, "{:?}", bench.events());
}

#[test]
fn a_few_failures_among_many_calls_open_nothing() {
    let mut random = Rng::new(3);
    // Of its first ten calls, half may fail by chance.
    let fate = |at: Duration, _| match at.as_secs() > 0 && random.below(10) < 3 {
        true => Fate::Unavailable,
        false => Fate::Answer,
    };
    let (bench, transitions, _) = watch(60, fate);
    assert_eq!(transitions, 0, "{:?}", bench.events());
}

/// Prints a figure past the capture of test output.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "breaker: {line}");
}
