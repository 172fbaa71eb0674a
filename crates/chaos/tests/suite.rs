//! Every failure, in its short version; `TIDEGATE_LONG=1` runs the long ones.
//!
//! Each is a process of its own, and one runs at a time: they measure time.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{Write as _, stderr};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

static ALONE: Mutex<()> = Mutex::new(());

/// Prints the figures, and panics if a bound does not hold.
fn holds(fault: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-chaos")).arg(fault).output().unwrap();
    let figures = String::from_utf8_lossy(&output.stdout);
    for line in figures.lines().filter(|line| line.ends_with("  skipped")) {
        // `./test` lists what is skipped.
        writeln!(stderr().lock(), "skipped: {}", line.trim_end_matches("skipped").trim()).unwrap();
    }
    writeln!(stderr().lock(), "{figures}").unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{fault}: {}\n{figures}{complaint}", output.status);
}

macro_rules! failures {
    ($($claim:ident: $fault:literal,)*) => {
        $(
            #[test]
            fn $claim() {
                holds($fault);
            }
        )*
    };
}

failures! {
    while_redis_is_dead_decisions_go_on_quickly_and_it_is_asked_again_within_a_second: "kill",
    a_redis_that_stands_still_makes_nobody_wait_beyond_the_deadline: "freeze",
    while_redis_stands_still_nothing_piles_up: "frozen-long",
    an_attack_on_one_key_is_not_felt_by_the_others: "saturate",
    after_a_failover_redis_decides_again_within_a_quarter_of_a_second: "failover",
    a_slow_redis_opens_the_breaker_once: "slow",
    a_limiter_that_starts_before_redis_finds_it_later: "late-start",
    with_a_primary_no_more_is_lost_than_is_promised: "lost-tail",
    a_redis_that_forgets_is_warned_about: "eviction",
    a_charge_whose_answer_is_lost_is_made_once_under_its_id: "ambiguous",
    callers_who_go_away_leave_nothing_behind: "dropped",
    whoever_waits_has_a_turn: "waiters",
    one_fault_after_the_other_leaves_nobody_without_an_answer: "soak",
}
