//! The command line.
//!
//! # Layout
//!
//! - `serve`, `check`, `validate`: one command each. `client`: asking a server.

mod check;
mod client;
mod serve;
mod validate;

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::logs::is_hidden;

/// Decides whether a request may pass now and, if not, when to come back
#[derive(Parser, Debug)]
#[command(name = "tidegate", version)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Answer over HTTP, the Redis protocol and gRPC for Envoy
    Serve(serve::Options),
    /// Ask whether a key may pass: exit code 0 if it may, 1 if not, 2 if nobody knows
    Check(check::Options),
    /// Say what is wrong with policy files: exit code 0 if nothing, 1 if something
    Validate(validate::Options),
}

/// What became of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// Allowed, or done.
    Good,
    /// Denied, or faulty.
    Bad,
}

/// What went wrong, to be told on standard error.
type Failure = Box<dyn Error + Send + Sync>;

/// Runs a command.
pub fn run(arguments: Arguments) -> ExitCode {
    let outcome = match &arguments.command {
        Command::Serve(options) => serve::run(options),
        Command::Check(options) => check::run(options),
        Command::Validate(options) => validate::run(options),
    };
    match outcome {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::from(1),
        Err(error) => {
            complain(format_args!("error: {error}"));
            let mut cause = error.source();
            while let Some(error) = cause {
                complain(format_args!("  because: {error}"));
                cause = error.source();
            }
            ExitCode::from(2)
        }
    }
}

/// A line on standard output. Unlike `println!` it does not panic when nobody reads any more.
fn say(line: impl fmt::Display) -> io::Result<()> {
    writeln!(io::stdout(), "{}", visible(line))
}

/// A line on standard error, if there is one.
fn complain(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", visible(line));
}

/// The same without characters that act on a terminal instead of being seen: some of it is what a server or a file says.
fn visible(text: impl fmt::Display) -> String {
    let mut shown = String::new();
    for c in text.to_string().chars() {
        if is_hidden(c) && !matches!(c, '\n' | '\t') {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}
