//! Check, record and refund over HTTP.
use std::time::Duration;

use serde_json::{Value, json};
use testkit::server::ServerProcess;
use testkit::timing::compare_with_goal;
use tidegate::{Clock, SystemClock};
use tidegate_model::TraceRng;

const POLICY: &str = r#"
rules:
  - { name: five, limits: ["sliding-log 5/1h"] }
  - { name: ten, limits: ["sliding-log 10/1h"] }
  - { name: hour, limits: ["5/h"] }
  - { name: odd, limits: ["3/1500ms", "fixed-window 9/month"] }
  - { name: two, limits: ["sliding-log 5/1h", "sliding-log 3/2h"], shadow_limits: ["1/h"] }
  - { name: onlooker, limits: ["1/h"], shadow: true }
  - { name: slow, limits: ["1/2s"] }
  - { name: nothing, limits: ["0/s"] }
  - { name: address, key: [client_ip], limits: ["sliding-log 5/1h"] }
  - { name: listed, limits: ["sliding-log 5/1h"], allow: [friend], deny: [foe] }
"#;

// --- the decision ------------------------------------------------------------------------------

#[test]
fn a_decision_equals_the_documented_one_exactly() {
    let server = ServerProcess::with_policy(POLICY);
    let allowed = server.post("/v1/check", &json!({ "rule": "five", "key": "1.2.3.4", "cost": 1 }));
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.header("content-type"), Some("application/json"));
    assert_eq!(
        allowed.body,
        r#"{"allowed":true,"limit":5,"remaining":4,"retry_after_ms":0,"reset_after_ms":3600000,"#
            .to_owned()
            + r#""delay_ms":0,"rule":"five","source":"memory","rules":[{"rule":"five","#
            + r#""policy":"five","allowed":true,"limit":5,"remaining":4,"retry_after_ms":0,"#
            + r#""reset_after_ms":3600000,"delay_ms":0}]}"#
    );
    let denied = server.post("/v1/check", &json!({ "rule": "five", "key": "1.2.3.4", "cost": 5 }));
    assert_eq!(denied.status, 429);
    let (allowed, denied) = (allowed.json(), denied.json());
    assert_eq!(fields(&denied), fields(&allowed), "the same body");
    assert_eq!(denied["allowed"], false);
    assert_eq!(denied["remaining"], 4, "nothing was charged");
    let wait = denied["retry_after_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&wait), "{wait}");
    assert_eq!(denied["rules"][0]["retry_after_ms"], wait);
}

/// Without the fields that depend on the time.
fn without_times(mut body: Value) -> Value {
    let times = ["retry_after_ms", "reset_after_ms"];
    let remove = |body: &mut Value| {
        let is_zero = |time: &Value| time.as_u64() == Some(0);
        let fields = body.as_object_mut().unwrap();
        fields.retain(|name, value| !times.contains(&&**name) || is_zero(value));
    };
    remove(&mut body);
    body.get_mut("rules")
        .into_iter()
        .flat_map(|rules| rules.as_array_mut().unwrap())
        .for_each(remove);
    body
}

#[test]
fn independent_checks_decide_in_order_and_each_as_if_alone() {
    let [alone, together] = [(), ()].map(|()| ServerProcess::with_policy(POLICY));
    let mut rng = TraceRng::new(11);
    let (mut allowed, mut denied, mut invalid) = (0, 0, 0);
    for count in [1, 2, 15, 16, 17, 40, 100, 256] {
        let checks: Vec<Value> = (0..count)
            .map(|_| {
                let key = rng.pick(&["a", "b", "c", "friend", "foe"]);
                let cost = rng.pick(&[1, 1, 1, 0, 2, 100]);
                match rng.below(12) {
                    0 => json!({ "rule": "missing", "key": key }),
                    1 => json!({ "limit": "5/x", "key": key }),
                    2 => json!({ "limit": "5/h", "rule": "five", "key": key }),
                    3 => json!({ "limit": "fixed-window 7/d", "key": key, "cost": cost }),
                    4 => json!({ "rule": "address", "key": null }),
                    5 => json!({ "rule": "five", "key": "x".repeat(1_025) }),
                    _ => {
                        let rule = rng.pick(&["five", "hour", "two", "nothing", "listed"]);
                        json!({ "rule": rule, "key": [key, "part"], "cost": cost })
                    }
                }
            })
            .collect();
        let response = together.post("/v1/check-many", &json!({ "checks": checks }));
        assert_eq!(response.status, 200, "{}", response.body);
        let results = response.json()["results"].as_array().unwrap().clone();
        assert_eq!(results.len(), checks.len());
        for (check, result) in checks.iter().zip(results) {
            let expected = alone.post("/v1/check", check);
            match expected.status {
                200 => allowed += 1,
                429 => denied += 1,
                _ => invalid += 1,
            }
            assert_eq!(without_times(result), without_times(expected.json()), "{check}");
        }
    }
    assert!(allowed > 50 && denied > 50 && invalid > 50, "{allowed} {denied} {invalid}");
    // Both servers have counted the same.
    let counted = |server: &ServerProcess| {
        let text = server.get("/metrics").body;
        let lines = text.lines().filter(|line| line.starts_with("tidegate_checks_total"));
        lines.map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(counted(&alone), counted(&together));
}

#[test]
fn a_batch_of_more_than_256_checks_or_none_is_refused_and_charges_nothing() {
    let server = ServerProcess::with_policy(POLICY);
    let one = json!({ "rule": "five", "key": "k" });
    for checks in [vec![], vec![one.clone(); 257]] {
        let refused = server.post("/v1/check-many", &json!({ "checks": checks }));
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("checks")));
    }
    let unused =
        server.post("/v1/check-many", &json!({ "checks": [{ "rule": "five", "min": 1 }] }));
    assert_eq!(unused.json()["results"][0]["field"], "min");
    assert_eq!(server.post("/v1/check", &one).json()["remaining"], 4);
}

#[test]
fn every_enforced_limit_has_an_entry_and_shadow_limits_have_none() {
    let server = ServerProcess::with_policy(POLICY);
    let check =
        |cost: u64| server.post("/v1/check", &json!({ "rule": "two", "cost": cost })).json();
    let decision = check(2);
    let entries = |decision: &Value| -> Vec<(Value, Value, Value)> {
        let entry = |e: &Value| (e["policy"].clone(), e["allowed"].clone(), e["remaining"].clone());
        decision["rules"].as_array().unwrap().iter().map(entry).collect()
    };
    let entry = |name: &str, allowed: bool, left: u64| (json!(name), json!(allowed), json!(left));
    assert_eq!(entries(&decision), [entry("two.1", true, 3), entry("two.2", true, 1)]);
    // Allowed: the limit with the least remaining is reported.
    assert_eq!((&decision["limit"], &decision["remaining"]), (&json!(3), &json!(1)));
    let decision = check(2);
    assert_eq!(entries(&decision), [entry("two.1", true, 3), entry("two.2", false, 1)]);
    // Denied: the longest wait is reported; `never` is longer than any.
    let decision = check(4);
    assert_eq!(entries(&decision), [entry("two.1", false, 3), entry("two.2", false, 1)]);
    assert_eq!((&decision["limit"], &decision["never"]), (&json!(3), &json!(true)));
    assert!(decision["rules"][0]["retry_after_ms"].is_u64());
    assert!(decision["rules"][1]["retry_after_ms"].is_null());
}

#[test]
fn limits_of_one_name_are_numbered_in_headers_and_body() {
    let server = ServerProcess::with_policy(POLICY);
    let body = json!({ "checks": [
        { "limit": "5/h", "key": "k" },
        { "rule": "two", "key": "k" },
        { "limit": "sliding-log 7/1h", "key": "k" },
        { "rule": "two", "key": "other" },
    ] });
    let names = ["adhoc", "two.1", "two.2", "adhoc#2", "two.1#2", "two.2#2"];
    let response = server.post("/v1/check", &body);
    for header in ["ratelimit-policy", "ratelimit"] {
        let items = response.header(header).unwrap().split(", ");
        let items: Vec<&str> = items.map(|item| item.split('"').nth(1).unwrap()).collect();
        assert_eq!(items, names, "{header}");
    }
    let decision = response.json();
    let policies: Vec<&Value> =
        decision["rules"].as_array().unwrap().iter().map(|entry| &entry["policy"]).collect();
    assert_eq!(policies, names);
}

#[test]
fn a_cost_that_can_never_fit_is_never() {
    let server = ServerProcess::with_policy(POLICY);
    for body in [
        json!({ "rule": "five", "cost": 6 }),
        json!({ "rule": "five", "cost": 4_294_967_296_u64 }),
        json!({ "rule": "nothing" }),
        json!({ "limit": "0/s", "key": "k" }),
        json!({ "rule": "listed", "key": "foe" }),
    ] {
        let response = server.post("/v1/check", &body);
        let decision = response.json();
        assert_eq!(response.status, 429, "{body}");
        assert_eq!(decision["never"], true, "{body}");
        assert_eq!(decision["retry_after_ms"], Value::Null, "{body}");
        assert_eq!(response.header("retry-after"), None, "{body}");
        assert_eq!(response.header("cache-control"), Some("no-store"), "{body}");
    }
    let fitting = server.post("/v1/check", &json!({ "rule": "five", "cost": 5 })).json();
    assert!(fitting.get("never").is_none(), "only where it is true");
}

#[test]
fn a_cost_of_zero_peeks_and_is_always_200() {
    let server = ServerProcess::with_policy(POLICY);
    server.post("/v1/check", &json!({ "rule": "five", "key": "full", "cost": 5 }));
    server.post("/v1/record", &json!({ "rule": "five", "key": "debt", "cost": 9 }));
    for (rule, key, remaining) in
        [("five", "new", 5), ("five", "full", 0), ("five", "debt", 0), ("nothing", "k", 0)]
    {
        for _ in 0..2 {
            let body = json!({ "rule": rule, "key": key, "cost": 0 });
            let peeked = server.post("/v1/check", &body);
            assert_eq!(peeked.status, 200, "{body}");
            assert_eq!(peeked.json()["remaining"], remaining, "{body}: {}", peeked.body);
            assert_eq!(peeked.header("retry-after"), None);
            assert_eq!(peeked.header("cache-control"), None);
            assert!(peeked.header("ratelimit").is_some());
        }
    }
    let full =
        server.post("/v1/check", &json!({ "rule": "five", "key": "full", "cost": 0 })).json();
    assert!(full["retry_after_ms"].as_u64().unwrap() > 0, "when a cost of 1 could pass");
    let both =
        json!({ "checks": [{ "rule": "five", "key": "full", "cost": 0 }, { "rule": "ten" }] });
    assert_eq!(server.post("/v1/check", &both).status, 200, "a peek beside a check denies nothing");
}

#[test]
fn who_is_on_a_list_is_not_counted() {
    let server = ServerProcess::with_policy(POLICY);
    for _ in 0..7 {
        let response = server.post("/v1/check", &json!({ "rule": "listed", "key": "friend" }));
        let expected = json!({
            "allowed": true, "limit": null, "remaining": null, "retry_after_ms": 0,
            "reset_after_ms": 0, "delay_ms": 0, "rule": null, "source": "policy", "rules": [],
        });
        assert_eq!((response.status, response.json()), (200, expected));
        assert_eq!(response.header("ratelimit"), None, "no limit, no headers");
    }
    let shadow = server.post("/v1/check", &json!({ "rule": "onlooker", "cost": 9 }));
    assert_eq!((shadow.status, &shadow.json()["rules"]), (200, &json!([])));
}

// --- headers -----------------------------------------------------------------------------------

/// Headers of a check of `cost`: `RateLimit-Policy`, `RateLimit`, three `X-RateLimit-*`,
/// `Retry-After` and `Cache-Control`. `-` stands for an absent header.
type HeaderCase = (&'static str, u64, [&'static str; 7]);

const HEADER_CASES: [HeaderCase; 8] = [
    ("five", 2, [FIVE, r#""five";r=3;t=3600"#, "5", "3", "3600", "-", "-"]),
    ("five", 0, [FIVE, r#""five";r=3;t=3600"#, "5", "3", "3600", "-", "-"]),
    ("five", 4, [FIVE, r#""five";r=3;t=3600"#, "5", "3", "3600", "3600", "no-store"]),
    ("five", 6, [FIVE, r#""five";r=3"#, "5", "3", "3600", "-", "no-store"]),
    // One item for each enforced limit, none for a shadow limit.
    ("two", 1, [TWO, r#""two.1";r=4;t=3600, "two.2";r=2;t=7200"#, "3", "2", "7200", "-", "-"]),
    (
        "two",
        3,
        [TWO, r#""two.1";r=4;t=3600, "two.2";r=2;t=7200"#, "3", "2", "7200", "7200", "no-store"],
    ),
    // A bucket of 5 per hour refills one permit in 720 s.
    ("hour", 5, [HOUR, r#""hour";r=0;t=3600"#, "5", "0", "3600", "-", "-"]),
    ("hour", 1, [HOUR, r#""hour";r=0;t=720"#, "5", "0", "3600", "720", "no-store"]),
];

const FIVE: &str = r#""five";q=5;w=3600"#;
const TWO: &str = r#""two.1";q=5;w=3600, "two.2";q=3;w=7200"#;
const HOUR: &str = r#""hour";q=5;w=3600"#;

#[test]
fn headers_report_the_limits_as_documented() {
    let server = ServerProcess::with_policy(POLICY);
    let check = |rule: &str, key: &str, cost: u64| {
        let response = server.post("/v1/check", &json!({ "rule": rule, "key": key, "cost": cost }));
        let names = [
            "ratelimit-policy",
            "ratelimit",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "retry-after",
            "cache-control",
        ];
        names.map(|name| response.header(name).unwrap_or("-").to_string())
    };
    // Seconds are rounded up, so the value is exact while the check takes less than a second.
    let seen = testkit::server::wait_until(|| {
        let (clock, key) = (SystemClock, SystemClock.now().get().to_string());
        let start = clock.elapsed();
        let seen = HEADER_CASES.map(|(rule, cost, _)| check(rule, &key, cost));
        let took = Duration::from(clock.elapsed().saturating_sub(start));
        (took < Duration::from_secs(1)).then_some(seen)
    });
    for ((rule, cost, expected), seen) in HEADER_CASES.into_iter().zip(seen.unwrap()) {
        assert_eq!(seen, expected, "{rule} {cost}");
    }
    // The length of a month varies, and 1500 ms are not whole seconds.
    assert_eq!(check("odd", "k", 1)[0], r#""odd.1";q=3, "odd.2";q=9"#);
}

#[test]
fn record_and_refund_report_the_limits_and_no_retry_after() {
    let server = ServerProcess::with_policy(POLICY);
    for path in ["/v1/record", "/v1/refund"] {
        let response = server.post(path, &json!({ "rule": "five", "key": path, "cost": 9 }));
        assert_eq!(response.status, 200, "{path}");
        assert_eq!(response.header("x-ratelimit-limit"), Some("5"), "{path}");
        assert_eq!(response.header("retry-after"), None, "{path}");
        assert_eq!(response.header("cache-control"), None, "{path}");
    }
}

// --- rules and keys -----------------------------------------------------------------------------

#[test]
fn a_limit_of_ones_own_is_counted_by_itself() {
    let server = ServerProcess::with_policy(POLICY);
    let check = |limit: &str, key: &str| {
        let response = server.post("/v1/check", &json!({ "limit": limit, "key": key }));
        (response.status, response.json()["remaining"].clone())
    };
    assert_eq!(check("sliding-log 2/1h", "a"), (200, json!(1)));
    assert_eq!(check("sliding-log 2/1h", "a"), (200, json!(0)));
    assert_eq!(check("sliding-log 2/60min", "a"), (429, json!(0)), "the same limit");
    assert_eq!(check("sliding-log 2/1h", "b"), (200, json!(1)), "another key");
    let refused = server.post("/v1/check", &json!({ "limit": "5 per min", "key": "a" }));
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("limit")));

    let strict = ServerProcess::with_policy(&format!("adhoc: false\n{POLICY}"));
    let refused = strict.post("/v1/check", &json!({ "limit": "5/min", "key": "a" }));
    assert_eq!((refused.status, &refused.json()["field"]), (403, &json!("limit")));
    assert_eq!(strict.post("/v1/check", &json!({ "rule": "five" })).status, 200);
}

#[test]
fn denied_callers_get_different_retry_after_values() {
    let server = ServerProcess::with_policy(&format!("retry_jitter: 0.5\n{POLICY}"));
    let body = json!({ "rule": "ten", "key": "k", "cost": 10 });
    assert_eq!(server.post("/v1/check", &body).status, 200);
    let mut waits = std::collections::HashSet::new();
    for _ in 0..20 {
        let denied = server.post("/v1/check", &body);
        let wait = denied.json()["retry_after_ms"].as_u64().unwrap();
        // An hour minus the duration of this test.
        assert!((3_500_000..=5_400_000).contains(&wait), "{wait}");
        let header: u64 = denied.header("retry-after").unwrap().parse().unwrap();
        assert_eq!(header, wait.div_ceil(1_000));
        waits.insert(wait);
    }
    assert!(waits.len() > 15, "{waits:?}");
}

#[test]
fn a_key_is_a_text_or_several_that_stay_apart() {
    let server = ServerProcess::with_policy(POLICY);
    for (first, second, same) in [
        (json!("a"), json!(["a"]), true),
        (json!(["a", "b"]), json!(["a", "b"]), true),
        (json!(["a_b", "c"]), json!(["a", "b_c"]), false),
        (json!(["x", "y"]), json!("x,y"), false),
        (json!(["p", ""]), json!(["p"]), false),
        (json!("kelvin"), json!("Kelvin"), false),
        (json!("\u{0}"), json!(""), false),
        (json!([]), Value::Null, true),
    ] {
        let check = |key: &Value| {
            server.post("/v1/check", &json!({ "rule": "ten", "key": key })).json()["remaining"]
                .clone()
        };
        let (one, two) = (check(&first).as_u64().unwrap(), check(&second).as_u64().unwrap());
        assert_eq!(two < one, same, "{first} {second}");
    }
    let check = |key: &str| {
        server.post("/v1/check", &json!({ "rule": "address", "key": key })).json()["remaining"]
            .clone()
    };
    assert_eq!(check("1.2.3.4"), 4);
    assert_eq!(check("::ffff:1.2.3.4"), 3, "one address");
    assert_eq!(check("2001:db8:1:2::1"), 4);
    assert_eq!(check("2001:db8:1:2:3:4:5:6"), 3, "one network of 64 bits");
    assert_eq!(check("not an address"), 4, "taken as it is");
}

#[test]
fn several_checks_are_charged_all_or_none() {
    let server = ServerProcess::with_policy(POLICY);
    let used = |rule: &str| {
        let body = json!({ "rule": rule, "key": "k", "cost": 0 });
        server.post("/v1/check", &body).json()["remaining"].as_u64().unwrap()
    };
    let both = |five: u64, ten: u64| {
        let checks = json!([
            { "rule": "five", "key": "k", "cost": five },
            { "rule": "ten", "key": "k", "cost": ten },
        ]);
        server.post("/v1/check", &json!({ "checks": checks }))
    };
    let passed = both(3, 4);
    assert_eq!((passed.status, used("five"), used("ten")), (200, 2, 6), "each its own cost");
    let decision = passed.json();
    let rules = |decision: &Value| -> Vec<Value> {
        decision["rules"].as_array().unwrap().iter().map(|entry| entry["rule"].clone()).collect()
    };
    assert_eq!(rules(&decision), ["five", "ten"]);
    assert_eq!(decision["rule"], "five", "the least remaining");
    for (five, ten, speaker) in [(3, 1, "five"), (1, 7, "ten"), (3, 11, "ten")] {
        let denied = both(five, ten);
        assert_eq!((denied.status, used("five"), used("ten")), (429, 2, 6), "nothing charged");
        assert_eq!(denied.json()["rule"], speaker);
    }
    let same = json!([{ "rule": "five", "key": "s", "cost": 3 }, { "rule": "five", "key": "s", "cost": 3 }]);
    assert_eq!(server.post("/v1/check", &json!({ "checks": same })).status, 429, "added up");
    let sixteen = vec![json!({ "limit": "100/h", "key": "k" }); 16];
    let response = server.post("/v1/check", &json!({ "checks": sixteen }));
    assert_eq!((response.status, &response.json()["remaining"]), (200, &json!(84)));
}

// --- waiting, once, and after the fact ---------------------------------------------------------

#[test]
fn a_check_waits_for_its_turn_if_requested() {
    let server = ServerProcess::with_policy(POLICY);
    let clock = SystemClock;
    let check = |wait_ms: u64| {
        let start = clock.elapsed();
        let body = json!({ "rule": "slow", "key": "k", "wait_ms": wait_ms });
        let status = server.post("/v1/check", &body).status;
        (status, Duration::from(clock.elapsed().saturating_sub(start)))
    };
    assert_eq!(check(0).0, 200);
    let (status, took) = check(5_000);
    assert_eq!(status, 200);
    assert!(took >= Duration::from_secs(1), "it had to wait for two seconds: {took:?}");
    let body = json!({ "rule": "five", "key": "w", "cost": 5, "wait_ms": 1 });
    assert_eq!(server.post("/v1/check", &body).status, 200, "nothing to wait for");
    let start = clock.elapsed();
    let denied =
        server.post("/v1/check", &json!({ "rule": "five", "key": "w", "wait_ms": 60_000 }));
    let took = Duration::from(clock.elapsed().saturating_sub(start));
    assert_eq!(denied.status, 429, "an hour is too long a wait");
    // It would wait for a minute.
    compare_with_goal("a denial without waiting", took, Duration::from_secs(5));
    for (path, cost) in [("/v1/check", 1), ("/v1/check", 0)] {
        let body = json!({ "rule": "five", "cost": cost, "wait_ms": 60_001 });
        let refused = server.post(path, &body);
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("wait_ms")));
    }
}

#[test]
fn an_id_charges_once_and_serves_one_request_in_its_scope() {
    let server = ServerProcess::with_policy(POLICY);
    let first_body = json!({ "rule": "ten", "key": "k", "cost": 3, "id": "order-17" });
    let first = server.post("/v1/check", &first_body).json();
    assert_eq!(first["remaining"], 7);
    for _ in 0..3 {
        let mut again = server.post("/v1/check", &first_body).json();
        assert_eq!(again.as_object_mut().unwrap().remove("repeated"), Some(json!(true)));
        assert_eq!(again, first, "the response that was given before");
    }
    for (path, body) in [
        ("/v1/check", json!({ "rule": "ten", "key": "k", "cost": 4, "id": "order-17" })),
        ("/v1/record", first_body.clone()),
        ("/v1/reserve", first_body.clone()),
        (
            "/v1/check",
            json!({ "checks": [{ "rule": "ten", "key": "k", "cost": 3 }, { "rule": "five" }],
                    "id": "order-17" }),
        ),
    ] {
        let refused = server.post(path, &body);
        assert_eq!(
            (refused.status, &refused.json()["field"]),
            (409, &json!("id")),
            "{path} {body}"
        );
    }
    // Another first rule or key is another scope.
    for body in [
        json!({ "rule": "ten", "key": "l", "cost": 1, "id": "order-17" }),
        json!({ "rule": "five", "key": "k", "cost": 1, "id": "order-17" }),
        json!({ "rule": "ten", "key": "k", "cost": 1, "id": "order-18" }),
        json!({ "checks": [{ "rule": "five", "key": "m" }, { "rule": "ten", "key": "k" }],
                "id": "order-17" }),
    ] {
        let other = server.post("/v1/check", &body);
        assert_eq!((other.status, other.json().get("repeated")), (200, None), "{body}");
    }
    let left = server.post("/v1/check", &json!({ "rule": "ten", "key": "k", "cost": 0 })).json();
    assert_eq!(left["remaining"], 5, "3 under one id, and 1 twice");
    // A denial is not stored under the id: the retry may pass.
    let body = json!({ "rule": "slow", "key": "k", "id": "x" });
    server.post("/v1/check", &json!({ "rule": "slow", "key": "k" }));
    assert_eq!(server.post("/v1/check", &body).status, 429);
    let retried = testkit::server::wait_until(|| {
        (server.post("/v1/check", &body).status == 200).then_some(())
    });
    assert!(retried.is_some());
    for id in ["", &"x".repeat(65)] {
        let refused = server.post("/v1/check", &json!({ "rule": "ten", "id": id }));
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("id")));
    }
    let longest = json!({ "rule": "ten", "id": "x".repeat(64) });
    assert_eq!(server.post("/v1/check", &longest).status, 200);
}

#[test]
fn a_record_charges_whatever_is_left_and_a_refund_gives_back_what_is_there() {
    let server = ServerProcess::with_policy(POLICY);
    let call = |path: &str, cost: u64| {
        let response = server.post(path, &json!({ "rule": "five", "key": "k", "cost": cost }));
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    };
    let recorded = call("/v1/record", 3);
    assert_eq!((&recorded["allowed"], &recorded["remaining"]), (&json!(true), &json!(2)));
    assert_eq!(recorded.get("refunded"), None);
    let recorded = call("/v1/record", 4);
    assert_eq!(
        (&recorded["allowed"], &recorded["remaining"]),
        (&json!(false), &json!(0)),
        "in debt"
    );
    let refunded = call("/v1/refund", 4);
    assert_eq!((&refunded["refunded"], &refunded["remaining"]), (&json!(4), &json!(2)));
    let refunded = call("/v1/refund", 100);
    assert_eq!((&refunded["refunded"], &refunded["remaining"]), (&json!(3), &json!(5)));
    assert_eq!(call("/v1/refund", 1)["refunded"], 0, "nothing is left to give back");
    let body = json!({ "rule": "five", "key": "k", "cost": 2, "id": "r" });
    for _ in 0..3 {
        server.post("/v1/record", &body);
    }
    assert_eq!(call("/v1/record", 0)["remaining"], 3, "an id counts for records too");
    for path in ["/v1/record", "/v1/refund"] {
        for (field, value) in [("wait_ms", 1), ("ttl_ms", 1)] {
            let refused = server.post(path, &json!({ "rule": "five", field: value }));
            assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{path}");
        }
    }
}

/// The names of all fields, in order.
fn fields(value: &Value) -> Vec<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn a_request_without_a_key_is_refused_by_a_rule_that_counts_per_key() {
    let policy = "rules:
  - { name: each, key: [client_ip], limits: [5/h] }
  - { name: all, limits: [5/h] }
";
    let server = ServerProcess::with_policy(policy);
    for body in
        [json!({ "rule": "each" }), json!({ "rule": "each", "key": [] }), json!({ "limit": "5/h" })]
    {
        let refused = server.post("/v1/check", &body);
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("key")), "{body}");
    }
    let together = server.post("/v1/check", &json!({ "rule": "all" }));
    assert_eq!((together.status, &together.json()["remaining"]), (200, &json!(4)));
}

#[test]
fn the_policy_chooses_the_style_of_the_headers() {
    const RULES: &str =
        "rules: [{ name: five, match: { path: /x }, limits: ['fixed-window 5/d'] }]";
    for style in ["draft-8", "draft-7", "draft-6", "epoch"] {
        let server = ServerProcess::with_policy(&format!("headers: {style}\n{RULES}"));
        let check = server.post("/v1/check", &json!({ "rule": "five", "key": "k" }));
        let forward_auth = server.request("GET", "/v1/authorize", &[("x-forwarded-uri", "/x")], "");
        for response in [check, forward_auth] {
            let header = |name: &str| response.header(name);
            let reset: u64 = header("x-ratelimit-reset").unwrap().parse().unwrap();
            assert_eq!(reset > 1_700_000_000, style == "epoch", "{style}: {reset}");
            assert_eq!(header("x-ratelimit-remaining"), Some("4"), "{style}");
            let policy = match style {
                "draft-8" => Some(r#""five";q=5;w=86400"#),
                "draft-7" | "draft-6" => Some("5;w=86400"),
                _ => None,
            };
            assert_eq!(header("ratelimit-policy"), policy, "{style}");
            let start = match style {
                "draft-8" => Some(r#""five";r=4;t="#),
                "draft-7" => Some("limit=5, remaining=4, reset="),
                _ => None,
            };
            let state = header("ratelimit");
            assert_eq!(state.is_some(), start.is_some(), "{style}: {state:?}");
            assert!(state.is_none_or(|state| state.starts_with(start.unwrap())), "{state:?}");
            let draft_6 = ["limit", "remaining"].map(|name| header(&format!("ratelimit-{name}")));
            let expected = if style == "draft-6" { [Some("5"), Some("4")] } else { [None; 2] };
            assert_eq!(draft_6, expected, "{style}");
        }
    }
}
