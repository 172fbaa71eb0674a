//! One rule as it is written, in a policy file or in a call.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::LeaseSize;

use super::file::OnStoreFailure;

/// One rule: whom it counts, and under which limits they are.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Rule", extend("required" = ["name"]))]
pub struct RuleFile {
    /// What calls, headers and metrics know the rule by: 1 to 64 of `A-Z a-z 0-9 _ . -`, a letter
    /// or digit first.
    #[schemars(
        extend("examples" = ["login"], "pattern" = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$|\$\{")
    )]
    pub name: String,
    /// The requests it is about; all of them if nothing is said. A call by the rule's name skips
    /// it.
    #[serde(rename = "match", skip_serializing_if = "is_default")]
    pub matches: MatchFile,
    /// Whom it counts: `client_ip`, `header:NAME`, `query:NAME`, `cookie:NAME`, `path:NAME` (the
    /// segment that `{NAME}` stands for), `bearer` (a hash of the token), `instance` (this server).
    /// Several parts are one key together. None counts everybody together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "Vec<String>",
        extend("examples" = [["client_ip"], ["header:x-api-key", "path:id"]], "maxItems" = 16),
        inner(regex(pattern = KEY_PATTERN))
    )]
    pub key: Option<Vec<String>>,
    /// What becomes of a request without one of the parts of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MissingKey", extend("default" = "shared"))]
    pub on_missing_key: Option<MissingKey>,
    /// The limits that decide. A request passes if all of them allow it, and is then charged to
    /// all. A rule has at least one limit here or in `shadow_limits`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        extend(
            "examples" = [["100/s burst 200"], ["sliding-log 5/1m", "fixed-window 100/1d"]],
            "maxItems" = 16
        ),
        inner(regex(pattern = LIMIT_PATTERN))
    )]
    pub limits: Vec<String>,
    /// Limits that only look on: candidates beside those that decide. What they would have denied
    /// is counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        extend("examples" = [["50/s"]], "maxItems" = 16),
        inner(regex(pattern = LIMIT_PATTERN))
    )]
    pub shadow_limits: Vec<String>,
    /// Makes all limits of the rule only look on.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub shadow: bool,
    /// If the rule applies, no later rule is looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool", extend("default" = false))]
    pub stop: Option<bool>,
    /// The header that tells the cost of a request, `header:NAME`. It counts only from a trusted
    /// proxy; below 1 becomes 1. Without it a request costs 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "String",
        extend("examples" = ["header:x-cost"], "pattern" = r"^header:.+$|\$\{")
    )]
    pub cost: Option<String>,
    /// How many permits a server borrows from the store at a time, to decide by itself: `auto` or a
    /// number. Near the limit it borrows nothing. It has no effect on a store in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Lease", extend("examples" = ["auto"]))]
    pub lease: Option<Lease>,
    /// Other limits for some keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 10_000))]
    pub overrides: Vec<OverrideFile>,
    /// Who is exempt. Networks match the client's address, others the key.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("examples" = [["10.0.0.0/8", "gold-123"]], "maxItems" = 10_000))]
    pub allow: Vec<String>,
    /// Who is denied, exempt or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("examples" = [["203.0.113.0/24"]], "maxItems" = 10_000))]
    pub deny: Vec<String>,
    /// What happens while the store does not answer; the file's `on_store_failure` if nothing is
    /// said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OnStoreFailure")]
    pub on_store_failure: Option<OnStoreFailure>,
    /// The share of each limit that a server grants by itself in `fallback`; the file's
    /// `fallback_ratio` if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0, "maximum" = 1))]
    pub fallback_ratio: Option<f64>,
}

/// What a request must look like. Everything that is given must fit.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Match")]
pub struct MatchFile {
    /// The method, or several of which one must fit.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    #[schemars(extend("examples" = ["POST", ["PUT", "PATCH"]]))]
    pub method: OneOrMany,
    /// The path. `{name}` stands for one segment, `*` for any part of one, and a last `/*` for
    /// everything below.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "String",
        extend(
            "examples" = ["/login", "/users/{id}/posts", "/api/*"],
            "pattern" = r"^/[^?#]*$|\$\{",
            "maxLength" = 1024
        )
    )]
    pub path: Option<String>,
    /// The host without a port: a name, or `*.example.com` for everything below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "String",
        extend("examples" = ["api.example.com", "*.example.com"], "maxLength" = 255)
    )]
    pub host: Option<String>,
    /// Headers by name, each with a value in which `*` stands for anything.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("examples" = [{ "x-plan": "free*" }], "maxProperties" = 64))]
    pub header: BTreeMap<String, String>,
}

/// Other limits for one key, perhaps for a while.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Override", extend("required" = ["key", "limits"]))]
pub struct OverrideFile {
    /// The key; a list if the rule's key has several parts.
    #[schemars(extend("examples" = ["gold-123", ["acme", "alice"]]))]
    pub key: OneOrMany,
    /// Its limits, in the place of the rule's.
    #[schemars(
        extend("examples" = [["1000/s"]], "minItems" = 1, "maxItems" = 16),
        inner(regex(pattern = LIMIT_PATTERN))
    )]
    pub limits: Vec<String>,
    /// When the override ends; never if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "String",
        extend("examples" = ["2027-01-01T00:00:00Z"], "format" = "date-time")
    )]
    pub until: Option<String>,
}

/// What becomes of a request without one of the parts of the key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissingKey {
    /// All such requests are counted together.
    #[default]
    Shared,
    /// They are denied.
    Deny,
    /// The rule does not apply to them.
    Skip,
}

/// How much a server takes from the store at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Lease {
    /// As much as the traffic suggests.
    Auto(Auto),
    /// This much.
    Of(#[schemars(range(min = 2))] u32),
}

impl Lease {
    /// None if it is too small to be of use: one permit is asked for as quickly as it is borrowed.
    pub(super) fn size(self) -> Option<LeaseSize> {
        match self {
            Self::Auto(_) => Some(LeaseSize::Auto),
            Self::Of(0 | 1) => None,
            Self::Of(permits) => NonZeroU32::new(permits).map(LeaseSize::Of),
        }
    }
}

/// The word `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Auto {
    /// As much as the traffic suggests.
    Auto,
}

/// A text, or a list of texts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several, or none.
    Many(Vec<String>),
}

impl OneOrMany {
    /// All of them.
    pub fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.texts().is_empty()
    }

    /// The field of the `i`-th of them: `name`, or `name[i]` in a list.
    pub(super) fn field(&self, name: &str, i: usize) -> String {
        match self {
            Self::One(_) => name.to_string(),
            Self::Many(_) => format!("{name}[{i}]"),
        }
    }
}

/// A single text stands without a list around it.
impl From<Vec<String>> for OneOrMany {
    fn from(mut texts: Vec<String>) -> Self {
        match (texts.pop(), texts.is_empty()) {
            (Some(only), true) => Self::One(only),
            (last, _) => {
                texts.extend(last);
                Self::Many(texts)
            }
        }
    }
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

const KEY_PATTERN: &str = r"^(client_ip|bearer|instance|(header|query|cookie|path):.+)$|\$\{";

const LIMIT_PATTERN: &str = concat!(
    r"^((token-bucket|fixed-window|sliding-log|sliding-window|leaky-bucket) )?",
    r"[0-9]+/[0-9]*[a-z]+( .+)?$",
    r"|^concurrency [0-9]+( lease .+)?$|\$\{"
);

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
