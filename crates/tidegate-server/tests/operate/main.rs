//! What whoever runs the server relies on: commands, files to install, signals to a supervisor, spans.

#![expect(clippy::unwrap_used, reason = "a test")]

mod collector;
mod commands;
#[path = "../support/envoy.rs"]
mod envoy;
#[path = "../support/life.rs"]
mod life;
mod metrics;
mod packaging;
#[path = "../support/resp.rs"]
mod resp;
#[allow(unreachable_pub, reason = "shared with other tests")]
#[path = "../support/mod.rs"]
mod support;
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

/// What a program says that not every machine has; without it the test says so, past the capture.
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

/// What was said on both.
fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}
