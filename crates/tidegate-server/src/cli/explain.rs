//! `tidegate explain`

use clap::Args;
use serde_json::Value;

use super::asked::{Answerer, Asked, query};
use super::{Failure, Outcome, key, say};
use crate::explain::{Explained, Imagined, explain, explain_request};
use crate::http::explained_json;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate explain login 1.2.3.4
  tidegate explain --limit 5/min user-42 --store redis://127.0.0.1:6379
  tidegate explain --method POST --path /login --client-ip 1.2.3.4
  tidegate explain --path '/search?q=x' --header 'x-api-key: k1' --json

A request is explained as if a trusted proxy had passed it on.
A key that begins with a dash goes behind two: login -- -key

Environment:
  TIDEGATE_TOKEN        What the server wants to see, or TIDEGATE_TOKEN_FILE
  TIDEGATE_SECRET       With --store: as the servers on it have it")]
pub(super) struct Options {
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    request: RequestOptions,
    /// Print the answer as one line of JSON
    #[arg(long)]
    json: bool,
}

/// A request instead of a rule and a key.
#[derive(Args, Debug)]
struct RequestOptions {
    /// A request instead of a key: what it asks for, like /login
    #[arg(long, value_name = "PATH", conflicts_with_all = ["words", "limit"])]
    path: Option<String>,
    /// Its method
    #[arg(long, value_name = "METHOD", requires = "path")]
    method: Option<String>,
    /// The host that it asks
    #[arg(long, value_name = "HOST", requires = "path")]
    host: Option<String>,
    /// Where it comes from
    #[arg(long, value_name = "ADDRESS", requires = "path")]
    client_ip: Option<String>,
    /// A header of it, as often as need be
    #[arg(long, value_name = "NAME: VALUE", requires = "path")]
    header: Vec<String>,
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    let fields = options.request.fields();
    let query = match &*fields {
        [] => options.asked.subject()?.query(),
        fields => query(fields.iter().copied()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async {
        match options.asked.answerer()? {
            Answerer::Server(client) => client.get(&format!("/v1/explain?{query}")).await,
            Answerer::Store(service) => {
                let explained: Explained = match &*fields {
                    [] => explain(&service, options.asked.subject()?.at(1)).await?,
                    fields => {
                        let request = Imagined::read(fields.iter().copied())?;
                        explain_request(&service, &request).await?
                    }
                };
                Ok(explained_json(explained))
            }
        }
    })?;
    say(if options.json { answer.to_string() } else { in_words(&answer) })?;
    Ok(Outcome::Good)
}

impl RequestOptions {
    /// What is told about the request; nothing if there is none.
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

fn in_words(answer: &Value) -> String {
    key::list(&answer["sentences"]).iter().map(key::text).collect::<Vec<_>>().join("\n")
}
