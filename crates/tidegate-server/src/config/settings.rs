//! What a policy file says about the server itself.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use tidegate::{Network, Span};
use tidegate_redis::{InvalidUrl, RedisBuilder, RedisUrl};

use super::file::{OnStoreFailure, PolicyFile, Secret, StoreUrl, TlsFile};
use super::limits::Fault;
use super::ratio::Ratio;
use crate::doors::tls;

/// What a policy file says about the server itself.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Where state is kept.
    pub store: Option<StoreUrl>,
    /// How long a call to the store may take.
    pub store_deadline: Option<Duration>,
    /// What every key in Redis begins with.
    pub namespace: Option<String>,
    /// Keys the hash of subjects.
    pub secret: Option<Secret>,
    /// Whose word about a client's address is believed.
    pub trusted_proxies: Vec<Network>,
    /// Certificates for the doors.
    pub tls: Option<tls::Files>,
    /// May a call bring a limit of its own?
    pub adhoc: bool,
    /// Are denials remembered for as long as they are good?
    pub deny_cache: bool,
    /// How many replicas must have a charge before it counts.
    pub confirmed_by: u32,
    /// What happens to rules that do not say it themselves while the store does not answer.
    pub on_store_failure: OnStoreFailure,
    /// The share of a limit that a server grants by itself, for rules that do not say it.
    pub fallback_ratio: Ratio,
    /// By how much of it a wait may be told longer, at random.
    pub retry_jitter: Option<Ratio>,
}

/// As if the file said nothing.
impl Default for Settings {
    fn default() -> Self {
        Self {
            store: None,
            store_deadline: None,
            namespace: None,
            secret: None,
            trusted_proxies: Network::LOOPBACK.to_vec(),
            tls: None,
            adhoc: true,
            deny_cache: true,
            confirmed_by: 0,
            on_store_failure: OnStoreFailure::default(),
            fallback_ratio: Ratio::default(),
            retry_jitter: None,
        }
    }
}

impl Settings {
    /// The most networks of trusted proxies.
    pub const MAX_PROXIES: usize = 1_000;

    /// What the file in this folder says, as far as it is good.
    pub(super) fn read(file: &PolicyFile, folder: &Path, faults: &mut Vec<Fault>) -> Self {
        let mut settings = Self::default();
        if let Some(store) = &file.store {
            faults.extend(store_fault(store.expose()));
            settings.store = Some(store.clone());
        }
        if let Some(text) = &file.store_deadline {
            match deadline(text) {
                Ok(deadline) => settings.store_deadline = Some(deadline),
                Err(fault) => faults.push(fault),
            }
        }
        if let Some(namespace) = &file.namespace {
            if !is_namespace(namespace) {
                let message = "not a namespace; use 1 to 64 of A-Z a-z 0-9 _ . : -";
                faults.push(Fault::new("namespace", "namespace", message));
            }
            settings.namespace = Some(namespace.clone());
        }
        if let Some(secret) = &file.secret {
            if secret.expose().is_empty() {
                let message = "the secret is empty; write one, or leave it out";
                faults.push(Fault::new("secret", "secret", message));
            }
            settings.secret = Some(secret.clone());
        }
        if let Some(proxies) = &file.trusted_proxies {
            settings.trusted_proxies = networks(proxies, faults);
        }
        if let Some(ratio) = file.fallback_ratio {
            match Ratio::new(ratio) {
                Some(ratio) => settings.fallback_ratio = ratio,
                None => faults.push(Fault::new("fallback_ratio", "share", Ratio::ADVICE)),
            }
        }
        if let Some(share) = file.retry_jitter {
            settings.retry_jitter = Ratio::new(share);
            if settings.retry_jitter.is_none() {
                faults.push(Fault::new("retry_jitter", "share", Ratio::ADVICE));
            }
        }
        if let Some(replicas) = file.confirmed_by {
            let most = RedisBuilder::MOST_REPLICAS;
            if replicas > most {
                let message = format!("{replicas} replicas; use at most {most}, or 0 for none");
                faults.push(Fault::new("confirmed_by", "number", message));
            }
            settings.confirmed_by = replicas;
        }
        settings.tls = file.tls.as_ref().map(|tls| certificates(tls, folder, faults));
        settings.adhoc = file.adhoc.unwrap_or(settings.adhoc);
        settings.deny_cache = file.deny_cache.unwrap_or(settings.deny_cache);
        settings.on_store_failure = file.on_store_failure.unwrap_or_default();
        settings
    }
}

/// Where the certificates are. Whether they are good is found out by whoever needs them.
fn certificates(written: &TlsFile, folder: &Path, faults: &mut Vec<Fault>) -> tls::Files {
    let TlsFile { cert, key, client_ca } = written;
    for (field, name) in
        [("cert", Some(cert)), ("key", Some(key)), ("client_ca", client_ca.as_ref())]
    {
        if name.is_some_and(String::is_empty) {
            let message = format!("{field} is empty; name a file");
            faults.push(Fault::new(&format!("tls.{field}"), "file", message));
        }
    }
    tls::Files {
        cert: folder.join(cert),
        key: folder.join(key),
        client_ca: client_ca.as_ref().map(|file| folder.join(file)),
    }
}

fn deadline(text: &str) -> Result<Duration, Fault> {
    const BOUNDS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
    let fault = |message: &dyn ToString| Fault::new("store_deadline", "span", message.to_string());
    let span = text.parse::<Span>();
    let span = span.map_err(|error| Fault { part: Some(error.position()), ..fault(&error) })?;
    let length = span.length().map(Duration::from).filter(|length| BOUNDS.contains(length));
    length.ok_or_else(|| fault(&"too short or too long; use 1ms to 60s, such as 25ms"))
}

fn networks(texts: &[String], faults: &mut Vec<Fault>) -> Vec<Network> {
    if texts.len() > Settings::MAX_PROXIES {
        let message = format!(
            "{} trusted proxies; use at most {}, in wider networks",
            texts.len(),
            Settings::MAX_PROXIES
        );
        faults.push(Fault::new("trusted_proxies", "list", message));
        return Vec::new();
    }
    let mut networks = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        match text.parse() {
            Ok(network) => networks.push(network),
            Err(error) => {
                faults.push(Fault::new(&format!("trusted_proxies[{i}]"), "network", error));
            }
        }
    }
    networks
}

/// Is it the address of some store? The address itself is never in the message.
fn store_fault(store: &str) -> Option<Fault> {
    let fault = |message: String| Some(Fault::new("store", "store", message));
    if store == "memory" {
        return None;
    }
    let Some((scheme, _)) = store.split_once("://") else {
        return fault(
            "not a store; write memory, or an address like redis://127.0.0.1:6379".into(),
        );
    };
    let schemes = RedisUrl::SCHEMES;
    match store.parse::<RedisUrl>() {
        Ok(_) => None,
        Err(InvalidUrl::Scheme) => fault(match tidegate::closest(scheme, schemes.into_iter()) {
            Some(meant) => format!("not a kind of store; did you mean {meant}://?"),
            None => format!("not a kind of store; use memory, {}://", schemes.join("://, ")),
        }),
        Err(error) => fault(error.to_string()),
    }
}

fn is_namespace(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b))
}
