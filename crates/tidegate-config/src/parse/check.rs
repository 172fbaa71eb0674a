//! Checks a tree against the expected types: reports what does not match and keeps the rest.

use serde_json::{Map, Number, Value};

use super::expected::{ExpectedField, ExpectedType, NumberType, listed};
use super::tree::{MapEntry, NodeKind, QuotedText, Scalar, Visibility, YamlNode};
use crate::errors::problem::Finding;
use crate::errors::redact;
use crate::errors::sources::SourceSpan;

/// The errors of a tree that was checked.
#[derive(Default, Debug)]
pub(crate) struct CheckedTree {
    pub(crate) found: Vec<Finding>,
    /// Fields without a value whose error is reported already.
    pub(crate) broken: Vec<String>,
    /// Values of misspelt fields that would hold a secret.
    pub(crate) secrets: Vec<SourceSpan>,
    /// Fields without an effect.
    pub(crate) warnings: Vec<Finding>,
    dialect: Dialect,
}

/// What a file may contain.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Dialect {
    #[default]
    Policy,
    /// As envoyproxy/ratelimit: a field without a value counts as missing, a field in the wrong map
    /// is ignored, and scalars are those of YAML 1.1.
    Envoy,
}

/// The fields of envoyproxy/ratelimit, and where they have an effect.
const ENVOY_FIELDS: [(&str, &str); 16] = [
    ("domain", "at the top of the file"),
    ("descriptors", "at the top of the file or in a descriptor"),
    ("key", "in a descriptor"),
    ("value", "in a descriptor"),
    ("rate_limit", "in a descriptor"),
    ("shadow_mode", "in a descriptor"),
    ("quota_mode", "in a descriptor"),
    ("detailed_metric", "in a descriptor"),
    ("value_to_metric", "in a descriptor"),
    ("share_threshold", "in a descriptor"),
    ("metadata", "in a descriptor"),
    ("unit", "in rate_limit"),
    ("requests_per_unit", "in rate_limit"),
    ("unlimited", "in rate_limit"),
    ("name", "in rate_limit or replaces"),
    ("replaces", "in rate_limit"),
];

impl CheckedTree {
    /// For files of envoyproxy/ratelimit.
    pub(crate) fn envoy() -> Self {
        Self { dialect: Dialect::Envoy, ..Self::default() }
    }

    /// Whether an error of this field, or of a field inside it, is reported already.
    pub(crate) fn is_broken(&self, field: &str) -> bool {
        let inside = |broken: &String| {
            let rest = broken.strip_prefix(field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.broken.iter().any(inside) || self.found.iter().any(|found| found.is_about(field))
    }

    /// The value without the parts that do not match.
    pub(crate) fn value(&mut self, node: &YamlNode, expected: &ExpectedType, field: &str) -> Value {
        self.matching(node, expected, field, node.span).unwrap_or_else(|| placeholder(expected))
    }

    /// `around` is the position to report if the value is missing.
    fn matching(
        &mut self,
        node: &YamlNode,
        expected: &ExpectedType,
        field: &str,
        around: SourceSpan,
    ) -> Option<Value> {
        match (&node.kind, expected) {
            (NodeKind::Unknown, _) => {
                self.broken.push(field.into());
                None
            }
            (_, ExpectedType::Unread) => Some(Value::Null),
            (_, ExpectedType::Any) => Some(any(node)),
            (NodeKind::Nothing, _) if self.dialect == Dialect::Envoy => None,
            (NodeKind::Nothing, _) => {
                let name = last(field);
                let message = format!("{name} has no value; set one or remove it");
                self.found.push(Finding::new(around, field, message));
                None
            }
            (NodeKind::List(items), ExpectedType::List(expected)) => Some(Value::Array(
                (0..).zip(items).map(|(i, item)| self.item(item, expected, field, i)).collect(),
            )),
            (NodeKind::Map(entries), ExpectedType::Map(expected)) => {
                Some(Value::Object(self.entries(entries, expected, field)))
            }
            (NodeKind::Map(entries), ExpectedType::Fields(fields)) => {
                Some(Value::Object(self.fields(node.span, entries, fields, field)))
            }
            (_, ExpectedType::Either(types)) => self.either(node, types, field, around),
            (NodeKind::Scalar(scalar), expected) if self.matches(scalar, expected) => {
                of_scalar(scalar, expected, self.dialect)
            }
            _ => {
                self.found.push(Finding::new(node.span, field, type_error(node, expected, field)));
                None
            }
        }
    }

    fn matches(&self, scalar: &Scalar, expected: &ExpectedType) -> bool {
        of_scalar(scalar, expected, self.dialect).is_some()
    }

    fn item(&mut self, item: &YamlNode, expected: &ExpectedType, field: &str, i: usize) -> Value {
        self.value(item, expected, &format!("{field}[{i}]"))
    }

    fn either(
        &mut self,
        node: &YamlNode,
        types: &[ExpectedType],
        field: &str,
        around: SourceSpan,
    ) -> Option<Value> {
        let like = |expected: &&ExpectedType| match &node.kind {
            NodeKind::List(_) => matches!(expected, ExpectedType::List(_)),
            NodeKind::Map(_) => matches!(expected, ExpectedType::Map(_) | ExpectedType::Fields(_)),
            NodeKind::Scalar(scalar) => self.matches(scalar, expected),
            NodeKind::Nothing | NodeKind::Unknown => true,
        };
        match types.iter().find(like) {
            Some(expected) => self.matching(node, expected, field, around),
            None => {
                let message = type_error(node, &ExpectedType::Either(types.to_vec()), field);
                self.found.push(Finding::new(node.span, field, message));
                None
            }
        }
    }

    fn entries(
        &mut self,
        entries: &[MapEntry],
        expected: &ExpectedType,
        field: &str,
    ) -> Map<String, Value> {
        let mut map = Map::new();
        for MapEntry { key, key_span, value } in entries {
            let name = format!("{field}.{key}");
            if let Some(value) = self.matching(value, expected, &name, *key_span) {
                map.insert(key.clone(), value);
            }
        }
        map
    }

    fn fields(
        &mut self,
        whole: SourceSpan,
        entries: &[MapEntry],
        fields: &[ExpectedField],
        around: &str,
    ) -> Map<String, Value> {
        let mut map = Map::new();
        for MapEntry { key, key_span, value } in entries {
            let name = join(around, key);
            let Some(known) = fields.iter().find(|field| field.name == *key) else {
                let misplaced = ENVOY_FIELDS.iter().find(|(field, _)| field == key);
                if let (Dialect::Envoy, Some((_, place))) = (self.dialect, misplaced) {
                    let message = format!("{key} has no effect here; it belongs {place}");
                    self.warnings.push(Finding::new(*key_span, &name, message));
                    continue;
                }
                let message = self.unknown(key, value, fields, around);
                self.found.push(Finding::new(*key_span, &name, message));
                continue;
            };
            if let Some(value) = self.matching(value, &known.expected, &name, *key_span) {
                map.insert(key.clone(), value);
            }
        }
        for field in fields.iter().filter(|field| field.required) {
            if entries.iter().all(|entry| entry.key != field.name) {
                let name = join(around, &field.name);
                if self.broken.contains(&name) {
                    continue;
                }
                let message = format!("missing field {}", field.name);
                self.found.push(Finding::new(start(whole, entries), &name, message));
            }
        }
        map
    }

    fn unknown(
        &mut self,
        key: &str,
        value: &YamlNode,
        fields: &[ExpectedField],
        around: &str,
    ) -> String {
        let name = QuotedText(key);
        match tidegate::did_you_mean(key, fields.iter().map(|field| &*field.name)) {
            Some(meant) => {
                // Prevents a second error for a missing field.
                self.broken.push(join(around, meant));
                if redact::is_secret(meant) || meant == "store" {
                    self.secrets.push(value.span);
                }
                format!("unknown field {name}; did you mean {meant}?")
            }
            None => {
                let all: Vec<String> = fields.iter().map(|field| field.name.clone()).collect();
                format!("unknown field {name}; use {}", listed(&all))
            }
        }
    }
}

/// The position of a map: that of its first field.
fn start(whole: SourceSpan, entries: &[MapEntry]) -> SourceSpan {
    match entries.first() {
        Some(entry) if entry.key_span.is_within(&whole) => entry.key_span,
        _ => whole,
    }
}

fn join(around: &str, field: &str) -> String {
    if around.is_empty() { field.into() } else { format!("{around}.{field}") }
}

/// The name of a field in a message: `limits` for `rules[0].limits`.
fn last(field: &str) -> &str {
    let name = field.rsplit('.').next().unwrap_or(field);
    match name {
        "" => "this",
        _ if name.starts_with("descriptors[") => "a descriptor",
        _ if name.ends_with(']') => "an entry",
        _ => name,
    }
}

fn of_scalar(scalar: &Scalar, expected: &ExpectedType, dialect: Dialect) -> Option<Value> {
    let text = &*scalar.text;
    match expected {
        // Where a string is expected, 007 is the string "007".
        ExpectedType::Text => Some(Value::String(text.into())),
        ExpectedType::Word(words) => {
            words.iter().find(|word| **word == *text).map(|word| Value::String(word.clone()))
        }
        _ if scalar.quoted => None,
        ExpectedType::Bool => match (text, dialect) {
            ("true" | "True" | "TRUE", _)
            | ("y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON", Dialect::Envoy) => {
                Some(Value::Bool(true))
            }
            ("false" | "False" | "FALSE", _)
            | ("n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF", Dialect::Envoy) => {
                Some(Value::Bool(false))
            }
            _ => None,
        },
        ExpectedType::Number(NumberType::Whole) => whole(text, dialect).map(Value::from),
        ExpectedType::Number(NumberType::Any) => {
            let numeric = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
            let number: Option<f64> = if numeric { text.parse().ok() } else { None };
            number.and_then(Number::from_f64).map(Value::Number)
        }
        ExpectedType::List(_)
        | ExpectedType::Map(_)
        | ExpectedType::Fields(_)
        | ExpectedType::Either(_)
        | ExpectedType::Any
        | ExpectedType::Unread => None,
    }
}

/// A whole number below 2^32. In files of envoyproxy/ratelimit, digits may be grouped with `_`, and
/// a leading zero is refused: 010 is 8 in YAML 1.1 and 10 elsewhere.
fn whole(text: &str, dialect: Dialect) -> Option<u32> {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let is_allowed = match dialect {
        Dialect::Policy => !text.contains('_'),
        Dialect::Envoy => text.len() == 1 || !text.starts_with('0'),
    };
    if is_number && is_allowed { text.replace('_', "").parse().ok() } else { None }
}

/// A value of any type. Unquoted numbers and booleans keep their type.
fn any(node: &YamlNode) -> Value {
    match &node.kind {
        NodeKind::Nothing | NodeKind::Unknown => Value::Null,
        NodeKind::List(items) => items.iter().map(any).collect(),
        NodeKind::Map(entries) => {
            entries.iter().map(|entry| (entry.key.clone(), any(&entry.value))).collect()
        }
        NodeKind::Scalar(scalar) => {
            let whole = scalar.text.parse::<i64>().ok().filter(|_| !scalar.quoted).map(Value::from);
            let number = ExpectedType::Number(NumberType::Any);
            whole
                .or_else(|| of_scalar(scalar, &ExpectedType::Bool, Dialect::Policy))
                .or_else(|| of_scalar(scalar, &number, Dialect::Policy))
                .unwrap_or_else(|| Value::String(scalar.text.clone()))
        }
    }
}

fn type_error(node: &YamlNode, expected: &ExpectedType, field: &str) -> String {
    let (name, wanted) = (last(field), expected.description());
    let given = match &node.kind {
        NodeKind::List(_) => "a list".into(),
        NodeKind::Map(_) => "a map".into(),
        NodeKind::Scalar(scalar) if scalar.shown == Visibility::Filled => {
            "the value of the variable".into()
        }
        NodeKind::Scalar(_) if redact::is_secret(field) || field == "store" => "a string".into(),
        NodeKind::Scalar(scalar) => QuotedText(&scalar.text).to_string(),
        NodeKind::Nothing | NodeKind::Unknown => "nothing".into(),
    };
    let message = format!("{name} must be {wanted}, not {given}");
    match (&node.kind, expected) {
        (NodeKind::Scalar(_), ExpectedType::List(item)) if matches!(**item, ExpectedType::Text) => {
            format!("{message}; put it in brackets")
        }
        (NodeKind::Map(entries), ExpectedType::Text) => match as_text(entries) {
            Some(text) => format!("{message}; write \"{text}\""),
            None => message,
        },
        (NodeKind::Scalar(scalar), _) if is_too_high_a_price(scalar, field) => {
            format!("{message}: one call costs at most 2^32 units; use fewer decimals in money")
        }
        (NodeKind::Scalar(scalar), expected) if scalar.shown == Visibility::Yes => {
            match suggestion(scalar, expected) {
                Some(meant) => format!("{message}; did you mean {meant}?"),
                None => message,
            }
        }
        _ => message,
    }
}

/// What a map stands for where a text belongs: `header: x-api-key` for a part of a key,
/// `requests: 100, per: minute` for a limit.
fn as_text(entries: &[MapEntry]) -> Option<String> {
    let shown = |entry: &MapEntry| match &entry.value.kind {
        NodeKind::Scalar(scalar) if scalar.shown == Visibility::Yes && scalar.text.len() <= 64 => {
            Some(scalar.text.clone())
        }
        _ => None,
    };
    // Nothing else is quoted: it could be a secret.
    let is_word = |text: &String| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let is_count = |text: &String| text.bytes().all(|b| b.is_ascii_digit());
    match entries {
        [one] if ["header", "query", "cookie", "path"].contains(&&*one.key) => {
            Some(format!("{}:{}", one.key, shown(one).filter(is_word)?))
        }
        [count, per] if per.key == "per" => {
            let (count, per) = (shown(count).filter(is_count)?, shown(per).filter(is_word)?);
            Some(format!("{count}/{per}"))
        }
        _ => None,
    }
}

/// Whether it is a price whose 1,000,000 tokens would cost more than one call can.
fn is_too_high_a_price(scalar: &Scalar, field: &str) -> bool {
    let is_number = !scalar.quoted && scalar.text.bytes().all(|b| b.is_ascii_digit());
    is_number && field.starts_with("prices.")
}

fn suggestion<'s>(scalar: &Scalar, expected: &'s ExpectedType) -> Option<&'s str> {
    match expected {
        ExpectedType::Word(words) => {
            tidegate::did_you_mean(&scalar.text, words.iter().map(|word| &**word))
        }
        ExpectedType::Bool => match &*scalar.text.to_ascii_lowercase() {
            "yes" | "on" | "y" | "1" | "true" => Some("true"),
            "no" | "off" | "n" | "0" | "false" => Some("false"),
            _ => None,
        },
        ExpectedType::Either(types) => {
            types.iter().find_map(|expected| suggestion(scalar, expected))
        }
        _ => None,
    }
}

/// Replaces a value that did not match, so that later list items keep their index.
fn placeholder(expected: &ExpectedType) -> Value {
    match expected {
        ExpectedType::Text | ExpectedType::Word(_) | ExpectedType::Either(_) => {
            Value::String(String::new())
        }
        ExpectedType::Bool => Value::Bool(false),
        ExpectedType::Number(_) => Value::Number(0.into()),
        ExpectedType::List(_) => Value::Array(Vec::new()),
        ExpectedType::Map(_) | ExpectedType::Fields(_) => Value::Object(Map::new()),
        ExpectedType::Any | ExpectedType::Unread => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_and_fit_32_bits() {
        let good = [("0", 0), ("7", 7), ("1_000", 1_000), ("4294967295", u32::MAX)];
        for (text, value) in good {
            assert_eq!(whole(text, Dialect::Envoy), Some(value), "{text}");
        }
        let bad = ["", "_", "_1", "-1", "+1", "010", "00", "0x10", "1.0", "1e3", "4294967296", "١"];
        for text in bad {
            assert_eq!(whole(text, Dialect::Envoy), None, "{text}");
        }
        assert_eq!(["010", "1_0"].map(|text| whole(text, Dialect::Policy)), [Some(10), None]);
    }
}
