//! Tidegate's layers in a world that goes wrong: packets are slow, lost and overtake each other, callers go away
//! in the middle, processes die, stores stand still, come back empty, are replaced by others that do not know of
//! the last calls, and have clocks that are set. Everything follows from one seed, and nothing sleeps.
//!
//! `cargo test -p tidegate --test simulation` tries ten thousand seeds, more with `TIDEGATE_LONG=1`, and just one with
//! `TIDEGATE_SEED=n`, of which it prints everything that happened.
//!
//! # Layout
//!
//! - `plan`: what is to happen, drawn from the seed: limits, layers, `traffic`, `faults`.
//! - `world`: stores, processes, what is on its way. `time`, `network`, `server` and `node` are its parts;
//!   `happen` lets faults happen; `run` lets time pass; `log` is what is left.
//! - `checker`: holds the log to what is claimed. It knows nothing of what the layers do.
//! - `mutants`: layers that do one thing wrong. `seeds`: the tests.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../support/promise.rs"]
mod bounds;
mod checker;
mod faults;
mod happen;
mod log;
mod mutants;
mod network;
mod node;
mod plan;
mod run;
mod seeds;
mod server;
mod time;
mod traffic;
mod world;
