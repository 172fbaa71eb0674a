//! A policy file as it is written. The comments here are the descriptions of the JSON Schema and
//! the reference.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule_file::{Lease, MissingKey, RuleFile};

/// What a server enforces, and where it keeps count.
///
/// Text may hold `${NAME}`, which is filled in from the environment after the file has been read: a
/// value cannot add fields. `$${` is a literal `${`.
#[derive(Clone, Default, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(title = "Tidegate policy")]
pub struct PolicyFile {
    /// Where state is kept: `memory`, or the address of a Redis such as
    /// `redis://[user:password@]host:port[/db]`, `rediss://` or `unix:///path`; redis.md has them all.
    /// `--store` on the command line wins.
    #[schemars(
        with = "String",
        extend(
            "default" = "memory",
            "examples" = ["memory", "redis://127.0.0.1:6379", "${REDIS_URL}"]
        )
    )]
    pub store: Option<StoreUrl>,
    /// How long a call to Redis may take, from `1ms` to `60s`. Whoever is not answered by then is answered as
    /// `on_store_failure` says.
    #[schemars(with = "String", extend("default" = "25ms", "examples" = ["25ms"]))]
    pub store_deadline: Option<String>,
    /// What every key in Redis begins with, so that two deployments can share one.
    #[schemars(
        with = "String",
        extend("default" = "tg", "examples" = ["tg"], "minLength" = 1, "maxLength" = 64)
    )]
    pub namespace: Option<String>,
    /// Keys the hash under which subjects are stored. Every server on one store needs the same.
    /// Without it the first server draws one and keeps it in the store.
    #[schemars(with = "String", extend("examples" = ["${TIDEGATE_SECRET}"], "minLength" = 1))]
    pub secret: Option<Secret>,
    /// Networks whose word about a client's address is believed. A list replaces the default; an
    /// empty one trusts nobody.
    #[schemars(
        with = "Vec<String>",
        extend("default" = ["127.0.0.0/8", "::1"], "examples" = [["10.0.0.0/8"]])
    )]
    pub trusted_proxies: Option<Vec<String>>,
    /// May a call bring a limit of its own? `false` refuses such calls.
    #[schemars(with = "bool", extend("default" = true))]
    pub adhoc: Option<bool>,
    /// On Redis: whoever was denied and asks again too early is answered by the server itself, for at most
    /// a second. `false` asks the store every time.
    #[schemars(with = "bool", extend("default" = true))]
    pub deny_cache: Option<bool>,
    /// On Redis: how many replicas must have a charge before anybody passes for it. What they do not
    /// confirm in time stays charged, and goes by `on_store_failure`. 0 asks none of them; redis.md says
    /// what it costs.
    #[schemars(with = "u32", extend("default" = 0, "minimum" = 0, "maximum" = 8))]
    pub confirmed_by: Option<u32>,
    /// Certificates for all three doors. `--tls-cert` and `--tls-key` on the command line win. They are read again when
    /// a file changes; whether there is TLS at all is settled when the server starts.
    #[schemars(with = "TlsFile")]
    pub tls: Option<TlsFile>,
    /// More files, relative to this one. Their rules come after the rules here, in order. An
    /// included file may have `rules`, `defaults` and `include`.
    #[schemars(extend("examples" = [["more.yaml"]], "maxItems" = 100))]
    pub include: Vec<String>,
    /// What happens to rules that do not say it themselves while the store does not answer.
    #[schemars(with = "OnStoreFailure", extend("default" = "fallback"))]
    pub on_store_failure: Option<OnStoreFailure>,
    /// The share of each limit that a server grants by itself in `fallback`, above 0 and at most 1.
    #[schemars(
        with = "f64",
        extend("default" = 0.5, "exclusiveMinimum" = 0, "maximum" = 1)
    )]
    pub fallback_ratio: Option<f64>,
    /// Whoever is denied is told to come back later by up to this share of the wait, at random: above 0
    /// and at most 1. Many who were denied together do not come back together then.
    #[schemars(
        with = "f64",
        extend("examples" = [0.1], "exclusiveMinimum" = 0, "maximum" = 1)
    )]
    pub retry_jitter: Option<f64>,
    /// What rules inherit that do not say it themselves: those in this file and in the files that
    /// it includes. The nearest `defaults` wins.
    #[schemars(with = "Defaults")]
    pub defaults: Option<Defaults>,
    /// The rules in order. Every rule that matches a request applies, and they are charged all or
    /// none.
    #[schemars(extend("maxItems" = 10_000))]
    pub rules: Vec<RuleFile>,
}

/// What rules inherit.
#[derive(Clone, PartialEq, Default, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// Whom a rule counts. A rule with `key: []` counts everybody together all the same.
    #[schemars(with = "Vec<String>", extend("examples" = [["client_ip"]], "maxItems" = 16))]
    pub key: Option<Vec<String>>,
    /// What becomes of a request without one of the parts of the key.
    #[schemars(with = "MissingKey")]
    pub on_missing_key: Option<MissingKey>,
    /// What happens while the store does not answer.
    #[schemars(with = "OnStoreFailure")]
    pub on_store_failure: Option<OnStoreFailure>,
    /// The share of each limit that a server grants by itself in `fallback`.
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0, "maximum" = 1))]
    pub fallback_ratio: Option<f64>,
    /// Whether a rule that applies is the last one looked at.
    #[schemars(with = "bool")]
    pub stop: Option<bool>,
    /// How much a server takes from the store at a time.
    #[schemars(with = "Lease")]
    pub lease: Option<Lease>,
}

/// Certificates, in PEM form. Files are looked for from the policy's folder.
#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Tls", extend("required" = ["cert", "key"]))]
pub struct TlsFile {
    /// The file with the server's certificate, and those between it and its root.
    #[schemars(extend("examples" = ["server.pem"], "minLength" = 1))]
    pub cert: String,
    /// The file with its key, unencrypted.
    #[schemars(extend("examples" = ["server-key.pem"], "minLength" = 1))]
    pub key: String,
    /// The file that tells who signs the certificates of clients. With it, nobody comes in without such a
    /// certificate; without it, anybody does who has the token.
    #[schemars(with = "String", extend("examples" = ["clients.pem"], "minLength" = 1))]
    pub client_ca: Option<String>,
}

/// What happens to a rule while the store does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnStoreFailure {
    /// Each server limits by itself, to a share of the limit.
    #[default]
    Fallback,
    /// Everything is denied.
    Deny,
    /// Everything passes.
    Allow,
}

/// A secret. It prints as `***`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The address of a store. It prints without its password.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// The address with its password.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::mask::url(&self.0))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", super::mask::url(&self.0))
    }
}
