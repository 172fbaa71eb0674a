//! The command line.
//!
//! # Layout
//!
//! - `serve`, `check`, `explain`, `validate`, `simulate`, `replay`, `bench`, `health`, `top`, `completions`, `man`: one
//!   command each; `key`: inspect and reset. `asked`: what they are about and who answers. `client`: asking a server; `secure`:
//!   with TLS. `progress`: how far `bench` is.

mod asked;
mod bench;
mod check;
mod client;
mod completions;
mod explain;
mod health;
mod key;
mod man;
mod progress;
mod replay;
mod secure;
mod serve;
mod simulate;
mod top;
mod validate;

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::logs::is_hidden;

/// Decides whether a request may pass now and, if not, when to come back
#[derive(Parser, Debug)]
#[command(
    name = "tidegate",
    version,
    after_help = "\
Examples:
  tidegate serve                                      a server to try out, with a sample policy
  tidegate serve --config policy.yaml --store redis://127.0.0.1:6379
  tidegate check login 1.2.3.4                        may this key pass?
  tidegate validate policy.yaml                       what is wrong with this policy?

Every command has examples of its own: tidegate serve --help"
)]
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
    /// Tell what a key has used, under each limit
    #[command(override_usage = "tidegate inspect [OPTIONS] (RULE | --limit LIMIT) KEY")]
    Inspect(key::Options),
    /// Forget what a key has used; asked of a server it needs the admin token
    #[command(override_usage = "tidegate reset [OPTIONS] (RULE | --limit LIMIT) KEY")]
    Reset(key::Options),
    /// Say in sentences which rules apply, what is left of each, what denies and until when
    #[command(override_usage = "tidegate explain [OPTIONS] (RULE | --limit LIMIT) KEY\n       \
                                tidegate explain [OPTIONS] --path PATH [--method METHOD] ..")]
    Explain(explain::Options),
    /// Say what is wrong with policy files: exit code 0 if nothing, 1 if something
    Validate(validate::Options),
    /// Try limits on imagined traffic, with a table, charts and a picture
    Simulate(simulate::Options),
    /// Ask whether a server can answer: exit code 0 if it can, 1 if not
    Health(health::Options),
    /// Watch a server: its rules, hottest keys and denials, every second
    Top(top::Options),
    /// Print what a shell needs to complete the command line
    Completions(completions::Options),
    /// Print the manual page, or write one for each command
    Man(man::Options),
    /// Send an access log through a policy: who would have been denied, and when
    Replay(replay::Options),
    /// Measure how fast a server or a Redis answers, at a fixed rate or as fast as it can
    Bench(bench::Options),
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
        Command::Inspect(options) => key::run(key::Verb::Inspect, options),
        Command::Reset(options) => key::run(key::Verb::Reset, options),
        Command::Explain(options) => explain::run(options),
        Command::Validate(options) => validate::run(options),
        Command::Simulate(options) => simulate::run(options),
        Command::Health(options) => health::run(options),
        Command::Top(options) => top::run(options),
        Command::Completions(options) => completions::run(options),
        Command::Man(options) => man::run(options),
        Command::Replay(options) => replay::run(options),
        Command::Bench(options) => bench::run(options),
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

/// A line on standard output.
fn say(line: impl fmt::Display) -> io::Result<()> {
    print(format!("{}\n", visible(line)).as_bytes())
}

/// A text on standard output. Whoever has read enough of it may go: that is no failure.
fn print(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// May standard output have colours?
fn has_colours() -> bool {
    let unset = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && unset && !is_dumb
}

/// A line on standard error, if there is one.
fn complain(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", visible(line));
}

/// The same without characters that act on a terminal instead of being seen: some of it is what a server or a file says.
/// They are written as JSON has them, since some of it is JSON.
fn visible(text: impl fmt::Display) -> String {
    let mut shown = String::new();
    for c in text.to_string().chars() {
        if is_hidden(c) && !matches!(c, '\n' | '\t') {
            for unit in c.encode_utf16(&mut [0; 2]) {
                shown.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_seen_and_json_stays_json() {
        let value = serde_json::json!({
            "escape\u{1b}[2J": "del\u{7f} csi\u{9b} turned\u{202e} bom\u{feff}",
            "kept": "é ✓ 🌊 tab\t line\n",
        });
        let shown = visible(&value);
        assert!(!shown.contains(is_hidden), "{shown:?}");
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read, value, "{shown}");
        assert_eq!(visible("a\u{7f}b\tc\n✓"), "a\\u007fb\tc\n✓");
    }
}
