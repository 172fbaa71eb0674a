//! `tidegate`: the server and its tools on the command line.

use std::process::ExitCode;

use clap::Parser;
use tidegate_cli::{self, Cli};

fn main() -> ExitCode {
    tidegate_cli::run(Cli::parse())
}
