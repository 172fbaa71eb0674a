//! `tidegate --help`: the commands by task. Imports nothing of the crate.

use clap::Command;

/// Commands by task. Every command is in one of them.
const TASKS: [(&str, &[&str]); 4] = [
    ("Run a server", &["serve", "ratelimit", "health", "top"]),
    ("Check and change keys", &["check", "explain", "inspect", "reset", "override"]),
    ("Write a policy", &["init", "validate", "diff", "simulate", "replay", "schema"]),
    ("More", &["bench", "completions", "man"]),
];

/// Replaces clap's list of commands, which has one group.
pub(crate) fn by_task(command: Command) -> Command {
    let mut text = String::from("{about}\n\n{usage-heading} {usage}\n");
    for (task, names) in TASKS {
        text += &format!("\n{task}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text += &format!("  {name:<12} {about}\n");
        }
    }
    text += "\nOptions:\n{options}{after-help}";
    command.help_template(text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_is_listed_once() {
        let command = crate::Cli::command();
        let mut listed: Vec<&str> = TASKS.iter().flat_map(|(_, names)| *names).copied().collect();
        let mut known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
    }
}
