//! `tidegate validate FILE..`

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};

use super::{Failure, Outcome, complain, say};
use crate::config::{Config, Machine, Problem, Problems};
use crate::envoy::config::{EnvoyConfig, Options as EnvoyOptions, SameDomain};

/// Says what is wrong with policy files.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate validate policy.yaml                       file:line:column and a caret, if faulty
  tidegate validate /etc/ratelimit/config             a folder of envoyproxy/ratelimit's files
  tidegate validate policy.yaml --json | jq .problems
  git diff --name-only -z '*.yaml' | xargs -0r tidegate validate")]
pub(super) struct Options {
    /// Policy files, with what they include; or folders of Envoy's rate limits
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// As with serve: files of a folder may be about one domain
    #[arg(long)]
    envoy_merge: bool,
    /// Print one line of JSON for each file
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::Good;
    for file in &options.files {
        let read = if file.is_dir() { folder(file, options) } else { policy(file) };
        outcome = if read.is_err() { Outcome::Bad } else { outcome };
        if options.json {
            say(object(file, &read))?;
            continue;
        }
        match read {
            Ok(Content { counts, warnings }) => {
                warnings.iter().for_each(complain);
                let counts: Vec<String> = counts.iter().map(count).collect();
                say(format_args!("{}: good, {}", file.display(), counts.join(", ")))?;
            }
            Err(problems) => complain(problems),
        }
    }
    Ok(outcome)
}

/// What is in a file that is good.
struct Content {
    /// How many of what.
    counts: Vec<(usize, &'static str)>,
    warnings: Vec<Problem>,
}

fn policy(file: &Path) -> Result<Content, Problems> {
    let loaded = Config::load(file)?;
    if let Some(tls) = &loaded.settings.tls {
        tls.load(&Machine)?;
    }
    Ok(Content { counts: vec![(loaded.rules.len(), "rule")], warnings: loaded.warnings })
}

/// A folder of Envoy's rate limits.
fn folder(folder: &Path, options: &Options) -> Result<Content, Problems> {
    let same_domain = if options.envoy_merge { SameDomain::Merge } else { SameDomain::Refuse };
    let read = EnvoyConfig::load(folder, &EnvoyOptions { same_domain, ..EnvoyOptions::default() })?;
    let (domains, leaves) = (read.domains().count(), read.leaves().count());
    let counts = vec![(domains, "domain"), (leaves, "limited descriptor")];
    Ok(Content { counts, warnings: read.warnings().to_vec() })
}

fn object(file: &Path, read: &Result<Content, Problems>) -> Value {
    let list = |problems: &mut dyn Iterator<Item = &Problem>| -> Vec<Value> {
        problems.map(problem).collect()
    };
    let mut object = Map::new();
    object.insert("file".into(), file.display().to_string().into());
    object.insert("good".into(), read.is_ok().into());
    match read {
        Ok(Content { counts, warnings }) => {
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
