//! Names and values of fields: one run-time rule or override each.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate::Micros;

use super::stamp::Stamp;

/// What a field is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum FieldName {
    Rule(String),
    /// A rule, and a key in its parts.
    Override(String, Vec<String>),
}

impl FieldName {
    /// The name of the rule.
    pub(crate) fn rule(&self) -> &str {
        match self {
            Self::Rule(rule) | Self::Override(rule, _) => rule,
        }
    }

    /// Reads a name; `None` if a version of the future has written it.
    pub(crate) fn read(text: &str) -> Option<Self> {
        if let Some(rule) = text.strip_prefix("rule:") {
            return Some(Self::Rule(rule.into()));
        }
        let (rule, key) = text.strip_prefix("override:")?.split_once(':')?;
        Some(Self::Override(rule.into(), key.split('/').map(unescaped).collect()))
    }
}

/// `rule:<name>` or `override:<rule>:<key>`, with a slash between the parts of the key.
impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => write!(f, "rule:{rule}"),
            Self::Override(rule, key) => {
                let key: Vec<String> = key.iter().map(|part| escaped(part)).collect();
                write!(f, "override:{rule}:{}", key.join("/"))
            }
        }
    }
}

fn escaped(part: &str) -> String {
    part.replace('%', "%25").replace('/', "%2F")
}

fn unescaped(part: &str) -> String {
    part.replace("%2F", "/").replace("%25", "%")
}

/// The value of a field.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RuntimeField {
    pub(crate) stamp: Stamp,
    /// Who set it: token and address.
    pub(crate) by: String,
    /// When it was set, by the clock of the store.
    pub(crate) at: Micros,
    /// When an override ends, by the clock of the store.
    pub(crate) until: Option<Micros>,
    /// Hash of the rule of the policy file that a run-time rule replaces.
    pub(crate) replaces: Option<String>,
    /// The epoch of the counts of a rule, also of that of the file; a deletion may begin one.
    pub(crate) epoch: Option<u64>,
    /// A rule, or key and limits of an override; `None` if it was deleted.
    pub(crate) spec: Option<Value>,
    /// As stored, with what a later version may have added.
    pub(crate) text: String,
}

/// A value as JSON.
#[derive(Serialize, Deserialize)]
struct FieldJson {
    stamp: String,
    by: String,
    at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaces: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spec: Option<Value>,
}

impl RuntimeField {
    /// Deletions and ended overrides are kept for 7 days. Without the deletion, a server that was
    /// cut off meanwhile would offer its copy of what was deleted.
    pub(crate) const RETENTION: Micros = Micros::from_secs(7 * 86_400);
    /// The epoch of a deleted rule is kept for longer than the counts of the one before may live.
    const EPOCH_RETENTION: Micros = Micros::from_secs(400 * 86_400);

    /// The value with its `text`.
    pub(crate) fn encoded(mut self) -> Self {
        let json = FieldJson {
            stamp: self.stamp.to_string(),
            by: self.by.clone(),
            at: timestamp(self.at),
            until: self.until.map(timestamp),
            replaces: self.replaces.clone(),
            epoch: self.epoch,
            spec: self.spec.clone(),
        };
        self.text = serde_json::to_string(&json).unwrap_or_default();
        self
    }

    /// Reads a value; `None` if stamp or times cannot be read.
    pub(super) fn read(text: &str) -> Option<Self> {
        let json: FieldJson = serde_json::from_str(text).ok()?;
        let until = match &json.until {
            Some(until) => Some(timestamp_micros(until)?),
            None => None,
        };
        let (stamp, at) = (json.stamp.parse().ok()?, timestamp_micros(&json.at)?);
        let FieldJson { by, replaces, epoch, spec, .. } = json;
        Some(Self { stamp, by, at, until, replaces, epoch, spec, text: text.into() })
    }

    /// Whether an override has ended.
    pub(crate) fn has_ended(&self, now: Micros) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Whether it is in force: neither deleted nor ended.
    pub(crate) fn is_live(&self, now: Micros) -> bool {
        self.spec.is_some() && !self.has_ended(now)
    }

    /// Whether it is no longer kept.
    pub(super) fn is_over(&self, now: Micros) -> bool {
        let end = if self.spec.is_none() { Some(self.at) } else { self.until };
        let retention = if self.epoch.is_some() { Self::EPOCH_RETENTION } else { Self::RETENTION };
        end.is_some_and(|end| end.saturating_add(retention) <= now)
    }
}

/// A time as RFC 3339.
pub(crate) fn timestamp(at: Micros) -> String {
    let at = i64::try_from(at.get()).ok().and_then(|at| jiff::Timestamp::from_microsecond(at).ok());
    at.unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// A time in RFC 3339.
pub(crate) fn timestamp_micros(text: &str) -> Option<Micros> {
    let at: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(at.as_microsecond()).ok().map(Micros::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_no_two_keys_share_one() {
        let over = |key: &[&str]| {
            FieldName::Override("api".into(), key.iter().map(ToString::to_string).collect())
        };
        for (name, text) in [
            (FieldName::Rule("a.b".into()), "rule:a.b"),
            (over(&["gold"]), "override:api:gold"),
            (over(&["a:b", "c"]), "override:api:a:b/c"),
            (over(&["a/b%2F"]), "override:api:a%2Fb%252F"),
            (over(&["", ""]), "override:api:/"),
        ] {
            assert_eq!(name.to_string(), text);
            assert_eq!(FieldName::read(text), Some(name));
        }
        assert_eq!(FieldName::read("quota:x"), None);
    }

    #[test]
    fn a_value_keeps_what_a_later_version_added() {
        let text = r#"{"stamp":"1.2.3","by":"x","at":"2026-01-01T00:00:00Z","spec":{},"new":1}"#;
        let field = RuntimeField::read(text).unwrap();
        assert_eq!(field.text, text);
        assert_eq!(RuntimeField::read(&field.clone().encoded().text).unwrap().stamp, field.stamp);
        for text in ["", "{}", r#"{"stamp":"x","by":"","at":"2026-01-01T00:00:00Z"}"#] {
            assert_eq!(RuntimeField::read(text), None);
        }
    }
}
