//! Rules that come with a call, as JSON.

use serde_json::Value;

use super::LoadedRule;
use super::build::build;
use super::check::Checked;
use super::problem::{Found, Problem, Problems};
use super::rule_file::RuleFile;
use super::settings::Settings;
use super::shape::Shape;
use super::source::Span;
use super::tree::{Entry, Kind, Node, Scalar, Shown};

impl RuleFile {
    /// Reads a rule from JSON; the name may be left out. Each problem names its field.
    pub fn from_json(text: &str) -> Result<Self, Problems> {
        let value: Value = serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let message = format!("not JSON, from line {line} column {column} on");
            Problems::of(Problem::of_field(String::new(), message))
        })?;
        let mut checked = Checked::default();
        let is_nameless = value.is_object() && value.get("name").is_none();
        let value = checked.value(&node(value), Shape::rule(), "");
        // The name may stand elsewhere, like in the path of a request; `load` wants one.
        checked.found.retain(|found| !(is_nameless && found.field == "name"));
        if !checked.found.is_empty() {
            let problem = |found: Found| Problem::of_field(found.field, found.message);
            return Err(Problems::of_fields(checked.found.into_iter().map(problem).collect()));
        }
        serde_json::from_value(value)
            .map_err(|error| Problems::of(Problem::of_field(String::new(), error.to_string())))
    }

    /// Makes a rule of it, unless something is wrong. What it does not say comes from the settings;
    /// it inherits no `defaults`.
    pub fn load(&self, settings: &Settings) -> Result<LoadedRule, Problems> {
        let mut built = build(self);
        match built.rule.take() {
            Some(rule) => Ok(LoadedRule::new(built, rule, settings)),
            None => {
                let faults = built.faults.into_iter();
                let problems = faults.map(|fault| Problem::of_field(fault.field, fault.message));
                Err(Problems::of_fields(problems.collect()))
            }
        }
    }
}

/// A tree without places.
fn node(value: Value) -> Node {
    let scalar = |text: String, quoted| {
        Kind::Scalar(Scalar { text, quoted, letters: None, shown: Shown::Yes })
    };
    let kind = match value {
        Value::Null => Kind::Nothing,
        Value::Bool(value) => scalar(value.to_string(), false),
        Value::Number(value) => scalar(value.to_string(), false),
        Value::String(text) => scalar(text, true),
        Value::Array(items) => Kind::List(items.into_iter().map(node).collect()),
        Value::Object(fields) => Kind::Map(
            fields
                .into_iter()
                .map(|(key, value)| Entry { key, key_span: Span::NOWHERE, value: node(value) })
                .collect(),
        ),
    };
    Node { span: Span::NOWHERE, kind }
}
