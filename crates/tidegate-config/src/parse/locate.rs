//! Positions of fields, for error messages.

use std::ops::Range;

use super::tree::{NodeKind, QuotedText, Visibility, YamlNode};
use crate::errors::field_error::FieldError;
use crate::errors::problem::Finding;
use crate::errors::sources::{SourceFiles, SourceSpan};

/// Adds the position to the error of a field below `node`. `around` is the path of `node`.
pub(crate) fn found(
    fault: FieldError,
    node: &YamlNode,
    around: &str,
    sources: &SourceFiles,
) -> Finding {
    let (span, shown) = of(node, &fault.field, fault.part.clone());
    let span = match fault.what {
        "header" => entry_name(node, "match.header.", &fault.field),
        "plan name" => entry_name(node, "plans.", &fault.field),
        "model" => entry_name(node, "prices.", &fault.field),
        _ => None,
    }
    .unwrap_or(span);
    let what = fault.what;
    let mut message = match shown {
        Visibility::Yes => fault.message,
        // These messages never contain the value.
        Visibility::Secret if ["store", "secret"].contains(&what) => fault.message,
        Visibility::Filled if what == "secret" => fault.message,
        Visibility::Secret => {
            format!("invalid {what}; the value looks like a secret and is not shown")
        }
        Visibility::Filled => {
            format!("invalid {what} after substitution; the value is not shown")
        }
    };
    if let Some(first) = &fault.first {
        let first = sources.place(of(node, first, None).0);
        message += &first.map_or(String::new(), |first| format!(" (first at {first})"));
    }
    if what == "key" && !around.is_empty() && !span.is_within(&node.span) {
        // The value is inherited, and may be wrong only for this rule.
        message += &rule_name(node).map_or(String::new(), |name| format!(" (in rule {name})"));
    }
    let field = match (around, &*fault.field) {
        ("", field) => field.to_string(),
        (around, "") => around.to_string(),
        (around, field) => format!("{around}.{field}"),
    };
    Finding { span, field, message }
}

/// The position of a field, or of a part of its text. If the field is missing, that of the rule's
/// name.
pub(crate) fn of(
    node: &YamlNode,
    field: &str,
    part: Option<Range<usize>>,
) -> (SourceSpan, Visibility) {
    let found = node.at(field);
    if std::ptr::eq(found, node) {
        let name = node.get("name").map(|name| name.span);
        let first = match &node.kind {
            NodeKind::Map(entries) => entries.first().map(|entry| entry.key_span),
            _ => None,
        };
        return (name.or(first).unwrap_or(node.span), Visibility::Yes);
    }
    let NodeKind::Scalar(scalar) = &found.kind else { return (found.span, Visibility::Yes) };
    let inside = part.zip(scalar.letters).filter(|_| scalar.shown == Visibility::Yes);
    let span = inside.map_or(found.span, |(part, start)| SourceSpan {
        start: start + part.start,
        end: start + part.end,
        ..found.span
    });
    (span, scalar.shown)
}

/// The position of a name in the map at the path `map`, rather than of its value.
fn entry_name(node: &YamlNode, map: &str, field: &str) -> Option<SourceSpan> {
    let name = field.strip_prefix(map)?;
    node.at(map).entry(name).map(|entry| entry.key_span)
}

fn rule_name(node: &YamlNode) -> Option<String> {
    match &node.get("name")?.kind {
        NodeKind::Scalar(name) if name.shown == Visibility::Yes => {
            Some(QuotedText(&name.text).to_string())
        }
        _ => None,
    }
}
