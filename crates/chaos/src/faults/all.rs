//! Every fault in its own process, so that one does not affect the figures of the next.

use std::env;
use std::process::{Command, ExitCode};

use clap::ValueEnum as _;
use tokio::time::Instant;

use super::{Experiment, Options};
use crate::table::FigureTable;

/// Runs all faults and prints a summary.
pub(crate) fn run(options: &Options) -> ExitCode {
    let program = env::current_exe().unwrap();
    let mut summary = FigureTable::new("summary");
    for fault in Experiment::value_variants().iter().filter(|fault| **fault != Experiment::All) {
        let begun = Instant::now();
        let status = Command::new(&program).arg(fault.name()).args(options.arguments()).status();
        let holds = status.unwrap().success();
        let result = if holds { "holds" } else { "does not hold" };
        let figure = format!("{result}, {:.0} s", begun.elapsed().as_secs_f64());
        summary.claim(&fault.name(), figure, holds);
    }
    summary.print();
    match summary.holds() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
