//! `tidegate validate FILE..`

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::Args;

use super::{Failure, Outcome, complain, say};
use crate::config::{Config, Machine, Problems};
use crate::envoy::config::{EnvoyConfig, Options as EnvoyOptions, SameDomain};

/// Says what is wrong with policy files.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate validate policy.yaml                       file:line:column and a caret, if faulty
  tidegate validate /etc/ratelimit/config             a folder of envoyproxy/ratelimit's files
  git diff --name-only -z '*.yaml' | xargs -0r tidegate validate")]
pub(super) struct Options {
    /// Policy files, with what they include; or folders of Envoy's rate limits
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// As with serve: files of a folder may be about one domain
    #[arg(long)]
    envoy_merge: bool,
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::Good;
    for file in &options.files {
        let read = if file.is_dir() { folder(file, options) } else { policy(file) };
        match read {
            Ok(content) => say(format_args!("{}: good, {content}", file.display()))?,
            Err(problems) => {
                complain(problems);
                outcome = Outcome::Bad;
            }
        }
    }
    Ok(outcome)
}

/// What is in a policy file, if it is good.
fn policy(file: &Path) -> Result<String, Problems> {
    let loaded = Config::load(file)?;
    warn(&loaded.warnings);
    if let Some(tls) = &loaded.settings.tls {
        tls.load(&Machine)?;
    }
    Ok(count(loaded.rules.len(), "rule"))
}

/// What is in a folder of Envoy's rate limits, if it is good.
fn folder(folder: &Path, options: &Options) -> Result<String, Problems> {
    let same_domain = if options.envoy_merge { SameDomain::Merge } else { SameDomain::Refuse };
    let read = EnvoyConfig::load(folder, &EnvoyOptions { same_domain, ..EnvoyOptions::default() })?;
    warn(read.warnings());
    let domains = count(read.domains().count(), "domain");
    Ok(format!("{domains}, {}", count(read.leaves().count(), "limited descriptor")))
}

fn warn(warnings: &[impl Display]) {
    warnings.iter().for_each(complain);
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
