//! The fields of a file, of a descriptor, of `rate_limit` and of `replaces`.

use std::sync::OnceLock;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::diagnostics::Diagnostics;
use crate::errors::sources::SourceSpan;
use crate::on_expiry::OnExpirySetting;
use crate::parse::check::CheckedTree;
use crate::parse::expected::ExpectedType;
use crate::parse::tree::{MapEntry, NodeKind, YamlNode};

/// The fields of all levels. Fields of type `()` are maps that are read later, on their own.
#[derive(Default, Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct EnvoyFields {
    pub(crate) domain: String,
    descriptors: Vec<()>,
    pub(crate) key: String,
    pub(crate) value: String,
    rate_limit: (),
    #[schemars(with = "String")]
    pub(crate) limit: Option<String>,
    pub(crate) limits: Vec<String>,
    pub(crate) shadow_mode: bool,
    pub(crate) quota_mode: bool,
    pub(crate) detailed_metric: bool,
    pub(crate) value_to_metric: bool,
    pub(crate) share_threshold: bool,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) unit: String,
    #[schemars(with = "u32")]
    pub(crate) requests_per_unit: Option<u32>,
    pub(crate) unlimited: bool,
    pub(crate) name: String,
    replaces: Vec<()>,
    #[schemars(with = "bool")]
    pub(crate) charge_denied: Option<bool>,
    #[schemars(with = "bool")]
    pub(crate) allow_override: Option<bool>,
    #[schemars(with = "FailureMode")]
    pub(crate) on_store_failure: Option<FailureMode>,
    #[schemars(with = "f64")]
    pub(crate) fallback_ratio: Option<f64>,
    #[schemars(with = "ChargeMode")]
    pub(crate) charge: Option<ChargeMode>,
    #[schemars(with = "u32")]
    pub(crate) estimate: Option<u32>,
    #[schemars(with = "String")]
    pub(crate) reservation_ttl: Option<String>,
    #[schemars(with = "OnExpirySetting")]
    pub(crate) on_expiry: Option<OnExpirySetting>,
    pub(crate) rlqs: bool,
}

/// When a number of hits above 1 is charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChargeMode {
    Always,
    IfAllowed,
}

/// What happens while the store is unavailable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureMode {
    Fallback,
    Deny,
    Allow,
    // The call fails, and Envoy decides.
    Unavailable,
}

/// Where a map stands, which decides on the fields that it may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FieldLevel {
    File,
    Descriptor,
    /// A descriptor with limits in the notation of the library.
    NotationDescriptor,
    RateLimit,
    Replaces,
}

/// The fields that descriptors and domains have in common.
pub(crate) const INHERITED: [&str; 4] =
    ["charge_denied", "allow_override", "on_store_failure", "fallback_ratio"];

const DESCRIPTOR: [&str; 17] = [
    "key",
    "value",
    "rate_limit",
    "limit",
    "limits",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
    "charge",
    "estimate",
    "reservation_ttl",
    "on_expiry",
    "rlqs",
];

impl FieldLevel {
    fn expected(self) -> &'static ExpectedType {
        static LEVELS: OnceLock<[ExpectedType; 5]> = OnceLock::new();
        let levels = LEVELS.get_or_init(|| {
            let generator = SchemaSettings::draft2020_12().into_generator();
            let schema = generator.into_root_schema_for::<EnvoyFields>().to_value();
            let all = ExpectedType::of_schema(&schema);
            // In the order of the levels.
            let names: [&[&[&str]]; 5] = [
                &[&["domain", "descriptors"], &INHERITED],
                &[&DESCRIPTOR, &INHERITED],
                &[&DESCRIPTOR, &INHERITED, &["name", "replaces"]],
                &[&["unit", "requests_per_unit", "unlimited", "name", "replaces"]],
                &[&["name"]],
            ];
            names.map(|names| all.with_fields(&names.concat()))
        });
        &levels[self as usize]
    }
}

/// The fields of a map, with their positions. A field without a value counts as missing, as in
/// envoyproxy/ratelimit.
pub(crate) struct LocatedFields<'n> {
    pub(crate) values: EnvoyFields,
    pub(crate) node: &'n YamlNode,
    /// The path of the map: `descriptors[0].rate_limit`.
    pub(crate) around: String,
    /// The position to report for a missing field.
    pub(crate) start: SourceSpan,
    checked: CheckedTree,
}

impl<'n> LocatedFields<'n> {
    /// The fields of a node, with errors in `diagnostics`; `None` if it is not a map.
    pub(crate) fn of(
        node: &'n YamlNode,
        around: String,
        level: FieldLevel,
        diagnostics: &mut Diagnostics,
    ) -> Option<Self> {
        let mut checked = CheckedTree::envoy();
        let value = checked.value(node, level.expected(), &around);
        diagnostics.errors.extend(checked.found.iter().cloned());
        for warning in checked.warnings.drain(..) {
            diagnostics.warn(warning.span, &warning.field, warning.message);
        }
        let NodeKind::Map(entries) = &node.kind else { return None };
        // The value has the types of the fields, because the schema is made from the fields.
        let values = serde_json::from_value(value).unwrap_or_default();
        let first = entries.first().map(|entry| entry.key_span);
        // A field from an alias is at another position.
        let start = first.filter(|first| first.is_within(&node.span)).unwrap_or(node.span);
        Some(Self { values, node, around, start, checked })
    }

    /// The path of a field from the root of the file.
    pub(crate) fn path(&self, field: &str) -> String {
        if self.around.is_empty() { field.into() } else { format!("{}.{field}", self.around) }
    }

    /// Whether an error of the field is reported already.
    pub(crate) fn is_broken(&self, field: &str) -> bool {
        self.checked.is_broken(&self.path(field))
    }

    /// A field, if it has a value.
    pub(crate) fn entry(&self, field: &str) -> Option<&'n MapEntry> {
        let entry = self.node.entry(field)?;
        (!matches!(entry.value.kind, NodeKind::Nothing | NodeKind::Unknown)).then_some(entry)
    }

    /// The position of a field's name, also if the field has no value.
    pub(crate) fn name_span(&self, field: &str) -> SourceSpan {
        self.node.entry(field).map_or(self.start, |entry| entry.key_span)
    }

    /// The position of a field's value.
    pub(crate) fn value_span(&self, field: &str) -> Option<SourceSpan> {
        self.entry(field).map(|entry| entry.value.span)
    }

    /// The items of a list; empty if the field is missing.
    pub(crate) fn items(&self, field: &str) -> &'n [YamlNode] {
        match self.entry(field).map(|entry| &entry.value.kind) {
            Some(NodeKind::List(items)) => items,
            _ => &[],
        }
    }
}
