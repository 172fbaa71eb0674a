//! `tidegate check`

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tidegate::{Micros, Span};

use crate::error::{CliError, ExitStatus};
use crate::number_args;
use crate::output::print_line;
use crate::subject_args::{Backend, CheckSubject, SubjectArgs};
use tidegate_server::internal::check::Operation;
use tidegate_server::internal::transport::http::decision_json;

#[derive(Args, Debug)]
#[command(
    override_usage = "tidegate check [OPTIONS] (RULE | --limit LIMIT) KEY",
    after_help = "\
Examples:
  tidegate check login 1.2.3.4                        a rule of the server's policy
  tidegate check --limit 5/min me --wait 10s          an ad-hoc limit, waiting up to 10 s
  tidegate check login 1.2.3.4 --peek --json          peek: charge nothing
  tidegate check login 1.2.3.4 --store redis://127.0.0.1:6379 --config policy.yaml

Put -- before a key that begins with a dash: tidegate check login -- -key

Environment:
  TIDEGATE_TOKEN   API token of the server, or TIDEGATE_TOKEN_FILE
  TIDEGATE_SERVER  Server, without --server and --store
  TIDEGATE_STORE   Store to use directly, and TIDEGATE_CONFIG its policy
  TIDEGATE_SECRET  With a store: the secret of the servers that share the store"
)]
pub(crate) struct Options {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Cost of the request
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number_args::cost)]
    cost: u64,
    /// Report the state, charge nothing
    #[arg(long)]
    peek: bool,
    /// Wait up to this long for permits: 500ms, 10s
    #[arg(long, value_name = "SPAN", conflicts_with = "peek")]
    wait: Option<Span>,
    /// Print the decision as one line of JSON
    #[arg(long)]
    json: bool,
    /// Print nothing; the exit code is the decision
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    let subject = options.subject.subject()?;
    let cost = if options.peek { 0 } else { options.cost };
    let length = |span: Span| span.length().ok_or("a month has no fixed length; use days");
    let wait = options.wait.map(length).transpose()?.map(Duration::from);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let decision = runtime.block_on(async {
        match options.subject.backend()? {
            Backend::Server(client) => client.post("/v1/check", &body(subject, cost, wait)).await,
            Backend::Store(service) => {
                let operation = match wait {
                    _ if cost == 0 => Operation::Peek,
                    Some(wait) => Operation::Wait(wait),
                    None => Operation::Check,
                };
                let decision =
                    service.run(operation, &[subject.check(&service, cost)?], None).await?;
                Ok::<_, CliError>(decision_json(&decision))
            }
        }
    })?;
    if options.json {
        print_line(&decision)?;
    } else if !options.quiet {
        print_line(to_text(&decision))?;
    }
    let allowed = decision["allowed"].as_bool().unwrap_or(false);
    Ok(if allowed { ExitStatus::Success } else { ExitStatus::Negative })
}

fn body(subject: CheckSubject<'_>, cost: u64, wait: Option<Duration>) -> Value {
    let mut body = json!({ "cost": cost });
    for (name, value) in subject.fields() {
        body[name] = value.into();
    }
    if let Some(wait) = wait {
        body["wait_ms"] = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into();
    }
    body
}

/// One line: verdict, rule, remaining permits, wait and source.
pub(crate) fn to_text(decision: &Value) -> String {
    let number = |field: &str| decision[field].as_u64().unwrap_or(0);
    let rule = decision["rule"].as_str().unwrap_or("no limit");
    let left = match decision["remaining"].as_u64() {
        Some(remaining) => format!(", {remaining} of {} remaining", number("limit")),
        None => String::new(),
    };
    let when = match (decision["allowed"].as_bool(), decision["retry_after_ms"].as_u64()) {
        (Some(true), _) if number("delay_ms") > 0 => {
            format!(", starts in {}", Micros::from_millis(number("delay_ms")))
        }
        (Some(true), _) => String::new(),
        (_, Some(wait)) => format!(", retry after {}", Micros::from_millis(wait)),
        (_, None) => ", never".into(),
    };
    let verdict = if decision["allowed"] == true { "allowed" } else { "denied" };
    format!("{verdict} by {rule}{left}{when} ({})", decision["source"].as_str().unwrap_or("?"))
}
