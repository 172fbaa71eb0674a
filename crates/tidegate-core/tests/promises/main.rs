//! What each algorithm promises, over every interval, from the log of what was admitted alone.
//!
//! Nothing here knows how a limit counts: an attacker tries what he can, writes down what passed
//! and when, and every interval that begins with an admission is compared with the promise.
//!
//! # Layout
//!
//! - `promise`: what may pass in an interval, for random limits of every kind.
//! - `traffic`: the attacker, his two clocks (one steps) and his log.
//! - `bounds`: a steady clock; refunds; holds. `clocks`: a clock that steps. `changes`: limits that
//!   change. `shapes`: queues, holders, and how far the sliding windows are from the log.

#![expect(clippy::unwrap_used, reason = "a test")]

mod bounds;
mod changes;
mod clocks;
mod promise;
mod shapes;
mod traffic;

/// How many random histories a test tries, where `usual` is the number of the usual run.
fn histories(usual: u64) -> u64 {
    let set = |name: &str| std::env::var(name).is_ok_and(|value| value == "1");
    if set("TIDEGATE_MUTANTS") {
        usual / 10
    } else if set("TIDEGATE_LONG") {
        usual * 100
    } else {
        usual
    }
}
