//! `tidegate`: the server and its tools on the command line.

use std::process::ExitCode;

use tidegate_cli::{self, Cli};

fn main() -> ExitCode {
    tidegate_cli::run(Cli::of_process())
}
