//! `tidegate check`

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tidegate::Span;

use super::asked::{Answerer, Asked, Subject};
use super::{Failure, Outcome, say};
use crate::http::decision_json;
use crate::service::Verb;

/// Asks whether a key may pass.
#[derive(Args, Debug)]
#[command(
    override_usage = "tidegate check [OPTIONS] (RULE | --limit LIMIT) KEY",
    after_help = "\
Examples:
  tidegate check login 1.2.3.4                        by a rule of the server's policy
  tidegate check --limit 5/min me --wait 10s          by a limit of your own, waiting for a turn
  tidegate check login 1.2.3.4 --peek --json          only look, for a script
  tidegate check login 1.2.3.4 --store redis://127.0.0.1:6379 --config policy.yaml

A key that begins with a dash goes behind two: tidegate check login -- -key

Environment:
  TIDEGATE_TOKEN   What the server wants to see, or TIDEGATE_TOKEN_FILE
  TIDEGATE_SECRET  With --store: as the servers on it have it"
)]
pub(super) struct Options {
    #[command(flatten)]
    asked: Asked,
    /// How much to ask for
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,
    /// Only look: take nothing
    #[arg(long)]
    peek: bool,
    /// Wait for a turn, at most so long: 500ms, 10s
    #[arg(long, value_name = "SPAN", conflicts_with = "peek")]
    wait: Option<Span>,
    /// Print the decision as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    let subject = options.asked.subject()?;
    let cost = if options.peek { 0 } else { options.cost };
    let length = |span: Span| span.length().ok_or("a month has no fixed length; use days");
    let wait = options.wait.map(length).transpose()?.map(Duration::from);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let decision = runtime.block_on(async {
        match options.asked.answerer()? {
            Answerer::Server(client) => client.post("/v1/check", &body(subject, cost, wait)).await,
            Answerer::Store(service) => {
                let verb = match wait {
                    _ if cost == 0 => Verb::Peek,
                    Some(wait) => Verb::Wait(wait),
                    None => Verb::Check,
                };
                let answer = service.ask(verb, &[subject.at(cost)], None).await?;
                Ok::<_, Failure>(decision_json(&answer))
            }
        }
    })?;
    if options.json {
        say(&decision)?;
    } else {
        say(in_words(&decision))?;
    }
    let allowed = decision["allowed"].as_bool().unwrap_or(false);
    Ok(if allowed { Outcome::Good } else { Outcome::Bad })
}

fn body(subject: Subject<'_>, cost: u64, wait: Option<Duration>) -> Value {
    let mut body = json!({ "cost": cost });
    for (name, value) in subject.fields() {
        body[name] = value.into();
    }
    if let Some(wait) = wait {
        body["wait_ms"] = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into();
    }
    body
}

/// The decision for people.
pub(super) fn in_words(decision: &Value) -> String {
    let number = |field: &str| decision[field].as_u64().unwrap_or(0);
    let rule = decision["rule"].as_str().unwrap_or("no limit");
    let left = match decision["remaining"].as_u64() {
        Some(remaining) => format!(", {remaining} of {} left", number("limit")),
        None => String::new(),
    };
    let when = match (decision["allowed"].as_bool(), decision["retry_after_ms"].as_u64()) {
        (Some(true), _) if number("delay_ms") > 0 => {
            format!(", start in {} ms", number("delay_ms"))
        }
        (Some(true), _) => String::new(),
        (_, Some(wait)) => format!(", retry after {wait} ms"),
        (_, None) => ", never".into(),
    };
    let verdict = if decision["allowed"] == true { "allowed" } else { "denied" };
    format!("{verdict} by {rule}{left}{when} ({})", decision["source"].as_str().unwrap_or("?"))
}
