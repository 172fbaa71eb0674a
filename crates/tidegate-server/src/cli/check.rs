//! `tidegate check`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tidegate::{Key, Span};

use super::client::Client;
use super::secure::Secure;
use super::{Failure, Outcome, say};
use crate::config::Config;
use crate::http::decision_json;
use crate::metrics::Metrics;
use crate::policies::Policies;
use crate::service::{Ask, Service, Target, Verb};
use crate::store::Store;

/// Asks whether a key may pass.
#[derive(Args, Debug)]
#[command(
    override_usage = "tidegate check [OPTIONS] (RULE | --limit LIMIT) KEY",
    after_help = "\
A key that begins with a dash goes behind two: tidegate check login -- -key

Environment:
  TIDEGATE_TOKEN   What the server wants to see, or TIDEGATE_TOKEN_FILE
  TIDEGATE_SECRET  With --store: as the servers on it have it"
)]
pub(super) struct Options {
    /// The rule and the key; only the key with --limit
    #[arg(required = true, num_args = 1..=2, value_names = ["RULE", "KEY"], hide = true)]
    words: Vec<String>,
    /// A limit of your own instead of a rule, like 5/min
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,
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
    /// The server to ask
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    #[command(flatten)]
    secure: Secure,
    /// Ask this store instead of a server
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    store: Option<String>,
    /// The policy to go by with --store
    #[arg(long, value_name = "FILE", requires = "store")]
    config: Option<PathBuf>,
}

/// How long a store may take to answer, to connect to it included.
const STORE_DEADLINE: Duration = Duration::from_secs(3);

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    let store = options.store.as_deref().map(str::parse::<Store>).transpose()?;
    let question = Question::read(options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let decision = runtime.block_on(async {
        match &store {
            Some(store) => ask_store(store, options.config.as_ref(), &question).await,
            None => {
                let client = Client::new(&options.server, &options.secure)?;
                client.post("/v1/check", &question.body()).await
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

/// What is asked.
struct Question<'a> {
    rule: Option<&'a str>,
    limit: Option<&'a str>,
    key: &'a str,
    cost: u64,
    wait: Option<Duration>,
}

impl<'a> Question<'a> {
    fn read(options: &'a Options) -> Result<Self, Failure> {
        let (rule, limit, key) = match (&*options.words, &options.limit) {
            ([_, _], None) if options.store.is_some() && options.config.is_none() => {
                return Err("a store knows no rules; add --config, or ask with --limit".into());
            }
            ([rule, key], None) => (Some(&**rule), None, key),
            ([key], Some(limit)) => (None, Some(&**limit), key),
            (_, None) => return Err("name a rule and a key, or a key and --limit".into()),
            (_, Some(_)) => return Err("name the key alone with --limit, or a rule without".into()),
        };
        let cost = if options.peek { 0 } else { options.cost };
        let length = |span: Span| span.length().ok_or("a month has no fixed length; use days");
        let wait = options.wait.map(length).transpose()?.map(Duration::from);
        Ok(Self { rule, limit, key, cost, wait })
    }

    fn body(&self) -> Value {
        let mut body = json!({ "key": self.key, "cost": self.cost });
        if let Some(rule) = self.rule {
            body["rule"] = rule.into();
        }
        if let Some(limit) = self.limit {
            body["limit"] = limit.into();
        }
        if let Some(wait) = self.wait {
            body["wait_ms"] = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into();
        }
        body
    }
}

/// Asks without a server in between, through the same service.
async fn ask_store(
    store: &Store,
    config: Option<&PathBuf>,
    question: &Question<'_>,
) -> Result<Value, Failure> {
    let loaded = match config {
        Some(path) => Config::load(path)?,
        None => Config::load_str("", "rules: []")?,
    };
    let metrics = Arc::new(Metrics::default());
    let engine = store.engine_within(&loaded.settings, STORE_DEADLINE)?;
    let service = Service::new(engine, Policies::active(&loaded, &metrics)?, metrics);
    let target = match (question.rule, question.limit) {
        (Some(rule), _) => Target::Rule(rule),
        (None, limit) => Target::Limit(limit.unwrap_or_default()),
    };
    let ask = Ask { target, key: Key::from(question.key), cost: question.cost };
    let verb = match question.wait {
        _ if question.cost == 0 => Verb::Peek,
        Some(wait) => Verb::Wait(wait),
        None => Verb::Check,
    };
    let answer = service.ask(verb, &[ask], None).await?;
    Ok(decision_json(&answer))
}

/// The decision for people.
fn in_words(decision: &Value) -> String {
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
