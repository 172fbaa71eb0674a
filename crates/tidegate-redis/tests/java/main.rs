//! Limiters that are shared with Java: Redisson's and Spring Cloud Gateway's.
//!
//! - `ours`: what they promise, with nobody else on them. `intact`: what is not theirs to change, and what ends when.
//!   `many`: more entries than are looked at in one call. `lowered`: a rate that is lowered over them. `waiting`: those who wait for permits. `places`: a Cluster,
//!   sentinels, and a user who may do little.
//! - `mistakes`: where Redisson's own scripts err, taken from its jar, and ours do not. `traces`: random histories
//!   of both against a model.
//! - `interop`: a real Redisson in a process of its own, of each version. `race`: both at once, and a checker that
//!   trusts neither.
//! - `spring`: the other bucket, beside the script in the real jar. `costs`: what it all takes in Redis.
//!
//! Without Java, and what `interop/redisson/fetch` gets, the parts that need it say so and end.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../support/cluster.rs"]
mod cluster;
mod costs;
mod driver;
mod intact;
mod interop;
mod lab;
mod lowered;
mod many;
mod mistakes;
mod ours;
mod places;
mod race;
#[path = "../support/sentinel.rs"]
mod sentinel;
#[path = "../support/server.rs"]
mod server;
mod set;
mod spring;
mod theirs;
mod traces;
mod waiting;
