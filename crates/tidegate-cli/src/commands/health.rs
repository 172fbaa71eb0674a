//! `tidegate health`

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tidegate::Micros;

use crate::error::{CliError, ExitStatus};
use crate::http_client::ServerClient;
use crate::output::{print_error, print_line};
use crate::tls_args::TlsArgs;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate health && echo \"ready\"
  tidegate health --live --server http://10.0.0.7:8080
  HEALTHCHECK CMD [\"/tidegate\", \"health\"]            in a Dockerfile

Exit code 0 while the server is ready: always, or with `serve --ready-when store` only while
decisions come from the store. A server that is ready may be degraded; the reasons are printed. A
server that does not respond within 3 seconds counts as unhealthy.")]
pub(crate) struct Options {
    /// Server URL
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    #[command(flatten)]
    tls: TlsArgs,
    /// Liveness only; ignore whether the server is ready
    #[arg(long)]
    live: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    /// Print nothing; the exit code is the result
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

/// Short, since probes run often.
const DEADLINE: Duration = Duration::from_secs(3);

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    let client = ServerClient::new(&options.server, &options.tls)?;
    let path = if options.live { "/healthz" } else { "/readyz" };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let request = client.get_any_status(path);
    let response = runtime.block_on(async { tokio::time::timeout(DEADLINE, request).await });
    // An unreachable server is unhealthy, not an error: a probe has two results.
    let health = match response {
        Ok(Ok((status, body))) => {
            let reported = body["status"].as_str().map(|text| with_reasons(text, &body["reasons"]));
            match status.is_success() {
                true => Ok(reported.unwrap_or_else(|| "responding".to_owned())),
                false => Err(reported.unwrap_or_else(|| format!("the server returned {status}"))),
            }
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no response within {}", Micros::from(DEADLINE))),
    };
    match &health {
        _ if options.quiet => {}
        _ if options.json => {
            let (Ok(status) | Err(status)) = &health;
            print_line(json!({ "healthy": health.is_ok(), "status": status }))?;
        }
        Ok(status) => print_line(format_args!("healthy: {status}"))?,
        Err(why) => print_error(format_args!("not healthy: {why}")),
    }
    Ok(if health.is_ok() { ExitStatus::Success } else { ExitStatus::Negative })
}

/// `ok`, or `degraded` and the reasons.
fn with_reasons(status: &str, reasons: &Value) -> String {
    let reasons: Vec<&str> =
        reasons.as_array().into_iter().flatten().flat_map(Value::as_str).collect();
    match reasons.is_empty() {
        true => status.to_owned(),
        false => format!("{status} ({})", reasons.join("; ")),
    }
}
