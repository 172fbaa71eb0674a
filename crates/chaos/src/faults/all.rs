//! Everything, each in a process of its own: what one leaves behind does not spoil the figures of the next.

use std::env;
use std::process::{Command, ExitCode};

use clap::ValueEnum as _;
use tokio::time::Instant;

use super::{Fault, Options};
use crate::table::Table;

/// Runs them one after the other and prints who failed.
pub(crate) fn run(options: &Options) -> ExitCode {
    let program = env::current_exe().unwrap();
    let mut summary = Table::new("summary");
    for fault in Fault::value_variants().iter().filter(|fault| **fault != Fault::All) {
        let begun = Instant::now();
        let status = Command::new(&program).arg(fault.name()).args(options.words()).status();
        let holds = status.unwrap().success();
        let word = if holds { "holds" } else { "does not hold" };
        let figure = format!("{word}, {:.0} s", begun.elapsed().as_secs_f64());
        summary.so(&fault.name(), figure, holds);
    }
    summary.print();
    match summary.holds() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
