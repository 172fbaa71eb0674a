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
//! - `algorithm_params` derives the numbers of a limit, `queue_estimate` the wait in a queue.
//! - One file per algorithm: `bucket`, `stepped_bucket`, `fixed_window`, `sliding_log`,
//!   `sliding_counter`, `concurrency`, each an `Arithmetic` over its own kind of [`State`].
//! - [`Packed`]: a state as two numbers, and the decision in one step. `stored`: limits and states
//!   by the numbers that a store has of them.
//! - [`Holds`]: permits that are held and not yet charged; `many_holds` stores more than some
//!   hundred of one state, `forecast` computes their expiry.
//! - [`Micros`], [`Tick`], [`Moment`]: time. [`Cost`]: permits per request. [`Verdict`]: the
//!   result.

#![no_std]
#![warn(clippy::cast_possible_truncation, clippy::float_arithmetic)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod algorithm_params;
mod arithmetic;
mod bucket;
mod builder;
mod calendar;
mod concurrency;
mod cost;
mod did_you_mean;
mod fixed_window;
mod forecast;
mod fraction;
mod hold;
mod invalid_limit;
mod limit;
mod many_holds;
mod notation;
mod packed;
mod queue_estimate;
mod sliding_counter;
mod sliding_log;
mod span;
mod state;
mod stepped_bucket;
mod stored;
mod time;
mod verdict;

pub use builder::{Algorithm, LimitBuilder};
pub use cost::{Cost, InvalidCost};
pub use did_you_mean::did_you_mean;
pub use fraction::Fraction;
pub use hold::{Expiry, Hold, Holds};
pub use invalid_limit::{InvalidLimit, LimitField};
pub use limit::{Limit, RecoveryPoint, Standing};
pub use notation::{ParseLimitError, Quoted, underline};
pub use packed::Packed;
pub use span::{CalendarUnit, Span};
pub use state::State;
pub use time::{Micros, Moment, Tick};
pub use verdict::{Outcome, Verdict, Wait};
