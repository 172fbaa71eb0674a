//! Redisson's `RRateLimiter`, shared with Java programs. Imports: client, wait_queue,
//! wait_ticket.
//!
//! A limiter is identified by its name. Both sides store it under the same keys, in the same
//! format. So each counts the permits of the other, and a rate set by one is the rate of the other:
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
//! `docs/use/redisson.md` compares it with an engine of Tidegate, and lists bugs of Redisson's own
//! scripts that these scripts do not have.

mod calls;
mod error;
mod keys;
mod limiter;
mod rate;
mod reply;
mod scripts;
mod take;
mod turn;
mod undo;

pub use error::Error;
pub use limiter::RateLimiter;
pub use rate::{InvalidRate, Mode, Rate};
