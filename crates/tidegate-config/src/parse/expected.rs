//! Expected types of the fields, taken from the JSON Schema so that the two cannot differ.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::schema::schema;

/// The expected type of a value.
#[derive(Clone, Debug)]
pub(crate) enum ExpectedType {
    Text,
    Bool,
    Number(NumberType),
    /// One of these strings.
    Word(Vec<String>),
    List(Box<ExpectedType>),
    /// A map with arbitrary field names.
    Map(Box<ExpectedType>),
    /// A map with these fields only.
    Fields(Vec<ExpectedField>),
    Either(Vec<ExpectedType>),
    Any,
    /// A value that is read later, on its own.
    Unread,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NumberType {
    Whole,
    Any,
}

#[derive(Clone, Debug)]
pub(crate) struct ExpectedField {
    pub(crate) name: String,
    pub(crate) expected: ExpectedType,
    pub(crate) required: bool,
}

impl ExpectedType {
    pub(crate) fn policy() -> &'static ExpectedType {
        static POLICY: OnceLock<ExpectedType> = OnceLock::new();
        POLICY.get_or_init(|| Self::of_schema(&schema()))
    }

    pub(crate) fn rule() -> &'static ExpectedType {
        match Self::policy().field("rules") {
            Some(ExpectedType::List(rule)) => rule,
            _ => Self::policy(),
        }
    }

    /// The expected type of a JSON Schema.
    pub(crate) fn of_schema(root: &Value) -> Self {
        of(root, root)
    }

    /// A map with these of its fields.
    pub(crate) fn with_fields(&self, names: &[&str]) -> Self {
        let Self::Fields(fields) = self else { return self.clone() };
        let field = |name: &&str| fields.iter().find(|field| field.name == *name).cloned();
        Self::Fields(names.iter().filter_map(field).collect())
    }

    /// The expected type of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&ExpectedType> {
        let Self::Fields(fields) = self else { return None };
        fields.iter().find(|field| field.name == name).map(|field| &field.expected)
    }

    /// Completes "must be .." in a message.
    pub(crate) fn description(&self) -> String {
        match self {
            Self::Text => "a string".into(),
            Self::Bool => "true or false".into(),
            Self::Number(NumberType::Whole) => "a whole number from 0 to 4294967295".into(),
            Self::Number(NumberType::Any) => "a number".into(),
            Self::Word(words) => listed(words),
            Self::List(item) => match **item {
                Self::Text => "a list of strings".into(),
                _ => "a list".into(),
            },
            Self::Map(_) | Self::Fields(_) => "a map of fields".into(),
            Self::Any | Self::Unread => "a value".into(),
            Self::Either(types) => listed(&types.iter().map(Self::description).collect::<Vec<_>>()),
        }
    }
}

/// `a, b or c`.
pub(crate) fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn of(root: &Value, schema: &Value) -> ExpectedType {
    if schema.as_bool().is_some() {
        return ExpectedType::Any;
    }
    if let Some(target) = schema["$ref"].as_str() {
        let target = target.trim_start_matches('#');
        return root.pointer(target).map_or(ExpectedType::Text, |schema| of(root, schema));
    }
    if let Some(words) = words(schema) {
        return ExpectedType::Word(words);
    }
    let either = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    if let Some(types) = either {
        return ExpectedType::Either(types.iter().map(|schema| of(root, schema)).collect());
    }
    match schema["type"].as_str() {
        Some("null") => ExpectedType::Unread,
        Some("boolean") => ExpectedType::Bool,
        Some("integer") => ExpectedType::Number(NumberType::Whole),
        Some("number") => ExpectedType::Number(NumberType::Any),
        Some("array") => ExpectedType::List(Box::new(of(root, &schema["items"]))),
        Some("object") => match schema["properties"].as_object() {
            Some(properties) => ExpectedType::Fields(fields(root, schema, properties)),
            None => ExpectedType::Map(Box::new(of(root, &schema["additionalProperties"]))),
        },
        _ => ExpectedType::Text,
    }
}

fn fields(root: &Value, schema: &Value, properties: &Map<String, Value>) -> Vec<ExpectedField> {
    let required = |name: &str| {
        schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
    };
    let field = |(name, schema): (&String, &Value)| ExpectedField {
        name: name.clone(),
        expected: of(root, schema),
        required: required(name),
    };
    let mut fields: Vec<ExpectedField> = properties.iter().map(field).collect();
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    fields
}

/// The values of an enumeration.
fn words(schema: &Value) -> Option<Vec<String>> {
    let text = |value: &Value| value.as_str().map(str::to_string);
    if let Some(word) = schema.get("const") {
        return Some(vec![text(word)?]);
    }
    if let Some(words) = schema["enum"].as_array() {
        return words.iter().map(text).collect();
    }
    let variants = schema["oneOf"].as_array()?;
    variants.iter().map(|variant| text(&variant["const"])).collect()
}
