//! `tidegate health`

use std::time::Duration;

use clap::Args;

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
    let complaint = match answer {
        Ok(Ok((status, body))) if status.is_success() => {
            say(format_args!("healthy: {}", body["status"].as_str().unwrap_or("it answers")))?;
            return Ok(Outcome::Good);
        }
        Ok(Ok((_, body))) if body["store"]["up"] == false => "the store does not answer".into(),
        Ok(Ok((status, _))) => format!("the server answered {status}"),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", DEADLINE.as_secs()),
    };
    complain(format_args!("not healthy: {complaint}"));
    Ok(Outcome::Bad)
}
