//! Common arguments of `check`, `inspect`, `reset` and `explain`: RULE KEY, `--limit`, `--server`,
//! store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tidegate::RuleCheck;
use tidegate::policy::RuleTarget;

use crate::environment_args::{text_variable, variable};
use crate::error::CliError;
use crate::http_client::ServerClient;
use crate::output::print_error;
use crate::store_args::StoreArgs;
use crate::tls_args::TlsArgs;
use tidegate_config::PolicyLoader;
use tidegate_server::internal::check::{CheckError, CheckService};
use tidegate_server::internal::observe::metrics::Metrics;
use tidegate_server::internal::policy::PolicyManager;
use tidegate_server::internal::store::Store;

#[derive(Args, Debug)]
pub(crate) struct SubjectArgs {
    /// Rule name and key; only the key with --limit
    #[arg(num_args = 0..=2, value_names = ["RULE", "KEY"], hide = true)]
    words: Vec<String>,
    /// Ad-hoc limit instead of a rule, for example 5/min
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,
    /// Server URL [default: http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", conflicts_with_all = ["store", "store_file"])]
    server: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// Policy file to use with a store
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What decides a check.
pub(crate) enum Backend {
    Server(ServerClient),
    /// The store, through the same service that a server uses.
    Store(Box<CheckService>),
}

/// A rule or an ad-hoc limit, and a key.
#[derive(Clone, Copy)]
pub(crate) struct CheckSubject<'a> {
    kind: SubjectKind,
    /// Name of the rule, or the limit.
    name: &'a str,
    key: &'a str,
}

#[derive(Clone, Copy)]
enum SubjectKind {
    Rule,
    Limit,
}

const ADHOC: &str = "a limit and a key: --limit 5/min user-42";
const SERVER: &str = "http://127.0.0.1:8080";
/// Timeout of a store call, connecting included.
const STORE_DEADLINE: Duration = Duration::from_secs(3);

impl SubjectArgs {
    pub(crate) fn subject(&self) -> Result<CheckSubject<'_>, CliError> {
        let (kind, name, key) = match (&*self.words, &self.limit) {
            ([rule, key], None) => (SubjectKind::Rule, rule, key),
            ([key], Some(limit)) => (SubjectKind::Limit, limit, key),
            ([], None) => return Err(format!("name a rule and a key, or {ADHOC}").into()),
            ([rule], None) => {
                let key = "give the key too, for example";
                return Err(format!("{key} {rule} 1.2.3.4; or {ADHOC}").into());
            }
            (_, None) => return Err("expected one rule and one key".into()),
            ([], Some(_)) => return Err("give a key, for example --limit 5/min user-42".into()),
            (_, Some(_)) => {
                let remedy = "with --limit give only the key; without --limit, rule and key";
                return Err(remedy.into());
            }
        };
        Ok(CheckSubject { kind, name, key })
    }

    /// The server, unless it comes after a store: the command line wins over the environment.
    fn server(&self) -> Result<Option<String>, CliError> {
        match &self.server {
            Some(url) => Ok(Some(url.clone())),
            None if self.store.is_given() => Ok(None),
            None => Ok(text_variable("TIDEGATE_SERVER")?),
        }
    }

    fn store(&self) -> Result<Option<Store>, CliError> {
        self.store.store(|warning| print_error(format_args!("warning: {warning}")))
    }

    /// The same as [`SubjectArgs::backend`], for commands about usage that exists already. The
    /// memory of this process has none.
    pub(crate) fn lasting_backend(&self, command: &str) -> Result<Backend, CliError> {
        if self.server()?.is_none() && self.store.store(|_| {})? == Some(Store::MEMORY) {
            return Err(format!(
                "the store memory belongs to one process, and this one has just started: there is \
                 nothing to {command}; use --server to ask a running server, or --store redis://.."
            )
            .into());
        }
        self.backend()
    }

    /// Needs a runtime.
    pub(crate) fn backend(&self) -> Result<Backend, CliError> {
        let server = self.server()?;
        let store = if server.is_some() { None } else { self.store()? };
        let Some(store) = store else {
            if self.config.is_some() {
                return Err(
                    "--config needs a store: --store, --store-file or TIDEGATE_STORE".into()
                );
            }
            let server = server.as_deref().unwrap_or(SERVER);
            return Ok(Backend::Server(ServerClient::new(server, &self.tls)?.or_store()));
        };
        let config = self.config.clone().or_else(|| variable("TIDEGATE_CONFIG").map(PathBuf::from));
        let loaded = match (&config, &self.limit) {
            (Some(path), _) => PolicyLoader::load(path)?,
            (None, Some(_)) => PolicyLoader::load_str("", "rules: []")?,
            (None, None) => {
                return Err("a store (--store, --store-file, TIDEGATE_STORE) needs --config to \
                            look up a rule; or use --limit, or --server"
                    .into());
            }
        };
        let metrics = Arc::new(Metrics::default());
        let engine = store.engine_within(&loaded.settings, STORE_DEADLINE)?;
        let service = CheckService::new(engine, PolicyManager::active(&loaded, &metrics)?, metrics);
        Ok(Backend::Store(Box::new(service)))
    }
}

impl<'a> CheckSubject<'a> {
    pub(crate) fn check(
        &self,
        service: &CheckService,
        cost: u64,
    ) -> Result<RuleCheck<'a>, CheckError> {
        let target = match self.kind {
            SubjectKind::Rule => RuleTarget::Named(self.name),
            SubjectKind::Limit => service.adhoc_limit(self.name)?,
        };
        Ok(RuleCheck::of(target, self.key, cost))
    }

    /// Fields of a request to a server.
    pub(crate) fn fields(&self) -> [(&'static str, &'a str); 2] {
        let name = match self.kind {
            SubjectKind::Rule => "rule",
            SubjectKind::Limit => "limit",
        };
        [(name, self.name), ("key", self.key)]
    }

    /// Query string with [`CheckSubject::fields`].
    pub(crate) fn query(&self) -> String {
        query(self.fields())
    }
}

/// Query string of these fields.
pub(crate) fn query<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}
