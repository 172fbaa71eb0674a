//! `tidegate override`

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::inspect_reset::{list, text};
use crate::error::{CliError, ExitStatus};
use crate::http_client::ServerClient;
use crate::output::print_line;
use crate::subject_args::query;
use crate::tls_args::TlsArgs;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate override set api gold-123 1000/s --for 8h
  tidegate override set login 1.2.3.4 20/min \"500/d\" --until 2027-01-01T00:00:00Z
  tidegate override list api
  tidegate override delete api gold-123

An override replaces the limits of one key, whatever rule of this name is in force, on all servers
that share the store.

Environment:
  TIDEGATE_TOKEN        API token of the server, or TIDEGATE_TOKEN_FILE
  TIDEGATE_ADMIN_TOKEN  Admin token, needed for set and delete, or TIDEGATE_ADMIN_TOKEN_FILE")]
pub(crate) struct Options {
    #[command(subcommand)]
    command: OverrideCommand,
}

#[derive(Subcommand, Debug)]
enum OverrideCommand {
    /// Set the limits of a key
    Set {
        /// Rule name
        rule: String,
        /// Key; repeat --part for further parts
        key: String,
        /// Limits, for example 1000/s
        #[arg(required = true)]
        limits: Vec<String>,
        /// Further part of the key; repeatable
        #[arg(long, value_name = "TEXT")]
        part: Vec<String>,
        /// Duration, for example 8h [default: until deleted]
        #[arg(long, value_name = "SPAN", conflicts_with = "until")]
        r#for: Option<String>,
        /// End, in RFC 3339
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List overrides, of one rule or of all
    List {
        /// Rule name
        rule: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Delete the override of a key
    Delete {
        /// Rule name
        rule: String,
        /// Key; repeat --part for further parts
        key: String,
        /// Further part of the key; repeatable
        #[arg(long, value_name = "TEXT")]
        part: Vec<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Args, Debug)]
struct ServerArgs {
    /// Server URL
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let connect = |server: &ServerArgs| ServerClient::new(&server.server, &server.tls);
    let (lines, result, server) = match &options.command {
        OverrideCommand::Set { rule, key, limits, part, r#for, until, server } => {
            let mut body = json!({ "limits": limits });
            if let Some(span) = r#for {
                body["for"] = span.as_str().into();
            }
            if let Some(until) = until {
                body["until"] = until.as_str().into();
            }
            let client = connect(server)?;
            let set = runtime.block_on(client.put(&path(rule, key, part), &body))?;
            (vec![line(&set)], set, server)
        }
        OverrideCommand::List { rule, server } => {
            let client = connect(server)?;
            let filter = rule.as_deref().map(|rule| format!("?{}", query([("rule", rule)])));
            let path = format!("/v1/overrides{}", filter.unwrap_or_default());
            let listed = runtime.block_on(client.get(&path))?;
            let mut lines: Vec<String> = list(&listed["overrides"]).iter().map(line).collect();
            if lines.is_empty() {
                lines.push("no overrides".into());
            }
            (lines, listed, server)
        }
        OverrideCommand::Delete { rule, key, part, server } => {
            let client = connect(server)?;
            runtime.block_on(client.delete(&path(rule, key, part)))?;
            (vec!["deleted".into()], json!({ "deleted": true }), server)
        }
    };
    if server.json {
        print_line(&result)?;
    } else {
        print_line(lines.join("\n"))?;
    }
    Ok(ExitStatus::Success)
}

fn path(rule: &str, key: &str, parts: &[String]) -> String {
    let parts = parts.iter().map(|part| ("key", part.as_str()));
    format!("/v1/overrides?{}", query([("rule", rule), ("key", key)].into_iter().chain(parts)))
}

/// One line: rule, key, limits, end and author.
fn line(one: &Value) -> String {
    let key = match &one["key"] {
        Value::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join(" | "),
        key => text(key),
    };
    let limits: Vec<String> = list(&one["limits"]).iter().map(text).collect();
    let until = one["until"].as_str().map(|until| format!(" until {until}")).unwrap_or_default();
    let reason = one["reason"].as_str().map(|reason| format!(", inactive: {reason}"));
    format!(
        "{} {key}: {}{until}{} (set by {} at {})",
        text(&one["rule"]),
        limits.join(" + "),
        reason.unwrap_or_default(),
        text(&one["by"]),
        text(&one["at"]),
    )
}
