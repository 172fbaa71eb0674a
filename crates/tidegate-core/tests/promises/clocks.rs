//! Every interval in true time, on a clock that steps.
//!
//! Forward by `s`: buckets admit `r*s` more, windows and logs `L*(floor(s/W) + 1)`. Back: nothing
//! more, but for what is aligned to the clock: a fixed window may come twice and bring `L` again,
//! and a step of `every` its amount. Nobody is locked out for longer than it takes to recover on a
//! steady clock.

use tidegate_core::{Cost, Holds, Limit, Micros, Moment};

use crate::bounds::try_family;
use crate::promise::FAMILIES;

#[test]
fn a_clock_that_steps_back_adds_nothing_and_locks_nobody_out() {
    for family in FAMILIES {
        try_family("clock steps back", family, |traffic| {
            if traffic.rng.one_in(6) {
                traffic.step_back();
            } else {
                traffic.attack();
            }
        });
    }
}

#[test]
fn a_clock_that_jumps_forward_adds_no_more_than_the_time_it_skipped() {
    for family in FAMILIES {
        try_family("clock jumps forward", family, |traffic| {
            if traffic.rng.one_in(6) {
                traffic.step_forward();
            } else {
                traffic.attack();
            }
        });
    }
}

#[test]
fn a_clock_that_goes_to_and_fro_adds_no_more_than_its_jumps_forward() {
    for family in FAMILIES {
        try_family("clock goes to and fro", family, |traffic| match traffic.rng.below(8) {
            0 => traffic.step_back(),
            1 => traffic.step_forward(),
            2 => traffic.refund(),
            _ => traffic.attack(),
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
