//! Where the fields of a rule stand, for what is told about them.

use std::ops::Range;

use super::limits::Fault;
use super::problem::Found;
use super::source::{Sources, Span};
use super::tree::{Kind, Name, Node, Shown};

/// A fault of a field somewhere below `node`, which goes by `around`, in its place.
pub(crate) fn found(fault: Fault, node: &Node, around: &str, sources: &Sources) -> Found {
    let (span, shown) = of(node, &fault.field, fault.part.clone());
    let span = match fault.what {
        "header" => header_name(node, &fault.field).unwrap_or(span),
        _ => span,
    };
    let what = fault.what;
    let mut message = match shown {
        Shown::Yes => fault.message,
        // These never say what they are about.
        Shown::Secret if ["store", "secret"].contains(&what) => fault.message,
        Shown::Filled if what == "secret" => fault.message,
        Shown::Secret => format!("not a good {what}; it seems to hold a secret and is not shown"),
        Shown::Filled => format!(
            "with its variables filled in, this is not a good {what}; the value is not shown"
        ),
    };
    if let Some(first) = &fault.first {
        let first = sources.place(of(node, first, None).0);
        message += &first.map_or(String::new(), |first| format!(" (the first is at {first})"));
    }
    if what == "key" && !around.is_empty() && !span.is_within(&node.span) {
        // It is inherited, and perhaps wrong only together with this rule.
        message += &rule_name(node).map_or(String::new(), |name| format!(" (in rule {name})"));
    }
    let field = match (around, &*fault.field) {
        ("", field) => field.to_string(),
        (around, "") => around.to_string(),
        (around, field) => format!("{around}.{field}"),
    };
    Found { span, field, message }
}

/// Where a field stands, or a part of its text. A rule without the field goes by its name.
pub(crate) fn of(node: &Node, field: &str, part: Option<Range<usize>>) -> (Span, Shown) {
    let found = node.at(field);
    if std::ptr::eq(found, node) {
        let name = node.get("name").map(|name| name.span);
        let first = match &node.kind {
            Kind::Map(entries) => entries.first().map(|entry| entry.key_span),
            _ => None,
        };
        return (name.or(first).unwrap_or(node.span), Shown::Yes);
    }
    let Kind::Scalar(scalar) = &found.kind else { return (found.span, Shown::Yes) };
    let inside = part.zip(scalar.letters).filter(|_| scalar.shown == Shown::Yes);
    let span = inside.map_or(found.span, |(part, start)| Span {
        start: start + part.start,
        end: start + part.end,
        ..found.span
    });
    (span, scalar.shown)
}

/// The name of a header, rather than its value.
fn header_name(node: &Node, field: &str) -> Option<Span> {
    let name = field.strip_prefix("match.header.")?;
    node.get("match")?.get("header")?.entry(name).map(|entry| entry.key_span)
}

fn rule_name(node: &Node) -> Option<String> {
    match &node.get("name")?.kind {
        Kind::Scalar(name) if name.shown == Shown::Yes => Some(Name(&name.text).to_string()),
        _ => None,
    }
}
