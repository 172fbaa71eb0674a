//! `tidegate validate FILE..`

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};

use crate::error::{CliError, ExitStatus};
use crate::output::{print_error, print_line};
use tidegate_config::envoy::{DuplicateDomain, EnvoyConfig, EnvoyLoadOptions as EnvoyOptions};
use tidegate_config::{OsEnvironment, PolicyLoader, Problem, Problems};
use tidegate_server::internal::tls::ServerTls;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate validate policy.yaml                       file:line:column and a caret for each error
  tidegate validate /etc/ratelimit/config             a directory of envoyproxy/ratelimit files
  tidegate validate policy.yaml --json | jq .problems
  git diff --name-only -z '*.yaml' | xargs -0r tidegate validate")]
pub(crate) struct Options {
    /// Policy files (with their includes), or directories of envoyproxy/ratelimit files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Merge files of the same domain, as with serve
    #[arg(long)]
    envoy_merge: bool,
    /// Print one line of JSON for each file
    #[arg(long)]
    json: bool,
    /// Print errors only; no warnings, no line for a valid file
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    let mut outcome = ExitStatus::Success;
    for file in &options.files {
        let read = if file.is_dir() { envoy_directory(file, options) } else { policy(file) };
        outcome = if read.is_err() { ExitStatus::Negative } else { outcome };
        if options.json {
            print_line(object(file, &read))?;
            continue;
        }
        match read {
            Ok(_) if options.quiet => {}
            Ok(FileSummary { counts, warnings }) => {
                warnings.iter().for_each(print_error);
                let counts: Vec<String> = counts.iter().map(count).collect();
                print_line(format_args!("{}: valid, {}", file.display(), counts.join(", ")))?;
            }
            Err(problems) => print_error(problems),
        }
    }
    Ok(outcome)
}

/// Contents of a valid file.
struct FileSummary {
    /// Counts with their nouns: rules, domains, descriptors.
    counts: Vec<(usize, &'static str)>,
    warnings: Vec<Problem>,
}

fn policy(file: &Path) -> Result<FileSummary, Problems> {
    let loaded = PolicyLoader::load(file)?;
    if let Some(tls) = &loaded.settings.tls {
        ServerTls::load(tls, &OsEnvironment)?;
    }
    Ok(FileSummary { counts: vec![(loaded.rules.len(), "rule")], warnings: loaded.warnings })
}

fn envoy_directory(directory: &Path, options: &Options) -> Result<FileSummary, Problems> {
    let same_domain =
        if options.envoy_merge { DuplicateDomain::Merge } else { DuplicateDomain::Refuse };
    let load_options = EnvoyOptions { same_domain, ..EnvoyOptions::default() };
    let read = EnvoyConfig::load(directory, &load_options)?;
    let (domains, leaves) = (read.domains().count(), read.leaves().count());
    let counts = vec![(domains, "domain"), (leaves, "limited descriptor")];
    Ok(FileSummary { counts, warnings: read.warnings().to_vec() })
}

fn object(file: &Path, read: &Result<FileSummary, Problems>) -> Value {
    let list = |problems: &mut dyn Iterator<Item = &Problem>| -> Vec<Value> {
        problems.map(problem).collect()
    };
    let mut object = Map::new();
    object.insert("file".into(), file.display().to_string().into());
    object.insert("good".into(), read.is_ok().into());
    match read {
        Ok(FileSummary { counts, warnings }) => {
            for (number, what) in counts {
                object.insert(format!("{}s", what.replace(' ', "_")), (*number).into());
            }
            object.insert("warnings".into(), list(&mut warnings.iter()).into());
        }
        Err(problems) => {
            object.insert("count".into(), problems.count().into());
            object.insert("problems".into(), list(&mut problems.iter()).into());
        }
    }
    object.into()
}

fn problem(problem: &Problem) -> Value {
    let (file, line, column) = (problem.file(), problem.line(), problem.column());
    let (field, message) = (problem.field(), problem.message());
    json!({ "file": file, "line": line, "column": column, "field": field, "message": message })
}

fn count((number, what): &(usize, &str)) -> String {
    format!("{number} {what}{}", if *number == 1 { "" } else { "s" })
}
