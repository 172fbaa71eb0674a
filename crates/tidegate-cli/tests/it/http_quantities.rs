//! Reservations over HTTP that are granted as much as fits.

use serde_json::{Value, json};
use testkit::redis::RedisServer;
use testkit::server::ServerProcess;

const POLICY: &str = r#"
money: { currency: USD, decimals: 6 }
prices:
  gpt-x: { input: 2500000, output: 10000000, reasoning: 12000000 }
  "*": { input: 90000000, output: 90000000 }
rules:
  - { name: requests, unit: requests, limits: ["60/m"] }
  - { name: tokens, unit: tokens, limits: ["fixed-window 10000/1h"] }
  - { name: spend, unit: money, limits: ["fixed-window 30000/1d"] }
  - { name: listed, unit: tokens, limits: ["fixed-window 100/1h"], allow: [friend] }
"#;

fn checks(key: &str) -> Value {
    let one = |rule: &str| json!({ "rule": rule, "key": key });
    json!([one("requests"), one("tokens"), one("spend")])
}

fn output_tokens(key: &str, want: u64, min: Option<u64>) -> Value {
    json!({
        "model": "gpt-x", "usage": { "input": 2_000, "output": 0 }, "checks": checks(key),
        "max_output_tokens": want, "min_output_tokens": min, "id": key,
    })
}

fn remaining(server: &ServerProcess, rule: &str, key: &str) -> Value {
    let peek = json!({ "rule": rule, "key": key, "cost": 0 });
    server.post("/v1/check", &peek).json()["remaining"].clone()
}

#[test]
fn one_number_bounds_the_tokens_and_their_price() {
    bounds_tokens_and_price(&ServerProcess::with_policy(POLICY));
}

#[test]
fn one_number_bounds_the_tokens_and_their_price_on_redis() {
    let redis = RedisServer::start();
    bounds_tokens_and_price(&ServerProcess::with_policy_on(&redis.url(), POLICY));
}

fn bounds_tokens_and_price(server: &ServerProcess) {
    let whole = server.post("/v1/reserve", &output_tokens("whole", 2_083, None));
    assert_eq!((whole.status, &whole.json()["granted"]), (200, &json!(2_083)), "{whole:?}");
    let too_much = server.post("/v1/reserve", &output_tokens("dear", 2_084, None));
    assert_eq!((too_much.status, &too_much.json()["rule"]), (429, &json!("spend")), "{too_much:?}");
    // 2,000 tokens of input are 5,000 units, and 12 are due for each token of output or reasoning.
    let body = output_tokens("ann", 4_000, Some(100));
    let made = server.post("/v1/reserve", &body).json();
    assert_eq!(made["granted"], 2_083, "{made}");
    for (rule, left) in [("requests", 59), ("tokens", 10_000 - 4_083), ("spend", 4)] {
        assert_eq!(remaining(server, rule, "ann"), left, "{rule}");
    }
    let again = server.post("/v1/reserve", &body).json();
    assert_eq!((&again["granted"], &again["repeated"]), (&json!(2_083), &json!(true)));
    assert_eq!(again["reservation"], made["reservation"]);
    let usage = json!({ "input": 2_000, "output": 500 });
    // The provider names a version of the model.
    let commit = json!({
        "reservation": made["reservation"], "model": "gpt-x-2026-01-31", "usage": usage
    });
    let done = server.post("/v1/commit", &commit).json();
    let charged: Vec<_> = done["rules"].as_array().unwrap().iter().map(|r| &r["charged"]).collect();
    assert_eq!(charged, [&json!(1), &json!(2_500), &json!(10_000)], "{done}");
    assert_eq!(done["priced_as"], "gpt-x");
    let denied = server.post("/v1/reserve", &output_tokens("ann", 4_000, Some(1_251)));
    assert_eq!(denied.status, 409, "the id was used for another request");
}

#[test]
fn a_quantity_that_is_not_clear_is_refused() {
    let server = ServerProcess::with_policy(POLICY);
    let with = |field: &str, value: Value| {
        let mut body = output_tokens("ann", 4_000, Some(100));
        body[field] = value;
        body
    };
    let flexible = json!([{ "rule": "tokens", "key": "ann", "cost": 5, "min": 2 }]);
    for (body, field) in [
        (with("max_output_tokens", Value::Null), "max_output_tokens"),
        (with("max_output_tokens", json!(99)), "max_output_tokens"),
        (with("max_output_tokens", json!(4_294_967_297_u64)), "max_output_tokens"),
        (with("usage", Value::Null), "usage"),
        (with("model", Value::Null), "model"),
        (with("checks", flexible), "min"),
    ] {
        let refused = server.post("/v1/reserve", &body);
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{body}");
    }
    let check = json!({ "rule": "tokens", "key": "ann", "max_output_tokens": 5 });
    let refused = server.post("/v1/check", &check);
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("max_output_tokens")));
    assert_eq!(remaining(&server, "tokens", "ann"), 10_000);
}

#[test]
fn a_key_that_is_exempt_from_a_rule_is_granted_what_the_others_allow() {
    let server = ServerProcess::with_policy(POLICY);
    let flexible =
        |rule: &str, key: &str| json!({ "rule": rule, "key": key, "cost": 500, "min": 9 });
    let reserve = |checks: Value| server.post("/v1/reserve", &json!({ "checks": checks }));
    let both = |key| reserve(json!([flexible("tokens", key), flexible("listed", key)]));
    assert_eq!(both("other").json()["granted"], 100);
    assert_eq!(both("other").status, 429);
    for _ in 0..20 {
        let friend = both("friend");
        assert_eq!((friend.status, &friend.json()["granted"]), (200, &json!(500)), "{friend:?}");
    }
    assert_eq!(both("friend").status, 429, "10,000 tokens are held");
    let exempt = reserve(json!([flexible("listed", "friend")])).json();
    assert_eq!((&exempt["granted"], &exempt["reservation"]), (&json!(500), &Value::Null));
}

#[test]
fn extensions_are_counted_as_checks() {
    let server = ServerProcess::with_policy(POLICY);
    let made = server.post("/v1/reserve", &json!({ "rule": "tokens", "key": "a", "cost": 10 }));
    let id = made.json()["reservation"].clone();
    for (total, status) in [(20, 200), (20_000, 429), (9_999_999, 429)] {
        let body = json!({ "reservation": id, "costs": { "tokens": total } });
        assert_eq!(server.post("/v1/extend", &body).status, status);
    }
    let metrics = server.get("/metrics").body;
    let count = |outcome: &str| {
        let start = format!("tidegate_checks_total{{rule=\"tokens\",outcome=\"{outcome}\"");
        let line = metrics.lines().find(|line| line.starts_with(&start));
        line.and_then(|line| line.rsplit(' ').next()).map(str::to_string)
    };
    assert_eq!(count("allow").as_deref(), Some("2"), "a reservation and an extension");
    assert_eq!(count("never").as_deref(), Some("2"), "{metrics}");
}
