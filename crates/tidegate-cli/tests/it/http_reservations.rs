//! Reservations over HTTP: held before the work, settled after it.
use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::redis::RedisServer;
use testkit::server::{ServerProcess, pause, wait_until};

const POLICY: &str = r#"
rules:
  - { name: ten, limits: ["sliding-log 10/1h"] }
  - { name: five, limits: ["sliding-log 5/1h"] }
  - { name: workers, limits: ["concurrency 2 lease 30s"] }
  - { name: both, limits: ["concurrency 2 lease 30s", "sliding-log 3/1h"] }
  - { name: long, limits: ["concurrency 2 lease 2h"] }
"#;

const UNKNOWN: &str = "00000000000000000000000000000000";

// --- the claims --------------------------------------------------------------------------------

#[test]
fn a_reservation_sets_aside_and_its_commit_charges_what_it_came_to() {
    let server = ServerProcess::with_policy(POLICY);
    for (key, cost, path, settled, left) in [
        ("a", 6, "/v1/commit", json!({ "cost": 2 }), 8),
        ("b", 6, "/v1/commit", json!({}), 4),
        ("c", 6, "/v1/commit", json!({ "cost": 9 }), 1),
        ("d", 6, "/v1/commit", json!({ "cost": 12 }), 0),
        ("e", 6, "/v1/commit", json!({ "cost": 0 }), 10),
        ("f", 6, "/v1/cancel", json!({}), 10),
    ] {
        let made = server.post("/v1/reserve", &json!({ "rule": "ten", "key": key, "cost": cost }));
        let decision = made.json();
        assert_eq!((made.status, &decision["remaining"]), (200, &json!(4)), "{key}");
        assert_eq!(decision["expires_in_ms"], 60_000, "{key}");
        assert_eq!(made.header("x-ratelimit-remaining"), Some("4"));
        assert_eq!(remaining(&server, "ten", key), 4, "set aside, {key}");
        let mut body = settled.clone();
        body["reservation"] = decision["reservation"].clone();
        let done = server.post(path, &body);
        assert_eq!(done.status, 200, "{path} {body}: {}", done.body);
        let done_body = done.json();
        assert_eq!((&done_body["settled"], &done_body["late"]), (&json!(true), &json!(false)));
        assert_eq!(done_body["overdrawn"], settled["cost"] == json!(12), "{key}");
        assert_eq!(done_body.get("allowed"), None, "it is no decision");
        let rule = &done_body["rules"][0];
        assert_eq!((&rule["policy"], &rule["reserved"]), (&json!("ten"), &json!(6)));
        assert_eq!(rule["remaining"], left, "{path} {settled}");
        assert_eq!(done.header("retry-after"), None, "{key}");
        assert_eq!(remaining(&server, "ten", key), left, "{path} {settled}");
    }
}

#[test]
fn without_room_there_is_no_reservation() {
    let server = ServerProcess::with_policy(POLICY);
    reserve(&server, &json!({ "rule": "ten", "key": "k", "cost": 7 }));
    let denied = server.post("/v1/reserve", &json!({ "rule": "ten", "key": "k", "cost": 4 }));
    let decision = denied.json();
    assert_eq!((denied.status, &decision["allowed"]), (429, &json!(false)));
    assert_eq!((decision.get("reservation"), decision.get("expires_in_ms")), (None, None));
    let wait = decision["retry_after_ms"].as_u64().unwrap();
    assert!(wait <= 60_000, "what is held comes back at its deadline: {wait}");
    assert!(denied.header("retry-after").is_some());
    let never = server.post("/v1/reserve", &json!({ "rule": "ten", "key": "k", "cost": 11 }));
    assert_eq!((never.status, &never.json()["never"]), (429, &json!(true)));
    let both = json!([{ "rule": "five", "key": "k", "cost": 1 }, { "rule": "ten", "key": "k", "cost": 4 }]);
    assert_eq!(server.post("/v1/reserve", &json!({ "checks": both })).status, 429);
    assert_eq!(remaining(&server, "five", "k"), 5, "all or nothing");
}

#[test]
fn several_limits_are_settled_as_one() {
    let server = ServerProcess::with_policy(POLICY);
    let checks = json!([{ "rule": "five", "key": "k", "cost": 2 }, { "rule": "ten", "key": "k", "cost": 4 }]);
    let id = reserve(&server, &json!({ "checks": checks }));
    assert_eq!((remaining(&server, "five", "k"), remaining(&server, "ten", "k")), (3, 6));
    let done = server.post("/v1/commit", &json!({ "reservation": id })).json();
    let rules: Vec<_> =
        done["rules"].as_array().unwrap().iter().map(|rule| &rule["rule"]).collect();
    assert_eq!(rules, ["five", "ten"]);
    assert_eq!((remaining(&server, "five", "k"), remaining(&server, "ten", "k")), (3, 6));
}

const GATEWAY: &str = r#"
rules:
  - { name: requests, unit: requests, key: [client_ip], limits: ["60/m"] }
  - { name: tokens, unit: tokens, key: [client_ip], limits: ["fixed-window 10000/1h"] }
  - { name: plain, limits: ["fixed-window 10/1h"] }
"#;

#[test]
fn each_rule_is_settled_at_its_own_cost_and_requests_are_charged_at_once() {
    settle_each_rule(&ServerProcess::with_policy(GATEWAY));
}

#[test]
fn each_rule_is_settled_at_its_own_cost_on_redis() {
    let redis = RedisServer::start();
    settle_each_rule(&ServerProcess::with_policy_on(&redis.url(), GATEWAY));
}

fn settle_each_rule(server: &ServerProcess) {
    let reserve = |key: &str| {
        let checks = json!([
            { "rule": "requests", "key": key }, { "rule": "tokens", "key": key, "cost": 1_500 }
        ]);
        reserve(server, &json!({ "checks": checks }))
    };
    let id = reserve("ann");
    assert_eq!(remaining(server, "requests", "ann"), 59, "not held, but charged");
    let refused =
        server.post("/v1/commit", &json!({ "reservation": id, "costs": { "requests": 2 } }));
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("costs")), "{refused:?}");
    let done = server.post("/v1/commit", &json!({ "reservation": id, "costs": { "tokens": 312 } }));
    let body = done.json();
    assert_eq!((done.status, &body["reservation"], &body["overdrawn"]), (200, &id, &json!(false)));
    let numbers = |rule: &Value| {
        ["reserved", "charged", "uncharged"].map(|field| rule[field].as_u64().unwrap())
    };
    assert_eq!(numbers(&body["rules"][0]), [1, 1, 0]);
    assert_eq!(numbers(&body["rules"][1]), [1_500, 312, 0]);
    assert_eq!(remaining(server, "requests", "ann"), 59, "312 is not charged to both");
    assert_eq!(remaining(server, "tokens", "ann"), 9_688);
    let same =
        json!({ "reservation": id, "costs": [{ "rule": "tokens", "key": "ann", "cost": 312 }] });
    let again = server.post("/v1/commit", &same);
    assert_eq!((again.status, again.json()), (200, body), "the same in another form");

    // Beyond twice the limit nothing is charged, and that is reported.
    let id = reserve("bob");
    let costs = json!({ "reservation": id, "costs": { "tokens": 5_000_000_000_u64 } });
    let body = server.post("/v1/commit", &costs).json();
    assert_eq!((&body["overdrawn"], &body["late"]), (&json!(true), &json!(false)));
    assert_eq!(numbers(&body["rules"][1]), [1_500, 20_000, 5_000_000_000 - 20_000]);
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("tidegate_uncharged_total{rule=\"tokens\"} 4999980000"), "{metrics}");
}

#[test]
fn costs_that_are_not_clear_are_refused_with_the_reason_and_settle_nothing() {
    let server = ServerProcess::with_policy(GATEWAY);
    let checks = json!([
        { "rule": "plain", "key": "k", "cost": 3 }, { "rule": "tokens", "key": "a", "cost": 40 },
        { "rule": "tokens", "key": "b", "cost": 50 }
    ]);
    let id = reserve(&server, &json!({ "checks": checks }));
    for (costs, part) in [
        (json!({ "cost": 2 }), "holds 2 rules with different costs; name them in"),
        (json!({ "costs": { "tokens": 2 } }), "several keys"),
        (json!({ "costs": { "unknown": 2 } }), "holds no permits of rule"),
        (json!({ "costs": {} }), "0 costs; use 1 to 16"),
        (json!({ "costs": 5 }), "an object of costs by rule, or an array"),
        (json!({ "costs": { "plain": -1 } }), ""),
        (json!({ "costs": [{ "rule": "plain" }] }), "cost"),
        (json!({ "cost": 2, "costs": { "plain": 2 } }), "exclude each other"),
    ] {
        let mut body = costs.clone();
        body["reservation"] = id.clone();
        let refused = server.post("/v1/commit", &body);
        assert_eq!(refused.status, 400, "{costs}: {}", refused.body);
        assert!(refused.body.contains(part), "{costs}: {}", refused.body);
    }
    let held = server.post("/v1/reserve", &json!({ "rule": "requests", "key": "k" }));
    assert_eq!((held.status, &held.json()["field"]), (400, &json!("rule")), "nothing to hold");
    let by_key = json!([
        { "rule": "tokens", "key": "b", "cost": 7 }, { "rule": "plain", "cost": 0 }
    ]);
    let done = server.post("/v1/commit", &json!({ "reservation": id, "costs": by_key }));
    assert_eq!(done.status, 200, "{}", done.body);
    let left = |rule, key| remaining(&server, rule, key);
    assert_eq!((left("tokens", "a"), left("tokens", "b"), left("plain", "k")), (9_960, 9_993, 10));
}

#[test]
fn tokens_are_charged_at_the_deadline_and_a_request_can_ask_for_that() {
    let server = ServerProcess::with_policy(GATEWAY);
    for (rule, body, left) in [
        ("tokens", json!({}), 9_960),
        ("plain", json!({}), 10),
        ("plain", json!({ "on_expiry": "charge" }), 4),
    ] {
        let cost = if rule == "tokens" { 40 } else { 6 };
        let mut body = body;
        let key = format!("{rule} {body}");
        let own = json!({ "rule": rule, "key": key, "cost": cost, "ttl_ms": 1 });
        body.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let id = reserve(&server, &body);
        pause(Duration::from_millis(20));
        assert_eq!(remaining(&server, rule, &key), left, "{body}");
        let late = server.post("/v1/commit", &json!({ "reservation": id, "cost": 1 })).json();
        assert_eq!(late["late"], true);
        let charged = if left == 10 { 1 } else { cost };
        assert_eq!(late["rules"][0]["charged"], charged, "never lowered, {body}");
    }
    let release = json!({ "rule": "tokens", "key": "k", "on_expiry": "release" });
    assert_eq!(server.post("/v1/reserve", &release).status, 400, "only the stricter one");
}

#[test]
fn a_repeated_settlement_gets_the_same_response_and_another_gets_409() {
    let server = ServerProcess::with_policy(POLICY);
    for (path, body, others) in [
        ("/v1/commit", json!({ "cost": 2 }), ["/v1/cancel", "/v1/renew", "/v1/commit"]),
        ("/v1/cancel", json!({}), ["/v1/commit", "/v1/renew", "/v1/commit"]),
    ] {
        let id = reserve(&server, &json!({ "rule": "ten", "key": path, "cost": 6 }));
        let mut body = body;
        body["reservation"] = id.clone();
        let first = server.post(path, &body);
        let left = remaining(&server, "ten", path);
        server.post("/v1/check", &json!({ "rule": "ten", "key": path }));
        for _ in 0..3 {
            let again = server.post(path, &body);
            assert_eq!((again.status, again.json()), (200, first.json()), "{path}");
        }
        assert_eq!(remaining(&server, "ten", path), left - 1, "charged once");
        for other in others {
            let refused = server.post(other, &json!({ "reservation": id }));
            let problem = refused.json();
            assert_eq!(
                (refused.status, &problem["field"]),
                (409, &json!("reservation")),
                "{other}"
            );
        }
    }
}

#[test]
fn an_expired_reservation_is_reported_as_expired() {
    let server = ServerProcess::with_policy(POLICY);
    let reserve =
        |key: &str| reserve(&server, &json!({ "rule": "ten", "key": key, "cost": 6, "ttl_ms": 1 }));
    let ids = ["/v1/commit", "/v1/cancel", "/v1/renew"].map(|path| (path, reserve(path)));
    for (path, id) in &ids {
        let back = wait_until(|| (remaining(&server, "ten", path) == 10).then_some(()));
        assert!(back.is_some(), "given back at the deadline, {path}");
        let late = server.post(path, &json!({ "reservation": id }));
        let field = if *path == "/v1/renew" { "expired" } else { "late" };
        assert_eq!((late.status, &late.json()[field]), (200, &json!(true)), "{path}");
        assert_eq!(late.json().get("expires_in_ms"), None);
        let again = server.post(path, &json!({ "reservation": id }));
        assert_eq!((again.status, &again.json()[field]), (200, &json!(true)), "{path}");
    }
    assert_eq!(remaining(&server, "ten", "/v1/commit"), 4, "the work was done all the same");
    assert_eq!(remaining(&server, "ten", "/v1/cancel"), 10);
    assert_eq!(remaining(&server, "ten", "/v1/renew"), 10, "it does not come back to life");
}

#[test]
fn a_renewed_reservation_lasts_longer() {
    let server = ServerProcess::with_policy(POLICY);
    let id = reserve(&server, &json!({ "rule": "ten", "key": "k", "cost": 6, "ttl_ms": 3_000 }));
    let renewed = server.post("/v1/renew", &json!({ "reservation": id, "ttl_ms": 3_600_000 }));
    let decision = renewed.json();
    assert_eq!((renewed.status, &decision["expired"]), (200, &json!(false)));
    assert_eq!(
        (&decision["expires_in_ms"], &decision["remaining"]),
        (&json!(3_600_000), &json!(4))
    );
    pause(Duration::from_millis(3_100));
    assert_eq!(remaining(&server, "ten", "k"), 4, "longer than it was to last");
    let renewed = server.post("/v1/renew", &json!({ "reservation": id })).json();
    assert_eq!(renewed["expires_in_ms"], 60_000, "a minute by default");
}

#[test]
fn a_reservation_with_a_minimum_is_granted_what_fits() {
    let server = ServerProcess::with_policy(GATEWAY);
    let body = |key: &str, want: u64, min: u64| {
        let flexible = |rule| json!({ "rule": rule, "key": key, "cost": want, "min": min });
        let checks =
            json!([{ "rule": "requests", "key": key }, flexible("tokens"), flexible("plain")]);
        json!({ "checks": checks, "id": format!("{key}-{want}-{min}") })
    };
    let reserve = |body: &Value| server.post("/v1/reserve", body);
    let all = reserve(&body("a", 8, 2));
    assert_eq!((all.status, &all.json()["granted"]), (200, &json!(8)), "{all:?}");
    // A repeated call returns what the first was granted, even if more fits now.
    server.post("/v1/record", &json!({ "rule": "plain", "key": "b", "cost": 4 }));
    let first = reserve(&body("b", 20, 2)).json();
    assert_eq!((&first["granted"], &first["rules"][1]["remaining"]), (&json!(6), &json!(9_994)));
    assert_eq!(remaining(&server, "plain", "b"), 0, "one quantity that fits every rule");
    server.post("/v1/refund", &json!({ "rule": "plain", "key": "b", "cost": 4 }));
    let again = reserve(&body("b", 20, 2)).json();
    assert_eq!((&again["granted"], &again["reservation"]), (&json!(6), &first["reservation"]));
    assert_eq!(remaining(&server, "requests", "b"), 59, "charged once");
    let done = server.post("/v1/commit", &json!({ "reservation": first["reservation"] })).json();
    assert_eq!(done["rules"][2]["charged"], 6);
    let denied = reserve(&body("b", 8, 5));
    let reply = denied.json();
    assert_eq!((denied.status, &reply["rule"], reply.get("granted")), (429, &json!("plain"), None));
    assert_eq!(remaining(&server, "requests", "b"), 59, "a denial charges nothing");
    let never = reserve(&body("c", 20, 11)).json();
    assert_eq!(never["never"], json!(true), "only if the minimum exceeds the limit: {never}");
    let check = |rule: &str, cost: u64, min: u64| json!({ "rule": rule, "key": "d", "cost": cost, "min": min });
    for (checks, field) in [
        (json!([check("tokens", 5, 6)]), "min"),
        (json!([check("tokens", 5, 0)]), "min"),
        (json!([check("tokens", 5, 2), check("plain", 5, 3)]), "min"),
        (json!([check("tokens", 5, 2), check("plain", 6, 2)]), "min"),
        (json!([check("tokens", 4_294_967_297, 2)]), "cost"),
        (json!([check("requests", 5, 2), check("tokens", 5, 2)]), "costs"),
        (json!([check("tokens", 5, 2), check("tokens", 5, 2)]), "costs"),
    ] {
        let refused = reserve(&json!({ "checks": checks }));
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{checks}");
    }
    let unused = server.post("/v1/check", &json!({ "checks": [check("tokens", 5, 2)] }));
    assert_eq!((unused.status, &unused.json()["field"]), (400, &json!("min")));
    assert_eq!(remaining(&server, "tokens", "d"), 10_000);
}

#[test]
fn an_extension_reserves_totals_and_a_repeated_one_does_nothing() {
    let server = ServerProcess::with_policy(GATEWAY);
    let checks = json!([
        { "rule": "requests", "key": "ann" }, { "rule": "tokens", "key": "ann", "cost": 1_500 }
    ]);
    let id = reserve(&server, &json!({ "checks": checks }));
    let extend = |costs: Value| {
        server.post("/v1/extend", &json!({ "reservation": id, "costs": costs, "ttl_ms": 90_000 }))
    };
    for _ in 0..2 {
        let extended = extend(json!({ "tokens": 2_000 }));
        let body = extended.json();
        assert_eq!((extended.status, &body["allowed"]), (200, &json!(true)), "{body}");
        assert_eq!(body["expires_in_ms"], 90_000);
        let reserved = body["rules"].as_array().unwrap().iter().map(|rule| &rule["reserved"]);
        assert_eq!(reserved.collect::<Vec<_>>(), [1, 2_000]);
        assert_eq!(body["rules"][1]["remaining"], 8_000);
        assert_eq!(remaining(&server, "tokens", "ann"), 8_000);
    }
    let by_key = extend(json!([{ "rule": "tokens", "key": "ann", "cost": 2_500 }]));
    assert_eq!(by_key.json()["rules"][1]["reserved"], 2_500, "{by_key:?}");
    let done = server.post("/v1/commit", &json!({ "reservation": id })).json();
    assert_eq!(done["rules"][1]["charged"], 2_500, "as reserved");
    let settled = extend(json!({ "tokens": 3_000 }));
    assert_eq!((settled.status, &settled.json()["field"]), (409, &json!("reservation")));
}

#[test]
fn an_extension_that_does_not_fit_changes_nothing_or_is_granted_in_part() {
    let server = ServerProcess::with_policy(POLICY);
    let checks = json!([{ "rule": "five", "key": "k", "cost": 2 }, { "rule": "ten", "key": "k", "cost": 2 }]);
    let id = reserve(&server, &json!({ "checks": checks }));
    let costs = json!({ "five": 6, "ten": 6 });
    let body = json!({ "reservation": id, "costs": costs, "ttl_ms": 1 });
    let denied = server.post("/v1/extend", &body);
    let reply = denied.json();
    assert_eq!((denied.status, &reply["allowed"]), (429, &json!(false)), "{reply}");
    assert_eq!((&reply["rule"], reply.get("expires_in_ms")), (&json!("five"), None));
    assert!(reply["retry_after_ms"].as_u64().unwrap() <= 60_000, "{reply}");
    assert!(denied.header("retry-after").is_some());
    pause(Duration::from_millis(20));
    assert_eq!((remaining(&server, "five", "k"), remaining(&server, "ten", "k")), (3, 8));
    let body = json!({ "reservation": id, "costs": costs, "min": 3 });
    let part = server.post("/v1/extend", &body);
    assert_eq!(part.status, 200, "{part:?}");
    let part = part.json();
    let reserved = [0, 1].map(|i| part["rules"][i]["reserved"].as_u64().unwrap());
    assert_eq!(reserved, [5, 5], "one quantity");
    assert_eq!((remaining(&server, "five", "k"), remaining(&server, "ten", "k")), (0, 5));
}

#[test]
fn an_extension_after_the_deadline_is_a_409_and_a_bad_one_a_400() {
    let server = ServerProcess::with_policy(GATEWAY);
    for rule in ["tokens", "plain"] {
        let body = json!({ "rule": rule, "key": "k", "cost": 5, "ttl_ms": 1 });
        let id = reserve(&server, &body);
        pause(Duration::from_millis(20));
        let late = server.post("/v1/extend", &json!({ "reservation": id, "costs": { (rule): 6 } }));
        assert_eq!(late.status, 409, "{late:?}");
        assert_eq!(late.json()["detail"], "the reservation has expired; reserve anew");
    }
    let checks = json!([
        { "rule": "requests", "key": "ann" }, { "rule": "tokens", "key": "ann", "cost": 50 },
        { "rule": "plain", "key": "ann", "cost": 5 }
    ]);
    let id = reserve(&server, &json!({ "checks": checks }));
    for (body, field) in [
        (json!({}), "costs"),
        (json!({ "costs": {} }), "costs"),
        (json!({ "costs": { "requests": 2 } }), "costs"),
        (json!({ "costs": { "unknown": 2 } }), "costs"),
        (json!({ "costs": { "tokens": 4_294_967_297_u64 } }), "cost"),
        (json!({ "costs": { "tokens": 60 }, "min": 61 }), "min"),
        (json!({ "costs": { "tokens": 60 }, "min": 0 }), "min"),
        (json!({ "costs": { "tokens": 60, "plain": 6 }, "min": 6 }), "min"),
        (json!({ "costs": { "tokens": 60 }, "ttl_ms": 0 }), "ttl_ms"),
        (json!({ "costs": { "tokens": 60 }, "ttl_ms": 3_600_001 }), "ttl_ms"),
        (json!({ "cost": 60 }), "cost"),
    ] {
        let mut body = body;
        body["reservation"] = id.clone();
        let refused = server.post("/v1/extend", &body);
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{body}");
    }
    let costs = json!({ "tokens": 60 });
    let unknown = server.post("/v1/extend", &json!({ "reservation": UNKNOWN, "costs": costs }));
    assert_eq!(unknown.status, 404);
    assert_eq!(remaining(&server, "tokens", "ann"), 9_950, "nothing changed");
}

#[test]
fn an_id_makes_one_reservation_however_often_it_is_sent() {
    let server = ServerProcess::with_policy(POLICY);
    let body = json!({ "rule": "ten", "key": "k", "cost": 4, "id": "job-1" });
    let first = server.post("/v1/reserve", &body).json();
    let again = server.post("/v1/reserve", &body).json();
    assert_eq!(again["reservation"], first["reservation"]);
    assert_eq!(again["repeated"], true);
    assert_eq!(remaining(&server, "ten", "k"), 6);
    let mut other = body.clone();
    other["ttl_ms"] = json!(1_000);
    assert_eq!(server.post("/v1/reserve", &other).status, 409, "for another time");
}

#[test]
fn ids_are_opaque_and_long_enough_not_to_be_guessed() {
    let server = ServerProcess::with_policy(POLICY);
    let mut seen = HashSet::new();
    for i in 0..50 {
        let id = reserve(&server, &json!({ "rule": "ten", "key": i.to_string() }));
        let id = id.as_str().unwrap().to_string();
        assert!(id.len() >= 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "128 bits: {id}");
        assert!(seen.insert(id));
    }
    for unknown in [UNKNOWN, "", "x", "ffffffffffffffffffffffffffffffffff", "a\u{0}b", "🌊"] {
        let alone = json!({ "reservation": unknown });
        let with_costs = json!({ "reservation": unknown, "costs": { "ten": 1 } });
        let commit = "/v1/commit";
        let calls = [commit, "/v1/cancel", "/v1/renew"].map(|path| (path, &alone));
        for (path, body) in calls.into_iter().chain([(commit, &with_costs)]) {
            let refused = server.post(path, body);
            let problem = refused.json();
            assert_eq!(
                (refused.status, &problem["field"]),
                (404, &json!("reservation")),
                "{unknown}"
            );
        }
    }
}

#[test]
fn concurrency_counts_holders() {
    let server = ServerProcess::with_policy(POLICY);
    for cost in [json!({}), json!({ "cost": 1 }), json!({ "wait_ms": 10 })] {
        let mut body = json!({ "rule": "workers", "key": "k" });
        body.as_object_mut().unwrap().extend(cost.as_object().unwrap().clone());
        for path in ["/v1/check", "/v1/record", "/v1/refund"] {
            if path != "/v1/check" && body.get("wait_ms").is_some() {
                continue;
            }
            let refused = server.post(path, &body);
            assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("rule")), "{path}");
        }
    }
    let body = json!({ "rule": "workers", "key": "k" });
    let first = server.post("/v1/reserve", &body).json();
    assert_eq!((&first["limit"], &first["remaining"]), (&json!(2), &json!(1)));
    assert_eq!(first["expires_in_ms"], 30_000, "its lease");
    let second = reserve(&server, &body);
    let full = server.post("/v1/reserve", &body);
    assert_eq!(full.status, 429);
    let wait = full.json()["retry_after_ms"].as_u64().unwrap();
    assert!(wait <= 30_000, "a crashed holder is gone after a lease: {wait}");
    // Cancel and commit release the slot.
    server.post("/v1/cancel", &json!({ "reservation": first["reservation"] }));
    let third = reserve(&server, &body);
    assert_eq!(server.post("/v1/reserve", &body).status, 429);
    for id in [second, third] {
        let done = server.post("/v1/commit", &json!({ "reservation": id }));
        assert_eq!(done.status, 200, "{}", done.body);
    }
    assert_eq!(remaining(&server, "workers", "k"), 2, "all have left");
}

#[test]
fn concurrency_and_a_rate_in_one_rule_are_held_together() {
    let server = ServerProcess::with_policy(POLICY);
    let body = json!({ "rule": "both", "key": "k" });
    for _ in 0..3 {
        let id = reserve(&server, &body);
        assert_eq!(server.post("/v1/commit", &json!({ "reservation": id })).status, 200);
    }
    let denied = server.post("/v1/reserve", &body);
    let decision = denied.json();
    assert_eq!((denied.status, &decision["rules"][0]["allowed"]), (429, &json!(true)));
    assert_eq!(decision["rules"][1]["allowed"], false, "three were charged");
}

#[test]
fn a_time_to_live_has_bounds() {
    let server = ServerProcess::with_policy(POLICY);
    for (rule, ttl, status) in [
        ("ten", 1, 200),
        ("ten", 3_600_000, 200),
        ("ten", 3_600_001, 400),
        ("ten", 0, 400),
        ("ten", u64::MAX, 400),
        ("long", 3_600_001, 200),
        ("long", 7_200_001, 400),
    ] {
        let body = json!({ "rule": rule, "key": "k", "ttl_ms": ttl });
        let response = server.post("/v1/reserve", &body);
        assert_eq!(response.status, status, "{body}: {}", response.body);
        if status == 400 {
            assert_eq!(response.json()["field"], "ttl_ms", "{body}");
        }
    }
    let nothing = server.post("/v1/reserve", &json!({ "rule": "ten", "cost": 0 }));
    assert_eq!((nothing.status, &nothing.json()["field"]), (400, &json!("cost")));
    for (path, field) in [
        ("/v1/commit", "ttl_ms"),
        ("/v1/cancel", "ttl_ms"),
        ("/v1/cancel", "cost"),
        ("/v1/renew", "cost"),
    ] {
        let refused = server.post(path, &json!({ "reservation": UNKNOWN, field: 1 }));
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{path}");
    }
    let refused = server.post("/v1/reserve", &json!({ "rule": "ten", "wait_ms": 1 }));
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("wait_ms")));
}

// --- helpers -----------------------------------------------------------------------------------

fn reserve(server: &ServerProcess, body: &Value) -> Value {
    let response = server.post("/v1/reserve", body);
    assert_eq!(response.status, 200, "{body}: {}", response.body);
    response.json()["reservation"].clone()
}

fn remaining(server: &ServerProcess, rule: &str, key: &str) -> u64 {
    let found = server.post("/v1/check", &json!({ "rule": rule, "key": key, "cost": 0 }));
    found.json()["remaining"].as_u64().unwrap()
}

#[test]
fn an_exempt_key_is_allowed_without_a_reservation() {
    let policy = "rules: [{ name: r, key: ['header:x-user'], limits: [2/h], allow: [ann] }]";
    let server = ServerProcess::with_policy(policy);
    let exempt = server.post("/v1/reserve", &json!({ "rule": "r", "key": "ann", "cost": 9 }));
    assert_eq!((exempt.status, &exempt.json()["allowed"]), (200, &json!(true)));
    assert!(exempt.json().get("reservation").is_none());
    let denied = server.post("/v1/reserve", &json!({ "rule": "r", "key": "bob", "cost": 2 }));
    assert_eq!(denied.status, 200);
    let denied = server.post("/v1/reserve", &json!({ "rule": "r", "key": "bob", "cost": 1 }));
    assert_eq!(denied.status, 429);
}
