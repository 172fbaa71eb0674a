//! The fields of a rule, in a policy file or sent over the API. The doc comments become the
//! descriptions in the JSON Schema and in `docs/reference/policy.md`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::policy::OnMissingKey;
use tidegate::{LeaseSize, OnReserve, Unit};

use crate::on_expiry::OnExpirySetting;
use crate::on_store_failure::OnStoreFailureSetting;

/// One rule: the requests it matches, the key it counts by, and its limits.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Rule", extend("required" = ["name"]))]
pub struct RuleFile {
    /// Name of the rule in API calls, headers and metrics: 1 to 64 of `A-Z a-z 0-9 _ . -`, starting
    /// with a letter or digit.
    #[schemars(
        extend("examples" = ["login"], "pattern" = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$|\$\{")
    )]
    pub name: String,
    /// Requests the rule matches; all if empty. Checks by rule name ignore it.
    #[serde(rename = "match", skip_serializing_if = "is_default")]
    pub matches: MatchFile,
    /// What to count by: `client_ip`, `header:NAME`, `query:NAME`, `cookie:NAME`, `path:NAME` (the
    /// segment matched by `{NAME}`), `bearer` (hash of the token), `instance` (this server).
    /// Several parts form one key. An empty list counts all requests together. A header, parameter
    /// or cookie that a request has twice with different values is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "Vec<String>",
        extend("examples" = [["client_ip"], ["header:x-api-key", "path:id"]], "maxItems" = 16),
        inner(regex(pattern = KEY_PATTERN))
    )]
    pub key: Option<Vec<String>>,
    /// What happens to a request that lacks a part of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OnMissingKey", extend("default" = "shared"))]
    pub on_missing_key: Option<OnMissingKey>,
    /// Enforced limits. A request is allowed if all of them allow it, and is then charged to all.
    /// A rule needs at least one limit here, in `plans` or in `shadow_limits`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        extend(
            "examples" = [["100/s burst 200"], ["sliding-log 5/1m", "fixed-window 100/1d"]],
            "maxItems" = 16
        ),
        inner(regex(pattern = LIMIT_PATTERN))
    )]
    pub limits: Vec<String>,
    /// Limits by plan, instead of `limits`. All plans have limits of the same algorithms in the
    /// same order, so a key that changes its plan keeps what was used.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend(
        "examples" = [{ "free": ["100/h"], "pro": ["5000/h"] }],
        "maxProperties" = 64
    ))]
    pub plans: BTreeMap<String, Vec<String>>,
    /// Request header with the plan, `header:NAME`. Used only from a trusted proxy. Calls by rule
    /// name give the plan as `plan`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "String",
        extend("examples" = ["header:x-plan"], "pattern" = r"^header:.+$|\$\{")
    )]
    pub plan: Option<String>,
    /// The plan of a request that names none, or one that is not in `plans`. Required with `plans`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("examples" = ["free"]))]
    pub default_plan: Option<String>,
    /// Limits in shadow mode: evaluated and counted, not enforced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        extend("examples" = [["50/s"]], "maxItems" = 16),
        inner(regex(pattern = LIMIT_PATTERN))
    )]
    pub shadow_limits: Vec<String>,
    /// Runs the whole rule in shadow mode.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub shadow: bool,
    /// Skip later rules if this one applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool", extend("default" = false))]
    pub stop: Option<bool>,
    /// Request header with the cost, `header:NAME`. Used only from a trusted proxy; values below 1
    /// count as 1. Default cost: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "String",
        extend("examples" = ["header:x-cost"], "pattern" = r"^header:.+$|\$\{")
    )]
    pub cost: Option<String>,
    /// What the rule counts. It sets the defaults of `reserve` and `on_expiry`, the cost of a
    /// reservation with `model` and `usage`, and the unit in headers. Default: plain permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Unit", extend("examples" = ["tokens"]))]
    pub unit: Option<Unit>,
    /// Cost of a reservation that names none; default 1. `tidegate_settled_ratio` shows how it
    /// compares with what is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32", extend("examples" = [800], "minimum" = 1))]
    pub estimate: Option<u32>,
    /// What a reservation does with the rule; default: `charge` for `unit: requests`, else `hold`.
    /// `concurrency` limits are always held.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OnReserve")]
    pub reserve: Option<OnReserve>,
    /// What happens to held permits if a reservation is not settled by its deadline; default:
    /// `charge` for `unit: tokens` and `unit: money`, else `release`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OnExpirySetting")]
    pub on_expiry: Option<OnExpirySetting>,
    /// Permits borrowed from the store at a time, to decide locally: `auto` or a number. Nothing is
    /// borrowed near the limit. No effect with `memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LeaseSetting", extend("examples" = ["auto"]))]
    pub lease: Option<LeaseSetting>,
    /// Different limits for certain keys. An override set at run time takes precedence; see
    /// docs/use/http.md.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 10_000))]
    pub overrides: Vec<OverrideFile>,
    /// Exempt clients: networks match the client address, other entries the key.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("examples" = [["10.0.0.0/8", "gold-123"]], "maxItems" = 10_000))]
    pub allow: Vec<String>,
    /// Denied clients; wins over `allow`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("examples" = [["203.0.113.0/24"]], "maxItems" = 10_000))]
    pub deny: Vec<String>,
    /// What happens while the store is unavailable; default: the file's `on_store_failure`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OnStoreFailureSetting")]
    pub on_store_failure: Option<OnStoreFailureSetting>,
    /// Largest fraction of each limit that one server grants in `fallback`; default: the file's
    /// `fallback_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0, "maximum" = 1))]
    pub fallback_ratio: Option<f64>,
}

/// Conditions on a request; all given ones must match.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Match")]
pub struct MatchFile {
    /// Method, or a list of which one must match.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    #[schemars(extend("examples" = ["POST", ["PUT", "PATCH"]]))]
    pub method: OneOrMany,
    /// Path pattern: `{name}` matches one segment, `*` a part of one, a trailing `/*` everything
    /// below.
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
    /// Host without port: a name, or `*.example.com` for all subdomains.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "String",
        extend("examples" = ["api.example.com", "*.example.com"], "maxLength" = 255)
    )]
    pub host: Option<String>,
    /// Headers with value patterns; `*` matches anything.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("examples" = [{ "x-plan": "free*" }], "maxProperties" = 64))]
    pub header: BTreeMap<String, String>,
}

/// Different limits for one key, optionally until a given time.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Override", extend("required" = ["key", "limits"]))]
pub struct OverrideFile {
    /// The key; a list if the rule's key has several parts.
    #[schemars(extend("examples" = ["gold-123", ["acme", "alice"]]))]
    pub key: OneOrMany,
    /// Limits that replace the rule's.
    #[schemars(
        extend("examples" = [["1000/s"]], "minItems" = 1, "maxItems" = 16),
        inner(regex(pattern = LIMIT_PATTERN))
    )]
    pub limits: Vec<String>,
    /// End of the override; default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "String",
        extend("examples" = ["2027-01-01T00:00:00Z"], "format" = "date-time")
    )]
    pub until: Option<String>,
}

/// Permits borrowed from the store at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LeaseSetting {
    /// Sized by traffic.
    Auto(Auto),
    /// A fixed number.
    Of(#[schemars(range(min = 2))] u32),
}

impl LeaseSetting {
    /// `None` below 2: borrowing one permit costs as much as a check.
    pub(crate) fn size(self) -> Option<LeaseSize> {
        match self {
            Self::Auto(_) => Some(LeaseSize::Auto),
            Self::Of(0 | 1) => None,
            Self::Of(permits) => NonZeroU32::new(permits).map(LeaseSize::Of),
        }
    }
}

/// The string `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Auto {
    /// Sized by traffic.
    Auto,
}

/// A string or a list of strings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OneOrMany {
    /// A string.
    One(String),
    /// A list, which may be empty.
    Many(Vec<String>),
}

impl OneOrMany {
    /// The strings as a list.
    pub fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.texts().is_empty()
    }

    /// The path of the `i`-th string: `name`, or `name[i]` in a list.
    pub(crate) fn field(&self, name: &str, i: usize) -> String {
        match self {
            Self::One(_) => name.to_string(),
            Self::Many(_) => format!("{name}[{i}]"),
        }
    }
}

/// A list of one string becomes the string.
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
