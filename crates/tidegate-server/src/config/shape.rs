//! The shape that a policy file must have, taken from its schema, so that the two cannot differ.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::schema::schema;

/// What may stand somewhere.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    Text,
    Bool,
    Number(Grain),
    /// One of these words.
    Word(Vec<String>),
    List(Box<Shape>),
    /// Fields of any name.
    Map(Box<Shape>),
    /// These fields.
    Fields(Vec<Field>),
    Either(Vec<Shape>),
}

/// Which numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grain {
    Whole,
    Any,
}

#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) needed: bool,
}

impl Shape {
    /// A whole policy file.
    pub(super) fn policy() -> &'static Shape {
        static POLICY: OnceLock<Shape> = OnceLock::new();
        POLICY.get_or_init(|| {
            let root = schema();
            of(&root, &root)
        })
    }

    /// One rule.
    pub(super) fn rule() -> &'static Shape {
        match Self::policy().field("rules") {
            Some(Shape::List(rule)) => rule,
            _ => Self::policy(),
        }
    }

    /// The shape of a field.
    pub(super) fn field(&self, name: &str) -> Option<&Shape> {
        let Self::Fields(fields) = self else { return None };
        fields.iter().find(|field| field.name == name).map(|field| &field.shape)
    }

    /// In words, to complete "must be ..".
    pub(super) fn words(&self) -> String {
        match self {
            Self::Text => "a string".into(),
            Self::Bool => "true or false".into(),
            Self::Number(Grain::Whole) => "a whole number".into(),
            Self::Number(Grain::Any) => "a number".into(),
            Self::Word(words) => listed(words),
            Self::List(item) => match **item {
                Self::Text => "a list of strings".into(),
                _ => "a list".into(),
            },
            Self::Map(_) | Self::Fields(_) => "a map of fields".into(),
            Self::Either(shapes) => listed(&shapes.iter().map(Self::words).collect::<Vec<_>>()),
        }
    }
}

/// `a, b or c`.
pub(super) fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn of(root: &Value, schema: &Value) -> Shape {
    if let Some(target) = schema["$ref"].as_str() {
        let target = target.trim_start_matches('#');
        return root.pointer(target).map_or(Shape::Text, |schema| of(root, schema));
    }
    if let Some(words) = words(schema) {
        return Shape::Word(words);
    }
    let either = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    if let Some(shapes) = either {
        return Shape::Either(shapes.iter().map(|schema| of(root, schema)).collect());
    }
    match schema["type"].as_str() {
        Some("boolean") => Shape::Bool,
        Some("integer") => Shape::Number(Grain::Whole),
        Some("number") => Shape::Number(Grain::Any),
        Some("array") => Shape::List(Box::new(of(root, &schema["items"]))),
        Some("object") => match schema["properties"].as_object() {
            Some(properties) => Shape::Fields(fields(root, schema, properties)),
            None => Shape::Map(Box::new(of(root, &schema["additionalProperties"]))),
        },
        _ => Shape::Text,
    }
}

fn fields(root: &Value, schema: &Value, properties: &Map<String, Value>) -> Vec<Field> {
    let needed = |name: &str| {
        schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
    };
    let field = |(name, schema): (&String, &Value)| Field {
        name: name.clone(),
        shape: of(root, schema),
        needed: needed(name),
    };
    let mut fields: Vec<Field> = properties.iter().map(field).collect();
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    fields
}

/// The words of an enumeration.
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
