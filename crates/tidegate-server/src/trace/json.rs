//! Spans as OTLP has them in JSON: ids in hexadecimal, 64-bit numbers as text, kinds as numbers.

use serde_json::{Value, json};
use tidegate::Micros;

use super::span::{Attribute, Note, Record};

/// The kind of a span that a server makes about a call.
const SERVER: u8 = 2;
/// The status of a call that failed.
const ERROR: u8 = 2;
/// Sampled, and it is known whether the parent is somebody else's.
const FLAGS: u32 = 0x101;
/// It is.
const REMOTE_PARENT: u32 = 0x200;

/// Who sends the spans.
pub(super) fn resource(service_name: &str) -> Value {
    json!({ "attributes": [
        text("service.name", service_name),
        text("service.version", env!("CARGO_PKG_VERSION")),
        number("process.pid", std::process::id().into()),
    ] })
}

/// A body for `POST /v1/traces`.
pub(super) fn request(resource: &Value, records: &[Record]) -> Value {
    let spans: Vec<Value> = records.iter().map(span).collect();
    let scope = json!({ "name": "tidegate", "version": env!("CARGO_PKG_VERSION") });
    let of_scope = json!({ "scope": scope, "spans": spans });
    json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": [of_scope] }] })
}

fn span(record: &Record) -> Value {
    let ids = record.ids;
    let mut attributes = vec![text("tidegate.door", record.door.name())];
    if let Some(Note { rule, outcome, source }) = &record.note {
        attributes.extend(rule.as_deref().map(|rule| text("tidegate.rule", rule)));
        attributes.push(text("tidegate.outcome", outcome));
        attributes.push(text("tidegate.source", source));
    }
    attributes.extend(record.attributes.iter().map(|(name, value)| match value {
        Attribute::Text(value) => text(name, value),
        Attribute::Number(value) => number(name, *value),
    }));
    let mut span = json!({
        "traceId": format!("{:032x}", ids.trace),
        "spanId": format!("{:016x}", ids.span),
        "flags": FLAGS,
        "name": record.name,
        "kind": SERVER,
        "startTimeUnixNano": nanos(record.start),
        "endTimeUnixNano": nanos(record.end),
        "attributes": attributes,
    });
    if let Some(parent) = ids.parent {
        span["parentSpanId"] = format!("{parent:016x}").into();
        span["flags"] = (FLAGS | REMOTE_PARENT).into();
    }
    if record.failed {
        span["status"] = json!({ "code": ERROR });
    }
    span
}

fn nanos(at: Micros) -> String {
    format!("{}000", at.get())
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: i64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}
