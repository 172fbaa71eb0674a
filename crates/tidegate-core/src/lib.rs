//! The arithmetic of Tidegate: every rate-limiting algorithm in whole numbers, and the notation
//! that names them. No clock, no storage, no dependencies.
//!
//! # Layout
//!
//! - [`Limit`]: what may pass. Parsed from the notation (`notation`) or built from a [`Draft`];
//!   [`InvalidLimit`] says what is wrong with a bad one.
//! - The decision, in two steps so that several limits are looked at before any is charged:
//!   [`Limit::look`] and [`Limit::charge`]; beside them `refund`, `carry`, `rebase` and `expire`.
//! - [`closest`]: which of a few words someone meant to write. [`Quoted`], [`underline`]: how it is shown
//!   to them.
//! - `shape` derives a limit's numbers; `queueing` estimates for those who wait in line.
//! - One file per algorithm: `bucket`, `steps`, `fixed`, `log`, `approximate`, `concurrency`, each
//!   an `Arithmetic` over its own kind of [`State`].
//! - [`Packed`]: a state as two numbers, and the decision in one step.
//! - [`Holds`]: permits that are set aside; `forecast` says what becomes of them.
//! - [`Micros`], [`Tick`], [`Moment`]: time. [`Cost`]: weight. [`Verdict`]: the answer.

#![no_std]
#![warn(clippy::cast_possible_truncation, clippy::float_arithmetic)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod approximate;
mod arithmetic;
mod bucket;
mod calendar;
mod closest;
mod concurrency;
mod cost;
mod draft;
mod fixed;
mod forecast;
mod hold;
mod invalid;
mod limit;
mod log;
mod notation;
mod packed;
mod queueing;
mod shape;
mod share;
mod span;
mod state;
mod steps;
mod time;
mod verdict;

pub use closest::closest;
pub use cost::{Cost, InvalidCost};
pub use draft::{Algorithm, Draft};
pub use hold::{Expiry, Hold, Holds};
pub use invalid::{InvalidLimit, Part};
pub use limit::{Limit, Standing};
pub use notation::{ParseLimitError, Quoted, underline};
pub use packed::Packed;
pub use share::Share;
pub use span::{CalendarUnit, Span};
pub use state::State;
pub use time::{Micros, Moment, Tick};
pub use verdict::{Outcome, Verdict, Wait};
