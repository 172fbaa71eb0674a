//! Environment variables of options: `--max-waiting` is `TIDEGATE_MAX_WAITING`. Imports nothing of
//! the crate.

use std::ffi::OsString;

use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};

/// The prefix of all variables.
const PREFIX: &str = "TIDEGATE_";
/// The command of which every option has a variable.
const SERVER: &str = "serve";
/// Options with a variable in every command that has them.
const COMMON: [&str; 4] = ["server", "ca", "client_cert", "client_key"];
/// Options that also have other sources. Their commands read the variables, in the right order.
const BY_COMMAND: [&str; 3] = ["store", "store_file", "config"];

/// The value of a variable; `None` if it is unset or empty.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The same for a variable that is text.
pub(crate) fn text_variable(name: &str) -> Result<Option<String>, String> {
    let value = variable(name).map(OsString::into_string).transpose();
    value.map_err(|_| format!("{name} is not UTF-8"))
}

/// Adds variables to the options of each command, and lets every value begin with a minus, so that
/// its own parser refuses it.
pub(crate) fn with_variables(command: Command) -> Command {
    command.mut_subcommands(with_variables_of)
}

fn with_variables_of(command: Command) -> Command {
    let is_server = command.get_name() == SERVER;
    // A store given on the command line wins over a server in the environment.
    let has_store = command.get_arguments().any(|argument| argument.get_id() == "store");
    let command = command.mut_args(|argument| {
        let argument = match argument.get_action().takes_values() {
            true => argument.allow_negative_numbers(true),
            false => argument,
        };
        let id = argument.get_id().as_str();
        let by_command = BY_COMMAND.contains(&id) && !(is_server && id == "config");
        let has_variable = match id {
            "help" | "version" => false,
            "server" => !has_store,
            _ => !by_command && (is_server || COMMON.contains(&id)),
        };
        if has_variable { from_variable(argument) } else { argument }
    });
    command.mut_subcommands(with_variables_of)
}

/// An empty variable is as good as none: composed files often set them so.
fn from_variable(argument: Arg) -> Arg {
    let Some(name) = name_of(&argument).filter(|name| variable(name).is_some()) else {
        return argument;
    };
    let argument = match argument.get_action() {
        ArgAction::SetTrue => argument.value_parser(BoolishValueParser::new()),
        ArgAction::Append => argument.value_delimiter(','),
        _ => argument,
    };
    argument.env(name).hide_env(true)
}

/// The variable of an option.
fn name_of(argument: &Arg) -> Option<String> {
    let long = argument.get_long()?;
    Some(format!("{PREFIX}{}", long.to_ascii_uppercase().replace('-', "_")))
}

/// The variable that an invalid value came from, if the option is not among the arguments.
pub(crate) fn blamed_variable(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let flag = shown.split([' ', '=', '[']).next().filter(|flag| flag.starts_with("--"))?;
    let is_given = arguments.iter().filter_map(|argument| argument.to_str()).any(|argument| {
        argument.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    });
    let name = format!("{PREFIX}{}", flag[2..].to_ascii_uppercase().replace('-', "_"));
    (!is_given && variable(&name).is_some()).then_some(name)
}
