//! A validator for the part of JSON Schema that the project's documents use. An unknown keyword is
//! an error: otherwise it would go unchecked.

use serde_json::{Map, Value};

use crate::regex;

/// A document with schemas that refer to each other.
pub struct JsonSchemas<'a>(pub &'a Value);

/// Keywords without a constraint.
const ANNOTATIONS: [&str; 6] =
    ["description", "title", "default", "examples", "format", "deprecated"];
/// How errors end that are the validator's own, and no violation.
const UNKNOWN: [&str; 2] = ["unknown keyword", "unknown pattern"];

impl<'a> JsonSchemas<'a> {
    /// The target of a `$ref`.
    pub fn target(&self, reference: &str) -> Result<&'a Value, String> {
        let pointer = reference
            .strip_prefix('#')
            .ok_or_else(|| format!("{reference}: not in this document"))?;
        self.0.pointer(pointer).ok_or_else(|| format!("{reference}: no such target"))
    }

    /// Validates a value. The error says where it violates the schema.
    pub fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let fields = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Object(fields) => fields,
            _ => return Err(format!("{value}: no value is allowed here")),
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
                "anyOf" => self.count_valid(wanted, value)? > 0,
                "oneOf" => self.count_valid(wanted, value)? == 1,
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
                    (Value::String(pattern), Value::String(text)) => {
                        regex::is_match(pattern, text)?
                    }
                    _ => true,
                },
                annotation if ANNOTATIONS.contains(&annotation) => true,
                unknown => {
                    return Err(format!("{unknown}: unknown keyword"));
                }
            };
            if !good {
                return Err(format!("{value}: violates {keyword}: {wanted}"));
            }
        }
        Ok(())
    }

    fn count_valid(&self, schemas: &Value, value: &Value) -> Result<usize, String> {
        let mut count = 0;
        for schema in schemas.as_array().map(Vec::as_slice).unwrap_or_default() {
            match self.check(schema, value) {
                Ok(()) => count += 1,
                Err(error) if UNKNOWN.iter().any(|end| error.ends_with(end)) => return Err(error),
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
