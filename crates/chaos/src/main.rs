//! Provokes failures on purpose, with real processes, and prints what callers saw of them.
//!
//! # Layout
//!
//! - `faults`: one file for each failure; each makes a table of figures. `table` prints it.
//! - `stack` puts the layers together as the server does. `load` asks, and `log` keeps every decision as its
//!   caller saw it. `checker` judges the log, and knows nothing of the limiter.
//! - `proxy` stands between the two and spoils what passes. `apart` is a Redis behind a network link of
//!   its own. `process` says how much memory this process has.
//! - The servers themselves are started by what the tests of `tidegate-redis` start theirs with.

#![expect(clippy::unwrap_used, reason = "a harness that cannot go on stops")]

mod apart;
mod checker;
#[path = "../../tidegate-redis/tests/support/cluster.rs"]
mod cluster;
mod faults;
mod load;
mod log;
mod process;
mod proxy;
#[path = "../../tidegate-redis/tests/support/sentinel.rs"]
mod sentinel;
#[path = "../../tidegate-redis/tests/support/server.rs"]
mod server;
mod stack;
mod table;
#[path = "../../tidegate-redis/tests/support/traffic.rs"]
mod traffic;

use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::Builder;

use faults::{Fault, Options};

/// Provokes a failure and prints what callers saw of it: exit code 1 if a bound does not hold
#[derive(Parser)]
#[command(name = "tidegate-chaos", version)]
struct Arguments {
    /// What goes wrong
    fault: Fault,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let Arguments { fault, options } = Arguments::parse();
    if fault == Fault::All {
        return faults::all::run(&options);
    }
    // As many as a small machine has: the servers need some of it.
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let table = runtime.block_on(fault.run(&options));
    table.print();
    match table.holds() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
