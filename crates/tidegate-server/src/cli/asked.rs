//! What a command is about: a rule or a limit, and a key, on a server or a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tidegate::Key;

use super::Failure;
use super::client::Client;
use super::secure::Secure;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::policies::Policies;
use crate::service::{Ask, Service, Target};
use crate::store::Store;

#[derive(Args, Debug)]
pub(super) struct Asked {
    /// The rule and the key; only the key with --limit
    #[arg(num_args = 0..=2, value_names = ["RULE", "KEY"], hide = true)]
    words: Vec<String>,
    /// A limit of your own instead of a rule, like 5/min
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,
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

/// Who answers.
pub(super) enum Answerer {
    Server(Client),
    /// The store itself, through the same service that a server has.
    Store(Box<Service>),
}

/// A rule or a limit, and a key.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    of: Of,
    /// The rule's name, or the limit.
    name: &'a str,
    key: &'a str,
}

#[derive(Clone, Copy)]
enum Of {
    Rule,
    Limit,
}

/// How long a store may take to answer, to connect to it included.
const STORE_DEADLINE: Duration = Duration::from_secs(3);

impl Asked {
    pub(super) fn subject(&self) -> Result<Subject<'_>, Failure> {
        let (of, name, key) = match (&*self.words, &self.limit) {
            ([rule, key], None) => (Of::Rule, rule, key),
            ([key], Some(limit)) => (Of::Limit, limit, key),
            (_, None) => return Err("name a rule and a key, or a key and --limit".into()),
            (_, Some(_)) => return Err("name the key alone with --limit, or a rule without".into()),
        };
        Ok(Subject { of, name, key })
    }

    /// Whoever answers. Needs a runtime.
    pub(super) fn answerer(&self) -> Result<Answerer, Failure> {
        let Some(store) = &self.store else {
            return Ok(Answerer::Server(Client::new(&self.server, &self.secure)?.or_store()));
        };
        let store: Store = store.parse()?;
        let loaded = match (&self.config, &self.limit) {
            (Some(path), _) => Config::load(path)?,
            (None, Some(_)) => Config::load_str("", "rules: []")?,
            (None, None) => {
                return Err("a store knows no rules; add --config, or ask with --limit".into());
            }
        };
        let metrics = Arc::new(Metrics::default());
        let engine = store.engine_within(&loaded.settings, STORE_DEADLINE)?;
        let service = Service::new(engine, Policies::active(&loaded, &metrics)?, metrics);
        Ok(Answerer::Store(Box::new(service)))
    }
}

impl<'a> Subject<'a> {
    /// The question, at this cost.
    pub(super) fn at(&self, cost: u64) -> Ask<'a> {
        let target = match self.of {
            Of::Rule => Target::Rule(self.name),
            Of::Limit => Target::Limit(self.name),
        };
        Ask { target, key: Key::from(self.key), cost }
    }

    /// What a server is told about it: names and values.
    pub(super) fn fields(&self) -> [(&'static str, &'a str); 2] {
        let name = match self.of {
            Of::Rule => "rule",
            Of::Limit => "limit",
        };
        [(name, self.name), ("key", self.key)]
    }

    /// The same behind an address.
    pub(super) fn query(&self) -> String {
        query(self.fields())
    }
}

/// Names and values behind an address.
pub(super) fn query<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let fields = fields.into_iter().map(|(name, value)| format!("{name}={}", encoded(value)));
    fields.collect::<Vec<_>>().join("&")
}

/// With everything percent-encoded that could mean something in an address.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'-' | b'_' | b'.' | b'~' => encoded.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
