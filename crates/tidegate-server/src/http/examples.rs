//! What the document shows: parameters of addresses, and examples of what is sent and answered.

use serde_json::{Value, json};

use crate::explain::Imagined;

/// A reservation.
pub(super) const RESERVATION: &str = "00000000000000000000000000000000";

/// A value with one more field.
pub(super) fn and(mut value: Value, field: &str, more: impl Into<Value>) -> Value {
    value[field] = more.into();
    value
}

pub(super) fn decision() -> Value {
    let one = json!({
        "allowed": true,
        "limit": 5,
        "remaining": 4,
        "retry_after_ms": 0,
        "reset_after_ms": 60_000,
        "delay_ms": 0,
        "rule": "login",
    });
    let all = and(one.clone(), "source", "memory");
    and(all, "rules", json!([and(one, "policy", "login.1")]))
}

pub(super) fn denial() -> Value {
    let one = json!({
        "allowed": false,
        "limit": 5,
        "remaining": 0,
        "retry_after_ms": 12_000,
        "reset_after_ms": 60_000,
        "delay_ms": 0,
        "rule": "login",
    });
    let all = and(one.clone(), "source", "memory");
    and(all, "rules", json!([and(one, "policy", "login.1")]))
}

pub(super) fn rule() -> Value {
    json!({
        "name": "login",
        "match": { "method": "POST", "path": "/login" },
        "key": ["client_ip"],
        "limits": ["sliding-log 5/min", "fixed-window 100/1d"],
    })
}

/// A rule as it is listed.
pub(super) fn listed(origin: &str) -> Value {
    and(rule(), "origin", origin)
}

pub(super) fn how_it_is() -> Value {
    json!({
        "status": "ok",
        "version": env!("CARGO_PKG_VERSION"),
        "store": {
            "up": true,
            "tracked_keys": 3,
            "memory_bytes": 4_096,
            "warning": null,
            "circuit": null,
            "resets": 0,
            "last_reset": null,
        },
        "policy": { "rules": 3, "loaded_at": 1_763_000_000, "error": null },
    })
}

pub(super) fn parameter(place: &str, name: &str, says: &str, schema: Value) -> Value {
    let required = place == "path";
    json!({ "in": place, "name": name, "description": says, "required": required, "schema": schema })
}

pub(super) fn rule_name() -> Value {
    parameter("path", "name", "The name of the rule.", json!({ "type": "string" }))
}

pub(super) fn key_in_path() -> [Value; 2] {
    let text = json!({ "type": "string" });
    [
        parameter("path", "rule", "The name of the rule.", text.clone()),
        parameter("path", "key", "Whom it concerns.", text),
    ]
}

pub(super) fn key_in_query() -> [Value; 3] {
    let text = json!({ "type": "string" });
    let parts = json!({ "type": "array", "items": text, "maxItems": 16 });
    [
        parameter("query", "rule", "The name of a rule.", text.clone()),
        parameter("query", "limit", "A limit of one's own, in the place of a rule.", text),
        parameter("query", "key", "Whom it concerns, once for each part.", parts),
    ]
}

/// A request in the place of a rule and a key.
pub(super) fn request_in_query() -> [Value; 5] {
    let text = json!({ "type": "string" });
    let headers = json!({ "type": "array", "items": text, "maxItems": Imagined::MAX_HEADERS });
    [
        parameter("query", "path", "What a request asks for, with its query.", text.clone()),
        parameter("query", "method", "Its method; GET if it is left out.", text.clone()),
        parameter("query", "host", "The host that it asks.", text.clone()),
        parameter("query", "client_ip", "Where it comes from.", text),
        parameter("query", "header", "A header of it, like `x-api-key: k1`.", headers),
    ]
}

/// What becomes of one burst under a limit that takes half of it.
pub(super) fn simulated() -> Value {
    json!({
        "traffic": "burst 10 every 1s for 2s",
        "seed": 1,
        "offered": 20,
        "keys": 1,
        "busiest_key": 1,
        "span_us": 2_000_000,
        "step_us": 1_000_000,
        "offered_series": [10, 10],
        "limits": [{
            "limit": "5/s",
            "admitted": 10,
            "denied": 10,
            "longest_wait_ms": 200,
            "never": false,
            "longest_delay_ms": 0,
            "fairness": null,
            "passed_series": [5, 5],
            "passed_later": 0,
            "denied_series": [5, 5],
            "parts": [{
                "limit": "5/s",
                "denied": 10,
                "window_us": 1_000_000,
                "promised": 10,
                "worst": 5,
                "worst_begins_us": 0,
                "worst_key": 1,
                "window_series": [5, 5],
                "used_series": [5, 5],
            }],
        }],
    })
}

/// Two seconds of one rule, with a denial.
pub(super) fn seen_lately() -> Value {
    let none = json!([]);
    let series = json!({
        "allowed": [3, 2],
        "denied": [0, 1],
        "errors": none,
        "would_deny": none,
        "fallback": none,
    });
    let traffic = json!({
        "totals": { "allowed": 5, "denied": 1, "errors": 0, "would_deny": 0, "fallback": 0 },
        "rates": { "allowed": 2.5, "denied": 0.5, "errors": 0.0, "would_deny": 0.0, "fallback": 0.0 },
        "series": series,
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "at_ms": 1_763_000_002_000_u64,
        "uptime_s": 2,
        "seconds": 2,
        "total": traffic.clone(),
        "rules": [and(and(traffic, "name", "login"), "lent", 0)],
        "other": { "allowed": none, "denied": none, "errors": none, "would_deny": none, "fallback": none },
        "latency": {
            "p50_us": 3,
            "p99_us": 5,
            "p50_us_series": [3, 3],
            "p99_us_series": [5, 5],
        },
        "hottest": [{ "rule": "login", "key": "1.2.3.4", "allowed": 5, "denied": 1 }],
        "denials": [{
            "at_ms": 1_763_000_001_500_u64,
            "kind": "deny",
            "because": "limit",
            "rule": "login",
            "policy": "login.1",
            "limit": "sliding-log 5/min",
            "key": "1.2.3.4",
            "retry_after_ms": 58_000,
        }],
        "denials_left_out": 0,
        "store": how_it_is()["store"],
        "policy": how_it_is()["policy"],
        "connections": { "http": 1, "resp": 0, "grpc": 0 },
    })
}
