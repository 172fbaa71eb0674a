//! `tidegate man [DIR]`

use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;

use crate::error::{CliError, ExitStatus};
use crate::output::print;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate man | man -l -                      the page of tidegate
  tidegate man ~/.local/share/man/man1         also one per command, such as tidegate-serve(1)")]
pub(crate) struct Options {
    /// Existing directory to write all pages to
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

pub(crate) fn run(options: &Options, command: Command) -> Result<ExitStatus, CliError> {
    // `tidegate help serve` is the same as `tidegate serve --help` and needs no pages.
    let command = command.disable_help_subcommand(true);
    match &options.directory {
        None => {
            let mut page = Vec::new();
            Man::new(command).manual("Tidegate").render(&mut page)?;
            print(&page)?;
        }
        Some(directory) => clap_mangen::generate_to(command, directory)
            .map_err(|error| format!("cannot write to {} ({error})", directory.display()))?,
    }
    Ok(ExitStatus::Success)
}
