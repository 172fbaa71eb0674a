//! The reference of the policy file, made from its schema.

use std::fmt::Write;

use serde_json::Value;

use super::schema::schema;

/// A policy file with something of everything.
pub const EXAMPLE: &str = include_str!("example.yaml");

/// The reference of the policy file, in Markdown.
pub fn reference() -> String {
    let root = schema();
    let mut page = format!(
        "# The policy file\n\n\
         <!-- Made from the schema by a test; run it with TIDEGATE_BLESS=1 to write it anew. -->\n\n\
         A policy file says who is limited, and how. `tidegate serve --config policy.yaml` enforces \
         it and\n`tidegate validate policy.yaml` tells what is wrong with it, with the line and the \
         column. Limits are\nwritten in one notation everywhere; see [choosing](choosing.md). Editors \
         that know JSON Schema check\nthe file as it is written: put this in its first line.\n\n\
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

/// What gets a table of its own, in this order.
const SECTIONS: [(&str, &str); 4] = [
    ("Rule", "A rule"),
    ("Match", "`match`"),
    ("Override", "An override"),
    ("Defaults", "`defaults`"),
];

const LIMITS: &str = "
## What is refused

A file is at most 1 MiB long and 32 levels deep, and holds at most 250,000 values, what aliases stand
for included. A policy has at most 10,000 rules in at most 100 files, which include one another at
most 8 deep. Anchors, aliases and `<<` work; tags do not. A field that nobody knows, a field given
twice and a field without a value are errors, not ignored.

Errors show the line they are about. Secrets, passwords and the values of variables are never in
them.
";

fn describe(page: &mut String, root: &Value, schema: &Value) {
    let _ = write!(page, "{}\n\n", text(&schema["description"]));
    page.push_str("| field | value | default | |\n|---|---|---|---|\n");
    let Some(properties) = schema["properties"].as_object() else { return };
    let is_needed = |name: &str| {
        schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
    };
    let mut properties: Vec<_> = properties.iter().collect();
    properties.sort_by_key(|(name, _)| (!is_needed(name), *name));
    for (name, property) in properties {
        let default = match property.get("default") {
            Some(default) => format!("`{default}`"),
            None if is_needed(name) => "needed".into(),
            None => String::new(),
        };
        let value = value(root, property);
        let mut meaning = text(&property["description"]).to_string();
        for (word, of_word) in words(root, property) {
            let _ = write!(meaning, " `{word}`: {of_word}");
        }
        if let Some(example) = property["examples"].as_array().and_then(|all| all.last()) {
            let _ =
                write!(meaning, " Example: `{}`.", example.to_string().replace("\",\"", "\", \""));
        }
        let _ = writeln!(page, "| `{name}` | {value} | {default} | {} |", cell(&meaning));
    }
}

/// What may stand there, in a word or two.
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
        Some("object") => "map".into(),
        _ => "string".into(),
    }
}

fn plural(value: &str) -> String {
    match value {
        "string" => "strings".into(),
        "[A rule](#a-rule)" => "[rules](#a-rule)".into(),
        "[An override](#an-override)" => "[overrides](#an-override)".into(),
        other => other.into(),
    }
}

/// The words of an enumeration, each with its meaning.
fn words<'v>(root: &'v Value, schema: &'v Value) -> Vec<(&'v str, &'v str)> {
    let schema = resolved(root, schema).unwrap_or(schema);
    let variants = schema["oneOf"].as_array().map_or(&[][..], Vec::as_slice);
    let word =
        |variant: &'v Value| Some((variant["const"].as_str()?, text(&variant["description"])));
    variants.iter().filter_map(word).collect()
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
