//! `tidegate completions SHELL`

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Arguments, Failure, Outcome, print};

/// Prints what a shell needs to complete the command line.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate
  tidegate completions zsh > ~/.zfunc/_tidegate          with ~/.zfunc in fpath
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish")]
pub(super) struct Options {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Arguments::command(), "tidegate", &mut script);
    print(&script)?;
    Ok(Outcome::Good)
}
