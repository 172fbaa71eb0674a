//! `tidegate`: the server and its tools on the command line.

use std::process::ExitCode;

use clap::Parser;
use tidegate_server::cli::{self, Arguments};

fn main() -> ExitCode {
    cli::run(Arguments::parse())
}
