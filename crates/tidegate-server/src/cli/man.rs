//! `tidegate man [DIR]`

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use super::{Arguments, Failure, Outcome, print};

/// Prints the manual page, or writes one for each command.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate man | man -l -                      the page of tidegate itself
  tidegate man ~/.local/share/man/man1         that, and one for each command: tidegate-serve(1)")]
pub(super) struct Options {
    /// The folder to write all pages to; it must be there
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    // `tidegate help serve` is another way to say `tidegate serve --help`, and needs no pages.
    let command = Arguments::command().disable_help_subcommand(true);
    match &options.folder {
        None => {
            let mut page = Vec::new();
            Man::new(command).manual("Tidegate").render(&mut page)?;
            print(&page)?;
        }
        Some(folder) => clap_mangen::generate_to(command, folder)
            .map_err(|error| format!("cannot write to {} ({error})", folder.display()))?,
    }
    Ok(Outcome::Good)
}
