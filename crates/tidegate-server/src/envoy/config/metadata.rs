//! `metadata`: whatever it holds is passed on.

use serde_json::{Map, Number, Value};

use super::fields::Fields;
use super::load::Notes;
use crate::config::tree::{Kind, Node, Scalar};

/// The metadata of a descriptor; nothing if there is none, or if it is empty.
pub(super) fn read(fields: &Fields<'_>, notes: &mut Notes) -> Option<Map<String, Value>> {
    let entry = fields.entry("metadata")?;
    match value(&entry.value) {
        Value::Object(map) => Some(map).filter(|map| !map.is_empty()),
        _ => {
            fields.misfit("metadata", "a map", &entry.value, notes);
            None
        }
    }
}

fn value(node: &Node) -> Value {
    match &node.kind {
        Kind::Nothing | Kind::Unknown => Value::Null,
        Kind::Scalar(scalar) => plain(scalar),
        Kind::List(items) => Value::Array(items.iter().map(value).collect()),
        Kind::Map(entries) => {
            let fields = entries.iter().map(|entry| (entry.key.clone(), value(&entry.value)));
            Value::Object(fields.collect())
        }
    }
}

/// What looks like a number or a truth value and is not in quotes, is one.
fn plain(scalar: &Scalar) -> Value {
    let text = &*scalar.text;
    if scalar.quoted {
        return Value::String(text.into());
    }
    match text {
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let starts = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    let number = match text.parse::<i64>() {
        Ok(whole) => Some(Number::from(whole)),
        Err(_) if starts => text.parse().ok().and_then(Number::from_f64),
        Err(_) => None,
    };
    number.map_or_else(|| Value::String(text.into()), Value::Number)
}
