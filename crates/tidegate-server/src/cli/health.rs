//! `tidegate health`

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::client::Client;
use super::secure::Secure;
use super::{Failure, Outcome, complain, say};

/// Asks a server whether it can answer.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate health && echo \"the store answers\"
  tidegate health --live --server http://10.0.0.7:8080
  HEALTHCHECK CMD [\"/tidegate\", \"health\"]            in a Dockerfile

A server that does not answer within 3 seconds is not healthy either.")]
pub(super) struct Options {
    /// The server to ask
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    #[command(flatten)]
    secure: Secure,
    /// Only whether the process lives, whatever its store is like
    #[arg(long)]
    live: bool,
    /// Print the answer as one line of JSON
    #[arg(long)]
    json: bool,
}

/// How long the answer may take. Whoever asks for health asks often.
const DEADLINE: Duration = Duration::from_secs(3);

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    let client = Client::new(&options.server, &options.secure)?;
    let path = if options.live { "/healthz" } else { "/readyz" };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer =
        runtime.block_on(async { tokio::time::timeout(DEADLINE, client.look(path)).await });
    // What cannot be asked is not healthy: a probe knows two answers.
    let found = match answer {
        Ok(Ok((status, body))) if status.is_success() => {
            Ok(body["status"].as_str().unwrap_or("it answers").to_owned())
        }
        Ok(Ok((_, body))) if body["store"]["up"] == false => {
            Err("the store does not answer".to_owned())
        }
        Ok(Ok((status, _))) => Err(format!("the server answered {status}")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", DEADLINE.as_secs())),
    };
    match &found {
        _ if options.json => {
            let (Ok(status) | Err(status)) = &found;
            say(json!({ "healthy": found.is_ok(), "status": status }))?;
        }
        Ok(status) => say(format_args!("healthy: {status}"))?,
        Err(why) => complain(format_args!("not healthy: {why}")),
    }
    Ok(if found.is_ok() { Outcome::Good } else { Outcome::Bad })
}
