//! The JSON Schema of a policy file.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::file::PolicyFile;

/// The JSON Schema (draft 2020-12) of a policy file, for editors. A rule in a call is its
/// `$defs/Rule`.
pub fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<PolicyFile>().to_value();
    tidy(&mut schema);
    schema
}

/// Takes out what serves nobody: defaults that only say "nothing", formats of Rust's numbers, and
/// the line breaks of comments.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            tidy_fields(fields);
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn tidy_fields(fields: &mut Map<String, Value>) {
    let says_nothing = fields.get("default").is_some_and(|default| match default {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    });
    if says_nothing {
        fields.remove("default");
    }
    if matches!(fields.get("format"), Some(Value::String(format)) if format != "date-time") {
        fields.remove("format");
    }
    if let Some(Value::String(text)) = fields.get_mut("description") {
        let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
        *text = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
}
