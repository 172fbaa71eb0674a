//! Bounds over every interval in true time, on a clock that steps.
//!
//! Forward by `s`: buckets admit `r*s` more, windows and logs `L*(floor(s/W) + 1)`. Back: nothing
//! more, except where windows are aligned to the clock. A fixed window may occur twice and admit
//! `L` again, and a step of `every` may add its amount again. No key is denied for longer than its
//! recovery on a steady clock.

use tidegate_core::{Cost, Holds, Limit, Micros, Moment};

use super::bound::FAMILIES;
use super::steady_clock::try_family;

#[test]
fn a_clock_that_steps_back_adds_nothing_and_delays_no_recovery() {
    for family in FAMILIES {
        try_family("clock steps back", family, |attacker| {
            if attacker.rng.one_in(6) {
                attacker.step_back();
            } else {
                attacker.attack();
            }
        });
    }
}

#[test]
fn a_clock_that_jumps_forward_adds_no_more_than_the_time_it_skipped() {
    for family in FAMILIES {
        try_family("clock jumps forward", family, |attacker| {
            if attacker.rng.one_in(6) {
                attacker.step_forward();
            } else {
                attacker.attack();
            }
        });
    }
}

#[test]
fn a_clock_that_steps_both_ways_adds_no_more_than_its_jumps_forward() {
    for family in FAMILIES {
        try_family("clock steps both ways", family, |attacker| match attacker.rng.below(8) {
            0 => attacker.step_back(),
            1 => attacker.step_forward(),
            2 => attacker.refund(),
            _ => attacker.attack(),
        });
    }
}

#[test]
fn a_step_back_over_a_boundary_forgets_no_sub_window() {
    let span = Micros::new(10);
    let limit = Limit::sliding_window(2, span).precision(span).build().unwrap();
    let (mut state, mut holds) = (None, Holds::default());
    let mut check = |clock: u64| {
        let at = Moment::new(Micros::new(clock));
        let allowed = limit.look(state.as_ref(), &holds, &at, Cost::ONE).allowed;
        limit.rebase(&mut state, &mut holds, &at);
        if allowed {
            limit.charge(&mut state, &at, Cost::ONE, None);
        }
        allowed
    };
    assert!(check(29));
    assert!(check(30));
    assert!(!check(29), "the clock has stepped back");
    for clock in 30..=36 {
        assert!(!check(clock), "three within {} us, where two may pass in 10", clock - 27);
    }
}
