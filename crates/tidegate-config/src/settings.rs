//! Settings of the server in a policy file.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::pricing::Prices;
use tidegate::{Network, Span};
#[cfg(feature = "redis")]
use tidegate_redis::{InvalidUrl, RedisBuilder, RedisUrl};

use crate::errors::field_error::FieldError;
use crate::memory_size::MemorySize;
use crate::on_store_failure::OnStoreFailureSetting;
use crate::policy_file::{PolicyFile, SecretText, StoreUrl};
use crate::price_file;
use crate::ratio::RatioSetting;
use crate::tls_files::TlsFiles;
use crate::wire_settings::{HeaderStyleSetting, RefundToken};

/// Upper bound of `confirmed_by`.
const MAX_REPLICAS: u32 = 8;
#[cfg(feature = "redis")]
const _: () = assert!(MAX_REPLICAS == RedisBuilder::MAX_REPLICAS);

/// Settings of the server in a policy file; [`Default`] has the values of an empty file.
#[derive(Clone, PartialEq, Debug)]
pub struct ServerSettings {
    /// Where state is kept; `None` for memory.
    pub store: Option<StoreUrl>,
    /// Memory for state in this process.
    pub memory: MemorySize,
    /// Timeout of a Redis call.
    pub store_deadline: Option<Duration>,
    /// Prefix of every key in Redis.
    pub namespace: Option<String>,
    /// HMAC secret for hashing keys before they are stored.
    pub secret: Option<SecretText>,
    /// Networks of proxies whose forwarded client addresses are used.
    pub trusted_proxies: Vec<Network>,
    /// TLS of the listeners.
    pub tls: Option<TlsFiles>,
    /// Whether requests may carry an ad-hoc limit.
    pub adhoc: bool,
    /// Version of the headers about limits.
    pub headers: HeaderStyleSetting,
    /// Token that a refund needs.
    pub refund_token: RefundToken,
    /// Whether the server caches denials.
    pub deny_cache: bool,
    /// Replicas that must acknowledge a charge before a request is allowed.
    pub confirmed_by: u32,
    /// What rules without their own setting do while the store is unavailable.
    pub on_store_failure: OnStoreFailureSetting,
    /// Fraction of a limit that one server grants in fallback, for rules without their own.
    pub fallback_ratio: RatioSetting,
    /// Random jitter added to `retry_after`, as a fraction of it.
    pub retry_jitter: Option<RatioSetting>,
    /// Prices of language models.
    pub prices: Option<Arc<Prices>>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            store: None,
            memory: MemorySize::default(),
            store_deadline: None,
            namespace: None,
            secret: None,
            trusted_proxies: Network::LOOPBACK.to_vec(),
            tls: None,
            adhoc: true,
            headers: HeaderStyleSetting::default(),
            refund_token: RefundToken::default(),
            deny_cache: true,
            confirmed_by: 0,
            on_store_failure: OnStoreFailureSetting::default(),
            fallback_ratio: RatioSetting::default(),
            retry_jitter: None,
            prices: None,
        }
    }
}

impl ServerSettings {
    /// Upper bound of the networks of trusted proxies.
    pub const MAX_PROXIES: usize = 1_000;

    /// The names of the settings that differ, in the order of the reference.
    pub fn changed_since(&self, before: &Self) -> Vec<&'static str> {
        let Self { trusted_proxies, tls, adhoc, headers, refund_token, .. } = self;
        let Self { on_store_failure, fallback_ratio, retry_jitter, prices, .. } = self;
        let reloaded = [
            ("trusted_proxies", *trusted_proxies != before.trusted_proxies),
            ("tls", *tls != before.tls),
            ("adhoc", *adhoc != before.adhoc),
            ("headers", *headers != before.headers),
            ("refund_token", *refund_token != before.refund_token),
            ("on_store_failure", *on_store_failure != before.on_store_failure),
            ("fallback_ratio", *fallback_ratio != before.fallback_ratio),
            ("retry_jitter", *retry_jitter != before.retry_jitter),
            ("prices", *prices != before.prices),
        ];
        let reloaded = reloaded.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name);
        self.changed_at_start(before).into_iter().chain(reloaded).collect()
    }

    /// The names of the settings that differ and are read only when a server starts.
    pub fn changed_at_start(&self, before: &Self) -> Vec<&'static str> {
        let Self { store, memory, store_deadline, namespace, secret, .. } = self;
        let at_start = [
            ("store", *store != before.store),
            ("memory", *memory != before.memory),
            ("store_deadline", *store_deadline != before.store_deadline),
            ("confirmed_by", self.confirmed_by != before.confirmed_by),
            ("deny_cache", self.deny_cache != before.deny_cache),
            ("namespace", *namespace != before.namespace),
            ("secret", *secret != before.secret),
        ];
        at_start.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// The valid settings of a file in `folder`; errors go to `faults`.
    pub(crate) fn read(file: &PolicyFile, folder: &Path, faults: &mut Vec<FieldError>) -> Self {
        let mut settings = Self::default();
        if let Some(store) = &file.store {
            faults.extend(store_fault(store.expose()));
            settings.store = Some(store.clone());
        }
        match file.memory.as_deref().map(str::parse::<MemorySize>) {
            Some(Ok(memory)) => settings.memory = memory,
            Some(Err(error)) => faults.push(FieldError::new("memory", "size", error)),
            None => {}
        }
        if let Some(text) = &file.store_deadline {
            match deadline(text) {
                Ok(deadline) => settings.store_deadline = Some(deadline),
                Err(fault) => faults.push(fault),
            }
        }
        if let Some(namespace) = &file.namespace {
            if !is_namespace(namespace) {
                let message = "invalid namespace; use 1 to 64 of A-Z a-z 0-9 _ . : -";
                faults.push(FieldError::new("namespace", "namespace", message));
            }
            settings.namespace = Some(namespace.clone());
        }
        if let Some(secret) = &file.secret {
            if secret.expose().is_empty() {
                let message = "empty secret; set one or remove the field";
                faults.push(FieldError::new("secret", "secret", message));
            }
            settings.secret = Some(secret.clone());
        }
        if let Some(proxies) = &file.trusted_proxies {
            settings.trusted_proxies = networks(proxies, faults);
        }
        let ratio = RatioSetting::read(file.fallback_ratio, "fallback_ratio", faults);
        settings.fallback_ratio = ratio.unwrap_or_default();
        settings.retry_jitter = RatioSetting::read(file.retry_jitter, "retry_jitter", faults);
        if let Some(replicas) = file.confirmed_by {
            if replicas > MAX_REPLICAS {
                let message =
                    format!("{replicas} replicas; use at most {MAX_REPLICAS}, or 0 for none");
                faults.push(FieldError::new("confirmed_by", "number", message));
            }
            settings.confirmed_by = replicas;
        }
        settings.prices = price_file::read(file.money.as_ref(), &file.prices, faults).map(Arc::new);
        settings.tls = file.tls.as_ref().map(|tls| certificates(tls, folder, faults));
        settings.adhoc = file.adhoc.unwrap_or(settings.adhoc);
        settings.headers = file.headers.unwrap_or_default();
        settings.refund_token = file.refund_token.unwrap_or_default();
        settings.deny_cache = file.deny_cache.unwrap_or(settings.deny_cache);
        settings.on_store_failure = file.on_store_failure.unwrap_or_default();
        settings
    }
}

/// Paths of the TLS files. The server checks their content when it loads them.
fn certificates(written: &TlsFiles, folder: &Path, faults: &mut Vec<FieldError>) -> TlsFiles {
    let TlsFiles { cert, key, client_ca } = written;
    for (field, name) in
        [("cert", Some(cert)), ("key", Some(key)), ("client_ca", client_ca.as_ref())]
    {
        if name.is_some_and(|name| name.as_os_str().is_empty()) {
            let message = format!("{field} is empty; expected a file name");
            faults.push(FieldError::new(&format!("tls.{field}"), "file", message));
        }
    }
    TlsFiles {
        cert: folder.join(cert),
        key: folder.join(key),
        client_ca: client_ca.as_ref().map(|file| folder.join(file)),
    }
}

fn deadline(text: &str) -> Result<Duration, FieldError> {
    const BOUNDS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
    let fault =
        |message: &dyn ToString| FieldError::new("store_deadline", "duration", message.to_string());
    let span = text.parse::<Span>();
    let span =
        span.map_err(|error| FieldError { part: Some(error.position()), ..fault(&error) })?;
    let length = span.length().map(Duration::from).filter(|length| BOUNDS.contains(length));
    length.ok_or_else(|| fault(&"out of range; use 1ms to 60s, for example 100ms"))
}

fn networks(texts: &[String], faults: &mut Vec<FieldError>) -> Vec<Network> {
    if texts.len() > ServerSettings::MAX_PROXIES {
        let message = format!(
            "{} trusted proxies; use at most {}, for example by wider networks",
            texts.len(),
            ServerSettings::MAX_PROXIES
        );
        faults.push(FieldError::new("trusted_proxies", "list", message));
        return Vec::new();
    }
    let mut networks = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        match text.parse() {
            Ok(network) => networks.push(network),
            Err(error) => {
                faults.push(FieldError::new(&format!("trusted_proxies[{i}]"), "network", error));
            }
        }
    }
    networks
}

/// Checks a store URL. The message never contains the URL.
fn store_fault(store: &str) -> Option<FieldError> {
    let fault = |message: String| Some(FieldError::new("store", "store", message));
    if store == "memory" {
        return None;
    }
    let Some((scheme, _)) = store.split_once("://") else {
        return fault("invalid store; expected memory or a URL like redis://127.0.0.1:6379".into());
    };
    redis_fault(scheme, store).and_then(fault)
}

/// Checks a Redis URL. Without the feature `redis`, every URL is accepted.
#[cfg(feature = "redis")]
fn redis_fault(scheme: &str, store: &str) -> Option<String> {
    let schemes = RedisUrl::SCHEMES;
    match store.parse::<RedisUrl>() {
        Ok(_) => None,
        Err(InvalidUrl::Scheme) => {
            Some(match tidegate::did_you_mean(scheme, schemes.into_iter()) {
                Some(meant) => format!("unknown store type; did you mean {meant}://?"),
                None => format!("unknown store type; use memory, {}://", schemes.join("://, ")),
            })
        }
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(not(feature = "redis"))]
fn redis_fault(_scheme: &str, _store: &str) -> Option<String> {
    None
}

fn is_namespace(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b))
}
