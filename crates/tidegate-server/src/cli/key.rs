//! `tidegate inspect` and `tidegate reset`

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::asked::{Answerer, Asked, Subject};
use super::{Failure, Outcome, check, say};
use crate::http::{decision_json, inspection_json};
use crate::service::{self, Service};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate inspect login 1.2.3.4
  tidegate inspect --limit 5/min user-42 --store redis://127.0.0.1:6379
  tidegate reset login 1.2.3.4 --json

A key that begins with a dash goes behind two: login -- -key

Environment:
  TIDEGATE_TOKEN        What the server wants to see, or TIDEGATE_TOKEN_FILE
  TIDEGATE_ADMIN_TOKEN  What it wants to see before it forgets, or TIDEGATE_ADMIN_TOKEN_FILE
  TIDEGATE_SECRET       With --store: as the servers on it have it")]
pub(super) struct Options {
    #[command(flatten)]
    asked: Asked,
    /// Print the answer as one line of JSON
    #[arg(long)]
    json: bool,
}

/// What to do about a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Inspect,
    Reset,
}

pub(super) fn run(verb: Verb, options: &Options) -> Result<Outcome, Failure> {
    let subject = options.asked.subject()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async {
        match options.asked.answerer()? {
            Answerer::Server(client) => {
                let query = subject.query();
                match verb {
                    Verb::Inspect => client.get(&format!("/v1/keys?{query}")).await,
                    Verb::Reset => client.delete(&format!("/v1/keys?{query}")).await,
                }
            }
            Answerer::Store(service) => Ok(ask(&service, verb, subject).await?),
        }
    })?;
    if options.json {
        say(&answer)?;
    } else {
        say(in_words(verb, &answer))?;
    }
    Ok(Outcome::Good)
}

/// Asks the store, and answers as a server does.
async fn ask(
    service: &Service,
    verb: Verb,
    subject: Subject<'_>,
) -> Result<Value, service::Failure> {
    Ok(match verb {
        Verb::Inspect => inspection_json(&service.inspect(subject.at(0)).await?),
        Verb::Reset => {
            decision_json(&service.ask(service::Verb::Reset, &[subject.at(0)], None).await?)
        }
    })
}

fn in_words(verb: Verb, answer: &Value) -> String {
    let lines: Vec<String> = match verb {
        Verb::Inspect => list(&answer["limits"]).iter().map(standing).collect(),
        Verb::Reset => return format!("reset: {}", check::in_words(answer)),
    };
    if lines.is_empty() { "no limit applies".into() } else { lines.join("\n") }
}

/// What is used of one limit.
fn standing(limit: &Value) -> String {
    let number = |field: &str| limit[field].as_u64().unwrap_or(0);
    let held = match number("held") {
        0 => String::new(),
        held => format!(", {held} held"),
    };
    let reset = match number("reset_after_ms") {
        0 => "unused".into(),
        ms => format!("as good as unused in {:?}", Duration::from_millis(ms)),
    };
    let marks = [("shadow", ", only looks on"), ("shared", ", shared with others")];
    let marks: String = marks.iter().filter(|(f, _)| limit[*f] == true).map(|(_, m)| *m).collect();
    format!(
        "{} ({}): {} used{held}, {} of {} left, {reset}{marks} ({})",
        text(&limit["policy"]),
        text(&limit["limit"]),
        number("used"),
        number("remaining"),
        number("capacity"),
        text(&limit["source"]),
    )
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], |items| items)
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or("?").into()
}
