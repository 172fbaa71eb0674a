//! Redisson's `RRateLimiter`, shared with the Java programs that have it.
//!
//! A limiter is known by its name. Both sides keep it under the same keys, in the same bytes, so that each counts
//! what the other takes, and a rate set by one is the rate of the other:
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate_redis::Redis;
//! use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Redis::builder("redis://127.0.0.1:6379").build()?.client();
//! let limiter = RateLimiter::new(&client, "orders");
//! limiter.try_set_rate(Rate::new(Mode::Overall, 50, Duration::from_secs(1))?).await?;
//! if limiter.try_acquire(1).await?.allowed() {
//!     // as after tryAcquire() in Java
//! }
//! limiter.acquire(5).await?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/redisson.md` says when to use it and when an engine of ours, and where Redisson's own scripts err and
//! these do not.
//!
//! # Layout
//!
//! - [`RateLimiter`] asks, in words that `words` puts together from `lua/redisson/`; `names` says what lies where,
//!   `answer` reads what comes back.
//! - [`Rate`] is what a limiter is configured to, [`Error`] why there is no answer.
//! - `line` is where those wait who come first to be served first, and `unheard` takes back what was taken for
//!   somebody who has left.

mod answer;
mod error;
mod limiter;
mod line;
mod names;
mod rate;
mod unheard;
mod words;

pub use error::Error;
pub use limiter::RateLimiter;
pub use rate::{InvalidRate, Mode, Rate};

pub(crate) use line::Lines;
