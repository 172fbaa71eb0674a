//! `docs/reference/policy.md`, generated from the JSON Schema.

use std::fmt::Write;

use serde_json::Value;
use tidegate_config::schema;

/// An example that uses most fields.
pub(crate) const EXAMPLE: &str = include_str!("example.yaml");

/// The reference of the policy file, `docs/reference/policy.md`.
pub(crate) fn reference() -> String {
    let root = schema();
    let mut page = format!(
        "# The policy file\n\n\
         <!-- Generated from the schema by a test; run it with TIDEGATE_BLESS=1 to update. -->\n\n\
         A policy file sets the limits and the server's settings. `tidegate serve --config \
         policy.yaml`\nenforces it; `tidegate validate policy.yaml` checks it and reports errors with \
         line and column.\nLimits use one notation everywhere; see [choosing a \
         limit](../use/choosing-a-limit.md). Editors with\nJSON Schema support check the file while you \
         type: put this in its first line.\n\n\
         ```yaml\n# yaml-language-server: $schema=policy.schema.json\n```\n\n## Example\n\n\
         ```yaml\n{EXAMPLE}```\n\n## The file\n\n"
    );
    describe(&mut page, &root, &root);
    for (name, title) in SECTIONS {
        let Some(schema) = root.pointer(&format!("/$defs/{name}")) else { continue };
        let _ = write!(page, "\n## {title}\n\n");
        describe(&mut page, &root, schema);
    }
    page + LIMITS
}

/// Definitions with their own section, in order.
const SECTIONS: [(&str, &str); 6] = [
    ("Rule", "A rule"),
    ("Match", "`match`"),
    ("Override", "An override"),
    ("Defaults", "`defaults`"),
    ("Money", "`money`"),
    ("Price", "A price"),
];

const LIMITS: &str = "
## Limits of the format

A file has at most 1 MiB, 32 levels and 250,000 values, with aliases expanded. A policy has at most
10,000 rules in 100 files, included at most 8 deep. Anchors, aliases and `<<` are supported; tags
are not. Unknown fields, duplicate fields and fields without a value are errors.

Errors show the line. Secrets, passwords and values of variables are never shown.
";

fn describe(page: &mut String, root: &Value, schema: &Value) {
    let _ = write!(page, "{}\n\n", wrapped(text(&schema["description"])));
    page.push_str("| field | value | default | |\n|---|---|---|---|\n");
    let Some(properties) = schema["properties"].as_object() else { return };
    let is_required = |name: &str| {
        schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
    };
    let mut properties: Vec<_> = properties.iter().collect();
    properties.sort_by_key(|(name, _)| (!is_required(name), *name));
    for (name, property) in properties {
        let default = match property.get("default") {
            Some(default) => format!("`{default}`"),
            None if is_required(name) => "required".into(),
            None => String::new(),
        };
        let value = value(root, property);
        let mut meaning = text(&property["description"]).to_string();
        for (word, description) in words(root, property) {
            let _ = write!(meaning, " `{word}`: {description}");
        }
        if let Some(example) = property["examples"].as_array().and_then(|all| all.last()) {
            let _ =
                write!(meaning, " Example: `{}`.", example.to_string().replace("\",\"", "\", \""));
        }
        let _ = writeln!(page, "| `{name}` | {value} | {default} | {} |", cell(&meaning));
    }
}

/// The type of a field, in a few words.
fn value(root: &Value, schema: &Value) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        let name = target.rsplit('/').next().unwrap_or(target);
        if let Some((_, title)) = SECTIONS.iter().find(|(section, _)| *section == name) {
            let anchor: String = title.chars().filter(|c| *c != '`').collect();
            return format!("[{title}](#{})", anchor.to_lowercase().replace(' ', "-"));
        }
        return resolved(root, schema).map_or(String::new(), |schema| value(root, schema));
    }
    let either = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    if let Some(schemas) = either {
        let all: Vec<String> = schemas.iter().map(|schema| value(root, schema)).collect();
        return all.join(" or ");
    }
    if let Some(word) = schema["const"].as_str() {
        return format!("`{word}`");
    }
    if let Some(words) = schema["enum"].as_array() {
        let words = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`"));
        return words.collect::<Vec<_>>().join(" or ");
    }
    match schema["type"].as_str() {
        Some("array") => format!("list of {}", plural(&value(root, &schema["items"]))),
        Some("boolean") => "`true` or `false`".into(),
        Some("integer") => "whole number".into(),
        Some("number") => "number".into(),
        Some("object") => match schema["additionalProperties"].get("$ref") {
            Some(_) => format!("map of {}", plural(&value(root, &schema["additionalProperties"]))),
            None => "map".into(),
        },
        _ => "string".into(),
    }
}

fn plural(value: &str) -> String {
    match value {
        "string" => "strings".into(),
        "[A rule](#a-rule)" => "[rules](#a-rule)".into(),
        "[A price](#a-price)" => "[prices](#a-price)".into(),
        "[An override](#an-override)" => "[overrides](#an-override)".into(),
        other => other.into(),
    }
}

/// The values of an enumeration with their descriptions.
fn words<'v>(root: &'v Value, schema: &'v Value) -> Vec<(&'v str, &'v str)> {
    let schema = resolved(root, schema).unwrap_or(schema);
    let variants = schema["oneOf"].as_array().map_or(&[][..], Vec::as_slice);
    let word =
        |variant: &'v Value| Some((variant["const"].as_str()?, text(&variant["description"])));
    variants.iter().filter_map(word).collect()
}

/// Paragraphs with lines of at most 100 characters.
fn wrapped(text: &str) -> String {
    let mut page = String::with_capacity(text.len());
    let mut column = 0;
    for word in text.split_inclusive([' ', '\n']) {
        if column > 0 && column + word.trim_end().len() > 100 {
            page.truncate(page.trim_end().len());
            page.push('\n');
            column = 0;
        }
        page.push_str(word);
        column = if word.ends_with('\n') { 0 } else { column + word.len() };
    }
    page
}

fn resolved<'v>(root: &'v Value, schema: &Value) -> Option<&'v Value> {
    root.pointer(schema["$ref"].as_str()?.trim_start_matches('#'))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn cell(text: &str) -> String {
    text.replace("\n\n", " ").replace('|', "\\|")
}
