//! `tidegate validate FILE..`

use std::path::PathBuf;

use clap::Args;

use super::{Failure, Outcome, complain, say};
use crate::config::Config;

/// Says what is wrong with policy files.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// The files; what they include is looked at too
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::Good;
    for file in &options.files {
        match Config::load(file) {
            Ok(loaded) => {
                for warning in &loaded.warnings {
                    complain(warning);
                }
                let rules = match loaded.rules.len() {
                    1 => "1 rule".into(),
                    count => format!("{count} rules"),
                };
                say(format_args!("{}: good, {rules}", file.display()))?;
            }
            Err(problems) => {
                complain(problems);
                outcome = Outcome::Bad;
            }
        }
    }
    Ok(outcome)
}
