//! Command line of `tidegate`: clap root and dispatch. No module imports this one.
//!
//! ```console
//! $ tidegate serve --config policy.yaml --store redis://127.0.0.1:6379
//! $ tidegate check login 1.2.3.4
//! $ tidegate simulate --limit '100/s burst 20' --traffic 'poisson 120/s for 1m'
//! ```
//!
//! # Layout
//!
//! Each module imports only modules above it in this list.
//!
//! - `number_args`: numbers as arguments. `environment_args`: variables of options. `command_help`:
//!   commands by task.
//! - `error`: exit status. `output`: standard output and standard error. `table`: text tables.
//! - `tls_args`, `store_args`: common arguments. `endpoint`: connections to a listener.
//!   `http_client`: calls to a server. `subject_args`: the rule and key of a command.
//! - `bench`: load generator. `replay`: access logs against policies. `progress` of both.
//! - `commands`: one file per command.

mod bench;
mod command_help;
mod commands;
mod endpoint;
mod environment_args;
mod error;
mod http_client;
mod number_args;
mod output;
mod progress;
mod replay;
mod store_args;
mod subject_args;
mod table;
mod tls_args;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::inspect_reset::KeyCommand;
use crate::error::ExitStatus;
use crate::output::print_error;

/// Rate limiter: server and command-line tools
#[derive(Parser, Debug)]
#[command(
    name = "tidegate",
    version,
    after_help = "\
Examples:
  tidegate serve                                      a server with a sample policy
  tidegate init                                       write a commented policy.yaml
  tidegate serve -c policy.yaml --store redis://127.0.0.1:6379
  tidegate check login 1.2.3.4                        is this key allowed?

See tidegate COMMAND --help for examples of each command."
)]
pub struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand, Debug)]
enum CliCommand {
    /// Run the server: HTTP, Redis protocol and gRPC for Envoy
    Serve(Box<commands::serve::Options>),
    /// Run the server with the environment variables of envoyproxy/ratelimit
    Ratelimit(commands::ratelimit::Options),
    /// Check a key: exit code 0 allowed, 1 denied, 2 error
    Check(commands::check::Options),
    /// Show the state of a key under each limit
    #[command(override_usage = "tidegate inspect [OPTIONS] (RULE | --limit LIMIT) KEY")]
    Inspect(commands::inspect_reset::Options),
    /// Reset a key; on a server this needs the admin token
    #[command(override_usage = "tidegate reset [OPTIONS] (RULE | --limit LIMIT) KEY")]
    Reset(commands::inspect_reset::Options),
    /// Set, list or delete limits of single keys on a running server
    Override(commands::overrides::Options),
    /// Explain which rules apply to a key or request, and what they decide
    #[command(override_usage = "tidegate explain [OPTIONS] (RULE | --limit LIMIT) KEY\n       \
                                tidegate explain [OPTIONS] --path PATH [--method METHOD] ..")]
    Explain(commands::explain::Options),
    /// Write a commented policy file to start from
    Init(commands::init::Options),
    /// Validate policy files: exit code 0 valid, 1 invalid
    Validate(commands::validate::Options),
    /// Compare two policies: what changes, for whom, and which usage is kept
    Diff(commands::diff::Options),
    /// Print the JSON Schema of the policy file, for editors
    #[command(after_help = "\
Examples:
  tidegate schema > policy.schema.json
  tidegate schema | jq '.properties | keys'

An editor with a YAML language server validates a policy file whose first line is
# yaml-language-server: $schema=policy.schema.json")]
    Schema,
    /// Simulate limits on synthetic traffic: table, SVG chart
    Simulate(commands::simulate::Options),
    /// Query the health of a server: exit code 0 healthy, 1 unhealthy
    Health(commands::health::Options),
    /// Live view of a server: rules, hot keys, denials
    Top(commands::top::Options),
    /// Print a shell completion script
    Completions(commands::completions::Options),
    /// Print the manual page, or write one per command
    Man(commands::man::Options),
    /// Replay an access log through a policy and report denials
    Replay(commands::replay::Options),
    /// Load-test a server or a Redis, open or closed loop
    Bench(commands::bench::Options),
}

impl Cli {
    /// The arguments of this process. A program called `ratelimit` runs the command of that name.
    pub fn of_process() -> Self {
        let mut arguments: Vec<OsString> = std::env::args_os().collect();
        let program = arguments.first().map(Path::new).and_then(Path::file_name);
        if program == Some(OsStr::new("ratelimit")) {
            arguments.insert(1, "ratelimit".into());
        }
        let command = command_help::by_task(environment_args::with_variables(Self::command()));
        let parsed = command.try_get_matches_from(&arguments);
        let parsed = parsed.and_then(|matches| Self::from_arg_matches(&matches));
        parsed.unwrap_or_else(|error| exit_with_usage(&error, &arguments))
    }
}

/// Prints help, the version, or an error with the variable that it came from.
fn exit_with_usage(error: &clap::Error, arguments: &[OsString]) -> ! {
    if let Some(name) = environment_args::blamed_variable(error, arguments) {
        print_error(format_args!("note: the value comes from the environment variable {name}"));
    }
    error.exit()
}

/// Runs a command and prints its error, if any. The exit code is 0, 1 (negative result) or 2
/// (error).
pub fn run(arguments: Cli) -> ExitCode {
    let outcome = match &arguments.command {
        CliCommand::Serve(options) => commands::serve::run(options),
        CliCommand::Ratelimit(_) => commands::ratelimit::run(),
        CliCommand::Check(options) => commands::check::run(options),
        CliCommand::Inspect(options) => commands::inspect_reset::run(KeyCommand::Inspect, options),
        CliCommand::Reset(options) => commands::inspect_reset::run(KeyCommand::Reset, options),
        CliCommand::Override(options) => commands::overrides::run(options),
        CliCommand::Explain(options) => commands::explain::run(options),
        CliCommand::Validate(options) => commands::validate::run(options),
        CliCommand::Init(options) => commands::init::run(options),
        CliCommand::Diff(options) => commands::diff::run(options),
        CliCommand::Schema => commands::schema::run(),
        CliCommand::Simulate(options) => commands::simulate::run(options),
        CliCommand::Health(options) => commands::health::run(options),
        CliCommand::Top(options) => commands::top::run(options),
        CliCommand::Completions(options) => commands::completions::run(options, Cli::command()),
        CliCommand::Man(options) => commands::man::run(options, Cli::command()),
        CliCommand::Replay(options) => commands::replay::run(options),
        CliCommand::Bench(options) => commands::bench::run(options),
    };
    match outcome {
        Ok(ExitStatus::Success) => ExitCode::SUCCESS,
        Ok(ExitStatus::Negative) => ExitCode::from(1),
        Err(error) => {
            print_error(format_args!("error: {error}"));
            let mut cause = error.source();
            while let Some(error) = cause {
                print_error(format_args!("  caused by: {error}"));
                cause = error.source();
            }
            ExitCode::from(2)
        }
    }
}
