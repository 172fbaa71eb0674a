//! Test suite for any engine: claims that every engine must meet. Imports: clock, engine, key.
//!
//! An engine's tests run all of them in one line. The engine is built around a manual clock that
//! the suite advances, so that nothing sleeps:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! tidegate::conformance::run(|clock| tidegate::Memory::builder().clock(clock).build()).await;
//! # }
//! ```
//!
//! # Layout
//!
//! - `admission`: what passes, and when to retry. `all_or_none`: calls of several limits.
//! - `operations`: record, refund, reset, inspect, changes of the limit, steps of the clock.
//! - `budgets`: reservations of several rules, each settled at its own cost.
//! - `extensions`: reservations that are extended. `quantities`: reservations of as much as fits.
//! - `holds`: reservations and concurrency. `enter`: check and concurrency slot in one step.
//! - `idempotency`: at most one charge per id. `shadow`: shadow limits. `refusals`: invalid calls.
//! - `harness`: the engine under test, and helpers for calls.

mod admission;
mod all_or_none;
mod budgets;
mod enter;
mod extensions;
mod harness;
mod holds;
mod idempotency;
mod operations;
mod quantities;
mod refusals;
mod shadow;

pub use self::harness::EVERY_LIMIT;
use self::harness::Harness;
use crate::{Engine, ManualClock};

/// Runs every claim against a new engine made by `make`. Panics at the first violation.
pub async fn run<E: Engine>(make: impl Fn(ManualClock) -> E) {
    let new = || Harness::new(&make);
    admission::run(new).await;
    all_or_none::run(new).await;
    shadow::run(new).await;
    operations::run(new).await;
    holds::run(new).await;
    budgets::run(new).await;
    extensions::run(new).await;
    quantities::run(new).await;
    enter::run(new).await;
    idempotency::run(new).await;
    refusals::run(new).await;
}
