//! Reservations of calls to language models over HTTP: costs by usage, unit and price.

use serde_json::{Value, json};
use testkit::redis::RedisServer;
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
             \"spend\";q=50000;qu=\"money\";w=86400"
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

/// Rule, charged and uncharged.
fn charged(reply: &Value) -> Vec<(String, u64, u64)> {
    let rules = reply["rules"].as_array().unwrap();
    let of = |rule: &Value| {
        let number = |field: &str| rule[field].as_u64().unwrap();
        (rule["rule"].as_str().unwrap().into(), number("charged"), number("uncharged"))
    };
    rules.iter().map(of).collect()
}

/// Reserves a call at 1,500 tokens of `small`, and commits it.
fn settle(server: &ServerProcess, key: &str, fields: Value) -> ServerResponse {
    let used = json!({ "model": "small", "usage": { "input": 1000, "output": 500 } });
    let made = reserve(server, key, used);
    assert_eq!(made.status, 200, "{}", made.body);
    let mut body = json!({ "reservation": made.json()["reservation"] });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    server.post("/v1/commit", &body)
}

#[test]
fn a_commit_charges_each_rule_by_its_unit() {
    settle_by_usage(&ServerProcess::with_policy(POLICY));
}

#[test]
fn a_commit_charges_each_rule_by_its_unit_on_redis() {
    let redis = RedisServer::start();
    settle_by_usage(&ServerProcess::with_policy_on(&redis.url(), POLICY));
}

fn settle_by_usage(server: &ServerProcess) {
    let openai = json!({ "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100,
        "prompt_tokens_details": { "cached_tokens": 400 } });
    let anthropic = json!({ "input_tokens": 600, "cache_read_input_tokens": 400,
        "cache_creation_input_tokens": 0, "output_tokens": 100 });
    let gemini = json!({ "promptTokenCount": 1000, "cachedContentTokenCount": 400,
        "candidatesTokenCount": 60, "thoughtsTokenCount": 40, "totalTokenCount": 1100 });
    for (key, usage) in [("openai", openai), ("anthropic", anthropic), ("gemini", gemini)] {
        let done = settle(server, key, json!({ "model": "small", "usage": usage }));
        assert_eq!(done.status, 200, "{}", done.body);
        let reply = done.json();
        let expected = [("requests", 1, 0), ("tokens", 1100, 0), ("spend", 600 + 200 + 400, 0)];
        let expected = expected.map(|(rule, cost, cut)| (rule.to_string(), cost, cut));
        assert_eq!(charged(&reply), expected, "{key}");
        assert_eq!(remaining(&reply), [59, 8900, 48_800], "{key}");
        assert_eq!((reply.get("priced_as"), reply.get("usage")), (None, None), "{key}");
    }
    let metrics = server.get("/metrics").body;
    let line = "tidegate_settled_ratio_bucket{rule=\"tokens\",model=\"small\",le=\"0.75\"} 3";
    assert!(metrics.contains(line), "{metrics}");
    assert!(!metrics.contains("tidegate_settled_ratio_count{rule=\"requests\""));
}

#[test]
fn a_commit_is_never_free_and_never_refused_for_its_usage() {
    let server = ServerProcess::with_policy(POLICY);
    let used = json!({ "input": 1000, "output": 100 });
    let done = settle(&server, "a", json!({ "model": "small-2026-05", "usage": used })).json();
    assert_eq!(remaining(&done), [59, 8900, 48_600], "priced as the reservation's model");
    assert_eq!(done["priced_as"], "small");
    let done = settle(&server, "b", json!({ "usage": used })).json();
    assert_eq!((remaining(&done), &done["priced_as"]), (vec![59, 8900, 48_600], &json!("small")));
    for usage in
        [json!({ "input": -5, "output": 1 }), json!({}), json!("none"), json!({ "input": 1 })]
    {
        let key = usage.to_string();
        let done = settle(&server, &key, json!({ "model": "small", "usage": usage }));
        assert_eq!((done.status, &done.json()["usage"]), (200, &json!("invalid")), "{key}");
        assert_eq!(remaining(&done.json()), [59, 8500, 47_000], "charged as reserved: {key}");
    }
    let far = json!({ "input": 5_000_000_000_u64, "output": 0 });
    let done = settle(&server, "c", json!({ "model": "small", "usage": far })).json();
    assert_eq!(done["overdrawn"], true);
    let (_, charged, uncharged) = &charged(&done)[1];
    assert_eq!((*charged, *uncharged), (20_000, 5_000_000_000 - 20_000), "cut at twice the limit");
    let both = settle(&server, "d", json!({ "cost": 5, "usage": used }));
    assert_eq!((both.status, &both.json()["field"]), (400, &json!("usage")));
}

#[test]
fn a_commit_by_usage_needs_only_some_of_the_rules() {
    let server = ServerProcess::with_policy(POLICY);
    let body = json!({ "checks": [{ "rule": "tokens", "key": "a", "cost": 900 },
        { "rule": "tokens", "key": "b", "cost": 900 }] });
    let made = server.post("/v1/reserve", &body).json();
    let used = json!({ "input": 100, "output": 11 });
    let body = json!({ "reservation": made["reservation"], "usage": used });
    let done = server.post("/v1/commit", &body);
    assert_eq!(done.status, 200, "{}", done.body);
    assert_eq!(remaining(&done.json()), [9889, 9889]);
    let again = server.post("/v1/commit", &body);
    assert_eq!((again.status, remaining(&again.json())), (200, vec![9889, 9889]));
}
