//! What operators rely on: commands, packaging files, notifications to systemd, metrics, spans.

#![expect(clippy::unwrap_used, reason = "a test")]

mod activation;
mod collector;
mod commands;
mod compose;
mod install;
mod metrics;
mod packaging;
mod real_collector;
mod systemd;
mod traces;

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file of the repository, by its path from the root.
fn at_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> String {
    let read = std::fs::read_to_string(at_root(path));
    read.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Output of a program that may not be installed; without it, prints that the test is skipped.
fn run_if_there(program: &str, arguments: &[&str], folder: &Path) -> Option<Output> {
    match Command::new(program).args(arguments).current_dir(folder).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let line = format!("skipped: {program} {}: not installed", arguments.join(" "));
            let _ = writeln!(std::io::stderr(), "{line}");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// Stdout and stderr.
fn output_text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}
