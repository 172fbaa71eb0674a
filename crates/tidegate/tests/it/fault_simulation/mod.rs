//! The layers on a simulated network with faults.
//!
//! Packets are delayed, lost and reordered; callers drop their futures; processes die; stores
//! stall, restart empty, fail over with lost writes, and have clocks that step. Everything follows
//! from one seed, and nothing sleeps.
//!
//! `cargo test -p tidegate --test it fault_simulation` runs ten thousand seeds, more with
//! `TIDEGATE_LONG=1`. `TIDEGATE_SEED=n` runs one and prints every event.
//!
//! - `plan`: limits, layers, `traffic` and `faults`, drawn from the seed.
//! - `world`: stores, processes and packets in flight. Its parts are `time`, `network`, `store` and
//!   `node`; `inject` applies faults, `run` advances time, `log` records the results.
//! - `checker`: compares the log with the claims. It does not import the layers.
//! - `broken_layers`, `broken_breaker`: layers with one bug each. `seeds`: the tests.

mod broken_breaker;
mod broken_layers;
mod checker;
mod faults;
mod inject;
mod log;
mod network;
mod node;
mod plan;
mod run;
mod seeds;
mod store;
mod time;
mod traffic;
mod world;
