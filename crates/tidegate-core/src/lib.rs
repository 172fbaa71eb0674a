//! The arithmetic of Tidegate: every rate-limiting algorithm in whole numbers, and the notation
//! that names them. No clock, no storage, no dependencies.
//!
//! ```
//! use tidegate_core::{Cost, Holds, Limit, Micros, Moment, Wait};
//!
//! let limit: Limit = "2/m".parse()?;
//! let mut state = None;
//! let now = Moment::new(Micros::from_secs(1_700_000_000));
//! limit.charge(&mut state, &now, Cost::new(2)?, None);
//! let verdict = limit.look(state.as_ref(), Holds::NONE, &now, Cost::ONE);
//! assert_eq!(verdict.retry_after, Wait::For(Micros::from_secs(30)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layout
//!
//! - [`Limit`]: how much may pass. Parsed from the notation (`notation`) or built by a
//!   [`LimitBuilder`]; [`InvalidLimit`] says why one is invalid.
//! - A decision takes two steps, so that several limits are checked before any is charged:
//!   [`Limit::look`] and [`Limit::charge`]. Other operations are `refund`, `carry`, `rebase` and
//!   `expire`.
//! - [`did_you_mean`]: suggestions for misspelt words. [`Quoted`] and [`underline`] format them in
//!   errors.
//! - `shape` derives the numbers of a limit; `queueing` estimates waits in a queue.
//! - One file per algorithm: `bucket`, `steps`, `fixed`, `log`, `approximate`, `concurrency`, each
//!   an `Arithmetic` over its own kind of [`State`].
//! - [`Packed`]: a state as two numbers, and the decision in one step.
//! - [`Holds`]: permits that are held and not yet charged; `forecast` computes their expiry.
//! - [`Micros`], [`Tick`], [`Moment`]: time. [`Cost`]: permits per request. [`Verdict`]: the
//!   result.

#![no_std]
#![warn(clippy::cast_possible_truncation, clippy::float_arithmetic)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod approximate;
mod arithmetic;
mod bucket;
mod calendar;
mod concurrency;
mod cost;
mod did_you_mean;
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

pub use cost::{Cost, InvalidCost};
pub use did_you_mean::did_you_mean;
pub use draft::{Algorithm, LimitBuilder};
pub use hold::{Expiry, Hold, Holds};
pub use invalid::{InvalidLimit, LimitField};
pub use limit::{Limit, RecoveryPoint, Standing};
pub use notation::{ParseLimitError, Quoted, underline};
pub use packed::Packed;
pub use share::Fraction;
pub use span::{CalendarUnit, Span};
pub use state::State;
pub use time::{Micros, Moment, Tick};
pub use verdict::{Outcome, Verdict, Wait};
