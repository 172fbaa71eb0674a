//! The JSON Schema of a policy file.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::policy_file::PolicyFile;

/// The JSON Schema (draft 2020-12) of a policy file, for editors. `$defs/Rule` describes a rule
/// that is sent over the API.
pub fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<PolicyFile>().to_value();
    tidy_schema(&mut schema);
    remove_formats(&mut schema);
    schema
}

/// Removes empty defaults, because the list of required fields says already that a field is
/// optional, and the line breaks of doc comments.
#[doc(hidden)]
pub fn tidy_schema(value: &mut Value) {
    for_each_object(value, &|fields| {
        let is_empty = fields.get("default").is_some_and(|default| match default {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Bool(_) | Value::Number(_) => false,
        });
        if is_empty {
            fields.remove("default");
        }
        if let Some(Value::String(text)) = fields.get_mut("description") {
            let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
            *text = paragraphs.collect::<Vec<_>>().join("\n\n");
        }
    });
}

/// Removes the formats of Rust's number types.
fn remove_formats(value: &mut Value) {
    for_each_object(value, &|fields| {
        if fields.get("format").is_some_and(|format| format != "date-time") {
            fields.remove("format");
        }
    });
}

fn for_each_object(value: &mut Value, change: &impl Fn(&mut Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            change(fields);
            fields.values_mut().for_each(|value| for_each_object(value, change));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| for_each_object(item, change)),
        _ => {}
    }
}
