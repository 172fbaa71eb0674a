//! Reservations of calls to language models over HTTP: costs by usage, unit and price.

use serde_json::{Value, json};
use testkit::server::{ServerProcess, ServerResponse};

const POLICY: &str = r#"
headers: openai
money: { currency: USD, decimals: 6 }
prices:
  small: { input: 1000000, cached_input: 500000, output: 4000000 }
  local: { input: 0, output: 0 }
rules:
  - { name: requests, key: ["header:x-user"], unit: requests, limits: ["fixed-window 60/h"] }
  - { name: tokens, key: ["header:x-user"], unit: tokens, estimate: 800, limits: ["fixed-window 10000/h"] }
  - { name: spend, key: ["header:x-org"], unit: money, limits: ["fixed-window 50000/d tz Europe/Berlin"] }
"#;

/// Reserves one call under all three rules.
fn reserve(server: &ServerProcess, key: &str, fields: Value) -> ServerResponse {
    let mut body = json!({ "checks": [
        { "rule": "requests", "key": key },
        { "rule": "tokens", "key": key },
        { "rule": "spend", "key": key },
    ]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    server.post("/v1/reserve", &body)
}

/// What remains under each rule.
fn remaining(decision: &Value) -> Vec<u64> {
    let rules = decision["rules"].as_array().unwrap();
    rules.iter().map(|rule| rule["remaining"].as_u64().unwrap()).collect()
}

#[test]
fn a_reservation_costs_what_its_usage_does_under_each_rule() {
    let server = ServerProcess::with_policy(POLICY);
    for (key, fields, left) in [
        (
            "a",
            json!({ "model": "small", "usage": { "input": 1000, "output": 500 } }),
            [59, 8500, 47_000],
        ),
        (
            "b",
            json!({ "model": "small", "usage": { "prompt_tokens": 1000, "completion_tokens": 500,
                "prompt_tokens_details": { "cached_tokens": 600 } } }),
            [59, 8500, 47_300],
        ),
        (
            "c",
            json!({ "model": "local", "usage": { "input": 5, "output": 5 } }),
            [59, 9990, 49_999],
        ),
        ("d", json!({ "model": "small" }), [59, 9200, 49_999]),
        ("e", json!({}), [59, 9200, 49_999]),
    ] {
        let made = reserve(&server, key, fields);
        assert_eq!(made.status, 200, "{}", made.body);
        assert_eq!(remaining(&made.json()), left, "{key}");
    }
    let named = json!({ "model": "small", "usage": { "input": 9, "output": 9 },
        "rule": "tokens", "key": "f", "cost": 3 });
    let made = server.post("/v1/reserve", &named);
    assert_eq!(remaining(&made.json()), [9997], "a cost wins over the usage");
}

#[test]
fn bad_usage_and_unknown_models_are_refused_at_reserve() {
    let server = ServerProcess::with_policy(POLICY);
    let used = json!({ "input": 10, "output": 10 });
    for (fields, field, detail) in [
        (json!({ "model": "large", "usage": used }), "model", "no price for model \"large\""),
        (json!({ "usage": used }), "model", "rule \"spend\" counts money"),
        (json!({ "model": "small", "usage": { "input": 10 } }), "usage", "output is missing"),
        (
            json!({ "model": "small", "usage": { "input": -1, "output": 1 } }),
            "usage",
            "invalid value",
        ),
        (
            json!({ "model": "small", "usage": { "input": 1.5, "output": 1 } }),
            "usage",
            "invalid type",
        ),
        (
            json!({ "model": "small", "usage": { "input": 4_294_967_297_u64, "output": 1 } }),
            "cost",
            "too large",
        ),
    ] {
        let refused = reserve(&server, "k", fields.clone());
        let problem = refused.json();
        assert_eq!(
            (refused.status, &problem["field"]),
            (400, &json!(field)),
            "{fields}: {problem}"
        );
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{problem}");
    }
    for path in ["/v1/check", "/v1/record", "/v1/refund"] {
        let refused = server.post(path, &json!({ "rule": "tokens", "key": "k", "usage": used }));
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("usage")), "{path}");
    }
    let untouched = server.post("/v1/check", &json!({ "rule": "tokens", "key": "k", "cost": 0 }));
    assert_eq!(untouched.json()["remaining"], 10_000);
}

#[test]
fn headers_name_the_units_and_have_the_names_of_openai() {
    let server = ServerProcess::with_policy(POLICY);
    let made =
        reserve(&server, "k", json!({ "model": "small", "usage": { "input": 100, "output": 0 } }));
    assert_eq!(
        made.header("ratelimit-policy"),
        Some(
            "\"requests\";q=60;w=3600, \"tokens\";q=10000;qu=\"tokens\";w=3600, \
             \"spend\";q=50000;qu=\"money\""
        )
    );
    for (name, value) in [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-limit-tokens", "10000"),
        ("x-ratelimit-remaining-tokens", "9900"),
    ] {
        assert_eq!(made.header(name), Some(value), "{name}");
    }
    let reset = made.header("x-ratelimit-reset-tokens").unwrap();
    assert!(reset.ends_with('s') && reset.starts_with(|c: char| c.is_ascii_digit()), "{reset}");
}
