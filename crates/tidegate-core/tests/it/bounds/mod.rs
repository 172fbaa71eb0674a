//! Admission bounds of each algorithm over every interval, computed from the log of admissions.
//!
//! The checks do not know how a limit counts. An attacker sends what the limit may admit and logs
//! it; every interval that begins with an admission is compared with the guaranteed bound.
//!
//! - `bound`: bounds of random limits of every kind. `attacker`: the traffic, its two clocks and
//!   its log.
//! - `steady_clock`: also refunds and holds. `stepping_clock`: a clock that steps.
//!   `changed_limits`: limits that change. `other_bounds`: queues, concurrency, and the error of
//!   the sliding windows.

mod attacker;
mod bound;
mod changed_limits;
mod other_bounds;
mod steady_clock;
mod stepping_clock;

/// How many random histories a test tries, where `usual` is the number of the usual run.
fn histories(usual: u64) -> u64 {
    tidegate_model::run_size(usual / 10, usual, usual * 100)
}
