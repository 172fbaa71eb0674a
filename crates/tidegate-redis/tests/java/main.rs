//! Limiters shared with Java: Redisson's `RRateLimiter` and Spring Cloud Gateway's limiter.
//!
//! - `rate_limiter`: the limiter alone. `foreign_data`: keys of other programs, and expiry.
//!   `many_entries`: more entries than one call reads. `lowered_rate`: a rate lowered below its
//!   entries. `wait_queue`: callers that wait for permits. `topologies`: Cluster, Sentinel, and a
//!   user with few permissions.
//! - `redisson_bugs`: bugs of Redisson's own scripts, taken from its jar, that Tidegate's scripts
//!   do not have. `random_traces`: random histories of both against a model.
//! - `full_window`: the permits in use while more callers wait than the rate serves.
//! - `interop`: a real Redisson of each version in its own process. `race`: Java and Rust at the
//!   same time, with a checker that does not rely on either limiter.
//! - `spring`: Spring's bucket, compared with the script in the real jar. `server_cost`: the cost
//!   in Redis.
//!
//! Without Java, or without the output of `interop/redisson/fetch`, the tests that need it print a
//! line and return.

#![expect(clippy::unwrap_used, reason = "a test")]

mod fixture;
mod foreign_data;
mod full_window;
mod interop;
mod jvm;
mod lowered_rate;
mod many_entries;
mod race;
mod random_traces;
mod rate_limiter;
mod raw_keys;
mod redisson_bugs;
mod redisson_scripts;
mod server_cost;
mod spring;
mod topologies;
mod wait_queue;
