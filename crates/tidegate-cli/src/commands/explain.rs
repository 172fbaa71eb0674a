//! `tidegate explain`

use clap::Args;
use serde_json::Value;

use crate::commands::inspect_reset;
use crate::error::{CliError, ExitStatus};
use crate::output::print_line;
use crate::subject_args::{Backend, SubjectArgs, query};
use tidegate_server::internal::check::explain::{
    DescribedRequest, Explanation, explain, explain_request,
};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate explain login 1.2.3.4
  tidegate explain --limit 5/min user-42 --store redis://127.0.0.1:6379
  tidegate explain --method POST --path /login --client-ip 1.2.3.4
  tidegate explain --path '/search?q=x' --header 'x-api-key: k1' --json

A request is evaluated as if it came from a trusted proxy.
Put -- before a key that begins with a dash: tidegate explain login -- -key

Environment:
  TIDEGATE_TOKEN   API token of the server, or TIDEGATE_TOKEN_FILE
  TIDEGATE_SERVER  Server, without --server and --store
  TIDEGATE_STORE   Store to use directly, and TIDEGATE_CONFIG its policy
  TIDEGATE_SECRET  With a store: the secret of the servers that share the store")]
pub(crate) struct Options {
    #[command(flatten)]
    subject: SubjectArgs,
    #[command(flatten)]
    request: RequestOptions,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Described request, instead of a rule and a key.
#[derive(Args, Debug)]
struct RequestOptions {
    /// Explain a request instead of a key: its path, for example /login
    #[arg(long, value_name = "PATH", conflicts_with_all = ["words", "limit"])]
    path: Option<String>,
    /// Request method
    #[arg(long, value_name = "METHOD", requires = "path")]
    method: Option<String>,
    /// Request host
    #[arg(long, value_name = "HOST", requires = "path")]
    host: Option<String>,
    /// Client address
    #[arg(long, value_name = "ADDRESS", requires = "path")]
    client_ip: Option<String>,
    /// Request header; repeatable
    #[arg(long, value_name = "NAME: VALUE", requires = "path")]
    header: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    let fields = options.request.fields();
    let query = match &*fields {
        [] => options.subject.subject().map_err(or_request)?.query(),
        fields => query(fields.iter().copied()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        match options.subject.backend()? {
            Backend::Server(client) => client.get(&format!("/v1/explain?{query}")).await,
            Backend::Store(service) => {
                let explained: Explanation = match &*fields {
                    [] => explain(&service, options.subject.subject()?.check(&service, 1)?).await?,
                    fields => {
                        let request = DescribedRequest::read(fields.iter().copied())?;
                        explain_request(&service, &request).await?
                    }
                };
                Ok(serde_json::to_value(explained)?)
            }
        }
    })?;
    print_line(if options.json { result.to_string() } else { to_text(&result) })?;
    Ok(ExitStatus::Success)
}

/// The other way to say what to explain.
fn or_request(error: CliError) -> CliError {
    format!("{error}; or describe a request: --path /login --method POST").into()
}

impl RequestOptions {
    /// Query fields that describe the request; empty without `--path`.
    fn fields(&self) -> Vec<(&'static str, &str)> {
        let once = [
            ("path", &self.path),
            ("method", &self.method),
            ("host", &self.host),
            ("client_ip", &self.client_ip),
        ];
        let once = once.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        once.chain(self.header.iter().map(|header| ("header", &**header))).collect()
    }
}

fn to_text(result: &Value) -> String {
    inspect_reset::list(&result["sentences"])
        .iter()
        .map(inspect_reset::text)
        .collect::<Vec<_>>()
        .join("\n")
}
