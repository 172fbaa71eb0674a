//! `tidegate init [FILE]`

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::error::{CliError, ExitStatus};
use crate::output::{print, print_line};
use tidegate_server::internal::policy::SAMPLE;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate init                                       writes policy.yaml
  tidegate init limits/api.yaml
  tidegate init - | less                              prints it

The file has three rules with comments, the same that `tidegate serve` uses without --config. An
existing file is never overwritten.")]
pub(crate) struct Options {
    /// File to write; - for standard output
    #[arg(value_name = "FILE", default_value = "policy.yaml")]
    file: PathBuf,
}

/// Marks editors find the schema by.
const HEADER: &str = "\
# A policy of Tidegate. `tidegate validate` checks it, and a server that runs with it reads it
# again when it changes. All fields: docs/reference/policy.md. For completion in your editor:
#   tidegate schema > policy.schema.json
# yaml-language-server: $schema=policy.schema.json
";

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    let rules = SAMPLE.split_once('\n').map_or(SAMPLE, |(_title, rules)| rules);
    let text = format!("{HEADER}{rules}");
    let file = &*options.file;
    if file == Path::new("-") {
        print(text.as_bytes())?;
        return Ok(ExitStatus::Success);
    }
    let shown = file.display();
    let created = OpenOptions::new().write(true).create_new(true).open(file);
    let mut created = created.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            format!("{shown} exists; name another file: tidegate init FILE")
        }
        _ => format!("cannot write {shown}: {error}"),
    })?;
    created.write_all(text.as_bytes()).map_err(|error| format!("cannot write {shown}: {error}"))?;
    print_line(format_args!("wrote {shown}; start a server with: tidegate serve -c {shown}"))?;
    Ok(ExitStatus::Success)
}
