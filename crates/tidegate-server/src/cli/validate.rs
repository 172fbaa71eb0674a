//! `tidegate validate FILE..`

use std::path::PathBuf;

use clap::Args;

use super::{Failure, Outcome, complain, say};
use crate::config::{Config, Loaded};
use crate::store::{Store, StoreError};

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
                if let Err(error) = store(&loaded) {
                    complain(format_args!("{}: store: {error}", file.display()));
                    outcome = Outcome::Bad;
                    continue;
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

/// A server could start with the store that the policy names.
fn store(loaded: &Loaded) -> Result<(), StoreError> {
    let url = loaded.settings.store.as_ref();
    url.map_or(Ok(()), |url| url.expose().parse::<Store>().map(drop))
}
