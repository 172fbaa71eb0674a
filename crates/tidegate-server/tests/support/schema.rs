//! As much of JSON Schema as our documents use. A keyword that is not known here is an error: it
//! might ask for something that nobody looks at.

#![allow(dead_code, reason = "every test file uses its own part")]

use serde_json::{Map, Value};

#[path = "pattern.rs"]
mod pattern;

/// A document in which schemas lie and refer to each other.
pub struct Schemas<'a>(pub &'a Value);

/// Keywords that tell something and ask for nothing.
const ANNOTATIONS: [&str; 6] =
    ["description", "title", "default", "examples", "format", "deprecated"];

impl<'a> Schemas<'a> {
    /// What a reference leads to.
    pub fn target(&self, reference: &str) -> Result<&'a Value, String> {
        let pointer =
            reference.strip_prefix('#').ok_or_else(|| format!("{reference}: elsewhere"))?;
        self.0.pointer(pointer).ok_or_else(|| format!("{reference}: nothing there"))
    }

    /// Is the value as the schema wants it? The error says where it is not.
    pub fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let fields = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Object(fields) => fields,
            _ => return Err(format!("{value}: nothing is allowed here")),
        };
        for (keyword, wanted) in fields {
            let good = match &**keyword {
                "$ref" => {
                    self.check(self.target(wanted.as_str().unwrap_or_default())?, value)?;
                    true
                }
                "type" => one_or_many(wanted).iter().any(|kind| is_of(kind, value)),
                "enum" => wanted.as_array().is_some_and(|all| all.contains(value)),
                "const" => wanted == value,
                "anyOf" => self.fitting(wanted, value)? > 0,
                "oneOf" => self.fitting(wanted, value)? == 1,
                "required" => has_all(wanted, value),
                "properties" | "additionalProperties" | "items" => {
                    self.check_parts(keyword, wanted, fields, value)?;
                    true
                }
                "minimum" | "maximum" | "exclusiveMinimum" => in_bounds(keyword, wanted, value),
                "minLength" | "maxLength" | "minItems" | "maxItems" | "maxProperties" => {
                    has_length(keyword, wanted, value)
                }
                "pattern" => match (wanted, value) {
                    (Value::String(pattern), Value::String(text)) => pattern::found(pattern, text)?,
                    _ => true,
                },
                annotation if ANNOTATIONS.contains(&annotation) => true,
                unknown => {
                    return Err(format!("{unknown}: a keyword that this test does not know"));
                }
            };
            if !good {
                return Err(format!("{value}: not as {keyword} wants it: {wanted}"));
            }
        }
        Ok(())
    }

    fn fitting(&self, schemas: &Value, value: &Value) -> Result<usize, String> {
        let mut count = 0;
        for schema in schemas.as_array().map(Vec::as_slice).unwrap_or_default() {
            match self.check(schema, value) {
                Ok(()) => count += 1,
                Err(error) if error.contains("does not know") => return Err(error),
                Err(_) => {}
            }
        }
        Ok(count)
    }

    fn check_parts(
        &self,
        keyword: &str,
        wanted: &Value,
        schema: &Map<String, Value>,
        value: &Value,
    ) -> Result<(), String> {
        let named = |name: &str| schema.get("properties").and_then(|all| all.get(name));
        match (keyword, value) {
            ("items", Value::Array(items)) => {
                for (i, item) in items.iter().enumerate() {
                    self.check(wanted, item).map_err(|error| format!("[{i}]: {error}"))?;
                }
            }
            ("properties", Value::Object(fields)) => {
                for (name, field) in fields {
                    let Some(schema) = wanted.get(name) else { continue };
                    self.check(schema, field).map_err(|error| format!("{name}: {error}"))?;
                }
            }
            ("additionalProperties", Value::Object(fields)) => {
                for (name, field) in fields.iter().filter(|(name, _)| named(name).is_none()) {
                    self.check(wanted, field).map_err(|error| format!("{name}: {error}"))?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn one_or_many(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    }
}

fn has_all(names: &Value, value: &Value) -> bool {
    let names = names.as_array().map(Vec::as_slice).unwrap_or_default();
    value.as_object().is_none_or(|fields| {
        names.iter().all(|name| name.as_str().is_some_and(|name| fields.contains_key(name)))
    })
}

fn in_bounds(keyword: &str, bound: &Value, value: &Value) -> bool {
    let (Some(bound), Some(value)) = (bound.as_f64(), value.as_f64()) else { return true };
    match keyword {
        "minimum" => value >= bound,
        "maximum" => value <= bound,
        _ => value > bound,
    }
}

fn has_length(keyword: &str, bound: &Value, value: &Value) -> bool {
    let length = match (keyword, value) {
        ("minLength" | "maxLength", Value::String(text)) => text.chars().count(),
        ("minItems" | "maxItems", Value::Array(items)) => items.len(),
        ("maxProperties", Value::Object(fields)) => fields.len(),
        _ => return true,
    };
    let bound = bound.as_u64().unwrap_or_default() as usize;
    if keyword.starts_with("min") { length >= bound } else { length <= bound }
}
