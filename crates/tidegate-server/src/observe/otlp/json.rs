//! OTLP JSON encoding: ids in hexadecimal, 64-bit numbers as text, kinds as numbers.

use serde_json::{Value, json};
use tidegate::Micros;

use super::record::{Attribute, DecisionNote, SpanRecord};

/// `SPAN_KIND_SERVER`.
const SERVER: u8 = 2;
/// `STATUS_CODE_ERROR`.
const ERROR: u8 = 2;
/// Sampled, and whether the parent is remote is known (`HAS_IS_REMOTE`).
const FLAGS: u32 = 0x101;
/// The parent is remote (`IS_REMOTE`).
const REMOTE_PARENT: u32 = 0x200;

/// The resource of all spans: this process.
pub(super) fn resource(service_name: &str) -> Value {
    json!({ "attributes": [
        text("service.name", service_name),
        text("service.version", env!("CARGO_PKG_VERSION")),
        number("process.pid", std::process::id().into()),
    ] })
}

/// A body for `POST /v1/traces`.
pub(super) fn request(resource: &Value, records: &[SpanRecord]) -> Value {
    let spans: Vec<Value> = records.iter().map(span).collect();
    let scope = json!({ "name": "tidegate", "version": env!("CARGO_PKG_VERSION") });
    let of_scope = json!({ "scope": scope, "spans": spans });
    json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": [of_scope] }] })
}

fn span(record: &SpanRecord) -> Value {
    let ids = record.ids;
    let mut attributes = vec![text("tidegate.listener", record.listener.name())];
    if let Some(DecisionNote { rule, outcome, source }) = &record.note {
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
