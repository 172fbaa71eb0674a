//! Every fault in its short version; `TIDEGATE_LONG=1` runs the long ones.
//!
//! Each runs in its own process, one at a time. Times are printed beside their goals, and marked
//! `late`; `TIDEGATE_TIMING=1` makes the goals bounds.

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
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{fault}: {}\n{figures}{errors}", output.status);
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
    while_redis_is_dead_every_call_is_decided_and_then_redis_decides_again: "kill",
    no_call_waits_for_a_suspended_redis: "freeze",
    while_redis_is_suspended_memory_and_connections_stay_bounded: "long-freeze",
    an_attack_on_one_key_is_denied_without_the_store: "overload",
    after_a_failover_redis_decides_again: "failover",
    a_slow_redis_opens_the_breaker_and_closes_it_again: "slow",
    a_limiter_that_starts_before_redis_finds_it_later: "redis-starts-late",
    with_a_lost_primary_no_more_is_lost_than_documented: "lost-writes",
    health_warns_about_eviction: "eviction",
    a_charge_whose_reply_is_lost_is_made_once_per_id: "lost-replies",
    dropped_calls_leave_nothing_held: "cancelled-calls",
    every_waiting_caller_gets_its_permits: "wait-queue",
    four_processes_stay_within_twice_the_limit_while_redis_stalls: "stall",
    under_random_faults_every_call_gets_a_decision: "soak",
}
