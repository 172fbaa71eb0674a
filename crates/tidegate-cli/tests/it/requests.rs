//! Requests are counted once by their listener, and denials by limit.

use serde_json::json;
use testkit::resp::RespConnection;
use testkit::server::{ServerProcess, wait_until};

const POLICY: &str = r#"
rules:
  - { name: one, limits: ["3/h"] }
  - { name: two, limits: ["100/h", "fixed-window 4/h"] }
"#;

fn metric(server: &ServerProcess, line: &str) -> Option<u64> {
    let metrics = server.get("/metrics").body;
    let found = metrics.lines().find_map(|found| found.strip_prefix(line));
    found.map(|value| value.trim().parse().unwrap())
}

#[test]
fn a_request_counts_once_however_many_rules_apply() {
    let server = ServerProcess::with_policy(POLICY);
    let total = |listener: &str, outcome: &str| {
        let labels = format!("{{listener=\"{listener}\",outcome=\"{outcome}\"}}");
        metric(&server, &format!("tidegate_requests_total{labels}")).unwrap()
    };
    let both = json!({ "checks": [{ "rule": "one", "key": "k" }, { "rule": "two", "key": "k" }] });
    for _ in 0..5 {
        server.post("/v1/check", &both);
    }
    assert_eq!((total("http", "allow"), total("http", "deny")), (3, 2));
    // A peek asks for nothing, and an invalid request gets no decision.
    server.post("/v1/check", &json!({ "rule": "one", "key": "k", "cost": 0 }));
    server.post("/v1/check", &json!({ "rule": "none", "key": "k" }));
    server.post("/v1/check-many", &both);
    assert_eq!((total("http", "allow"), total("http", "deny")), (4, 3));
    server.post("/v1/reserve", &json!({ "rule": "one", "key": "other" }));
    assert_eq!((total("http", "allow"), total("http", "error")), (5, 0));
    let mut resp = RespConnection::connect(server.resp);
    for _ in 0..4 {
        resp.send("TG.CHECK one r");
    }
    assert_eq!((total("resp", "allow"), total("resp", "deny")), (3, 1));
    assert_eq!((total("grpc", "allow"), total("grpc", "deny")), (0, 0));
    let shown = wait_until(|| {
        let live = server.get("/v1/live").json();
        let requests = &live["requests"]["totals"];
        (requests["allowed"] == 8 && requests["denied"] == 4).then_some(())
    });
    assert!(shown.is_some(), "{}", server.get("/v1/live").body);
}

#[test]
fn denials_are_counted_by_limit() {
    let server = ServerProcess::with_policy(POLICY);
    let denials = |rule: &str, limit: &str| {
        let labels = format!("{{rule=\"{rule}\",limit=\"{limit}\"}}");
        metric(&server, &format!("tidegate_limit_denials_total{labels}"))
    };
    for _ in 0..5 {
        server.post("/v1/check", &json!({ "rule": "one", "key": "k" }));
    }
    for _ in 0..7 {
        server.post("/v1/check", &json!({ "rule": "two", "key": "k" }));
    }
    assert_eq!((denials("one", "one"), denials("two", "two.2")), (Some(2), Some(3)));
    assert_eq!(denials("two", "two.1"), None);
    let page = server.get("/rule?name=two").body;
    assert!(page.contains("data-label=\"Denied\">3"), "{page}");
}
