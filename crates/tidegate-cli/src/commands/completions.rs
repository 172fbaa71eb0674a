//! `tidegate completions SHELL`

use clap::{Args, Command};
use clap_complete::Shell;

use crate::error::{CliError, ExitStatus};
use crate::output::print;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate
  tidegate completions zsh > ~/.zfunc/_tidegate          with ~/.zfunc in fpath
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish")]
pub(crate) struct Options {
    /// Shell to complete for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(options: &Options, mut command: Command) -> Result<ExitStatus, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, "tidegate", &mut script);
    print(&script)?;
    Ok(ExitStatus::Success)
}
