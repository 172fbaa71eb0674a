//! Injects faults into real processes and prints what callers saw.
//!
//! # Layout
//!
//! Each module imports only modules above it in this list. Redis processes come from `testkit`.
//!
//! - `log` records every decision as its caller saw it. `load` sends checks.
//! - `checker` checks the log, and does not import the limiter.
//! - `stack` builds the layers as the server does.
//! - `proxy` stands between limiter and Redis and delays, drops or closes. `isolated_redis`: a
//!   Redis in its own network namespace. `process_memory`: of this process.
//! - `table`: figures and their bounds. `faults`: one file per fault; each returns a table.

#![expect(clippy::unwrap_used, reason = "a harness that cannot continue stops")]

mod checker;
mod faults;
mod isolated_redis;
mod load;
mod log;
mod process_memory;
mod proxy;
mod stack;
mod table;

use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::Builder;

use faults::{Experiment, Options};

/// Injects a fault and prints what callers saw: exit code 1 if a bound does not hold
#[derive(Parser)]
#[command(name = "tidegate-chaos", version)]
struct Arguments {
    /// The fault
    fault: Experiment,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let Arguments { fault, options } = Arguments::parse();
    if fault == Experiment::All {
        return faults::all::run(&options);
    }
    // Two threads, as on a small machine: the servers need some of it too.
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let table = runtime.block_on(fault.run(&options));
    table.print();
    match table.holds() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
