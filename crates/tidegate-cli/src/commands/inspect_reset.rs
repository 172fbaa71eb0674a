//! `tidegate inspect` and `tidegate reset`

use clap::Args;
use serde_json::Value;
use tidegate::Micros;

use super::check;
use crate::error::{CliError, ExitStatus};
use crate::output::print_line;
use crate::subject_args::{Backend, CheckSubject, SubjectArgs};
use tidegate_server::internal::check::{CheckError, CheckService, Operation};
use tidegate_server::internal::transport::http::{decision_json, inspection_json};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate inspect login 1.2.3.4
  tidegate inspect --limit 5/min user-42 --store redis://127.0.0.1:6379
  tidegate reset login 1.2.3.4 --json

Put -- before a key that begins with a dash: tidegate inspect login -- -key

Environment:
  TIDEGATE_TOKEN        API token of the server, or TIDEGATE_TOKEN_FILE
  TIDEGATE_ADMIN_TOKEN  Admin token, needed for reset, or TIDEGATE_ADMIN_TOKEN_FILE
  TIDEGATE_SERVER       Server, without --server and --store
  TIDEGATE_STORE        Store to use directly, and TIDEGATE_CONFIG its policy
  TIDEGATE_SECRET       With a store: the secret of the servers that share the store")]
pub(crate) struct Options {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyCommand {
    Inspect,
    Reset,
}

impl KeyCommand {
    fn verb(self) -> &'static str {
        match self {
            Self::Inspect => "inspect",
            Self::Reset => "reset",
        }
    }
}

pub(crate) fn run(command: KeyCommand, options: &Options) -> Result<ExitStatus, CliError> {
    let subject = options.subject.subject()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        match options.subject.lasting_backend(command.verb())? {
            Backend::Server(client) => {
                let query = subject.query();
                match command {
                    KeyCommand::Inspect => client.get(&format!("/v1/keys?{query}")).await,
                    KeyCommand::Reset => client.delete(&format!("/v1/keys?{query}")).await,
                }
            }
            Backend::Store(service) => Ok(run_on_store(&service, command, subject).await?),
        }
    })?;
    if options.json {
        print_line(&result)?;
    } else {
        print_line(to_text(command, &result))?;
    }
    Ok(ExitStatus::Success)
}

/// Returns the JSON that a server would return.
async fn run_on_store(
    service: &CheckService,
    command: KeyCommand,
    subject: CheckSubject<'_>,
) -> Result<Value, CheckError> {
    let check = subject.check(service, 0)?;
    Ok(match command {
        KeyCommand::Inspect => inspection_json(&service.inspect(check).await?),
        KeyCommand::Reset => decision_json(&service.run(Operation::Reset, &[check], None).await?),
    })
}

fn to_text(command: KeyCommand, result: &Value) -> String {
    let lines: Vec<String> = match command {
        KeyCommand::Inspect => list(&result["limits"]).iter().map(standing).collect(),
        KeyCommand::Reset => return format!("reset: {}", check::to_text(result)),
    };
    if lines.is_empty() { "no limit applies".into() } else { lines.join("\n") }
}

/// One line: used, held and remaining permits of one limit.
fn standing(limit: &Value) -> String {
    let number = |field: &str| limit[field].as_u64().unwrap_or(0);
    let held = match number("held") {
        0 => String::new(),
        held => format!(", {held} held"),
    };
    let reset = match number("reset_after_ms") {
        0 => "unused".into(),
        ms => format!("reset after {}", Micros::from_millis(ms)),
    };
    let marks = [("shadow", ", shadow"), ("shared", ", shared bucket (memory cap reached)")];
    let marks: String = marks.iter().filter(|(f, _)| limit[*f] == true).map(|(_, m)| *m).collect();
    format!(
        "{} ({}): {} used{held}, {} of {} remaining, {reset}{marks} ({})",
        text(&limit["policy"]),
        text(&limit["limit"]),
        number("used"),
        number("remaining"),
        number("capacity"),
        text(&limit["source"]),
    )
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], |items| items)
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or("?").into()
}
