//! Wall time in tests. A busy machine may delay everything, so a time is compared with its goal,
//! printed if it is longer, and fails the test only if something hangs.
//!
//! `TIDEGATE_TIMING=1` makes every goal a bound, for an idle machine.

use std::fmt::Display;
use std::io::{Write as _, stderr};
use std::time::Duration;

/// Whatever takes longer than this hangs.
pub const HANG: Duration = Duration::from_secs(60);

/// Whether goals are bounds.
pub fn goals_are_bounds() -> bool {
    std::env::var_os("TIDEGATE_TIMING").is_some_and(|value| value == "1")
}

/// Prints a time that is longer than its goal. Panics if it is longer than [`HANG`], or than the
/// goal where goals are bounds.
#[track_caller]
pub fn compare_with_goal(what: impl Display, took: Duration, goal: Duration) {
    if took > goal {
        let _ = writeln!(stderr().lock(), "late: {what}: {took:?}, goal {goal:?}");
    }
    let bound = bound(goal, goals_are_bounds());
    assert!(took <= bound, "{what}: {took:?}, at most {bound:?}");
}

fn bound(goal: Duration, goals_are_bounds: bool) -> Duration {
    if goals_are_bounds { goal } else { HANG.max(goal) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_fails_and_a_missed_goal_alone_does_not() {
        let second = Duration::from_secs(1);
        assert_eq!((bound(second, false), bound(second, true)), (HANG, second));
        assert_eq!(bound(2 * HANG, false), 2 * HANG);
    }
}
