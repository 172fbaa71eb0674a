//! Plans of a rule, over HTTP and by the header of a proxy, and on the console.

use serde_json::{Value, json};
use testkit::server::ServerProcess;

const POLICY: &str = r#"
trusted_proxies: ["127.0.0.1/32"]
rules:
  - name: api
    match: { path: /api/* }
    key: ["header:x-key"]
    plan: "header:x-plan"
    default_plan: free
    plans:
      free: ["fixed-window 2/h"]
      pro: ["fixed-window 5/h"]
  - { name: plain, match: { path: /plain }, limits: ["5/h"] }
"#;

/// Status and remaining permits of the first limit.
fn check(server: &ServerProcess, body: &Value) -> (u16, Value) {
    let response = server.post("/v1/check", body);
    (response.status, response.json()["remaining"].clone())
}

#[test]
fn a_call_names_the_plan_and_a_change_keeps_what_was_used() {
    let server = ServerProcess::with_policy(POLICY);
    let of = |plan: &str| json!({ "rule": "api", "key": "k", "plan": plan });
    assert_eq!(check(&server, &json!({ "rule": "api", "key": "k" })), (200, json!(1)));
    assert_eq!(check(&server, &of("free")), (200, json!(0)));
    assert_eq!(check(&server, &of("free")).0, 429);
    assert_eq!(check(&server, &of("pro")), (200, json!(2)));
    let listed = json!({ "checks": [{ "rule": "api", "key": "k", "plan": "pro" }] });
    assert_eq!(check(&server, &listed), (200, json!(1)));
    let many = server.post("/v1/check-many", &listed);
    assert_eq!(many.json()["results"][0]["remaining"], 0);
    assert_eq!(check(&server, &of("pro")).0, 429);
    let state = |plan: &str| {
        let found = server.get(&format!("/v1/keys?rule=api&key=k{plan}")).json();
        (found["limits"][0]["capacity"].clone(), found["limits"][0]["used"].clone())
    };
    assert_eq!(state("&plan=pro"), (json!(5), json!(5)));
    let explained = server.get("/v1/explain?rule=api&key=k&plan=pro").json();
    assert_eq!(explained["sentences"][0], "k is on plan pro of api.");
    assert!(explained["sentences"][1].as_str().unwrap().contains("fixed-window 5/h"));
}

#[test]
fn an_unknown_plan_is_refused_by_name() {
    let server = ServerProcess::with_policy(POLICY);
    for (body, status, detail) in [
        (
            json!({ "rule": "api", "key": "k", "plan": "gold" }),
            404,
            r#"rule "api" has no plan "gold"; its plans: free, pro"#,
        ),
        (
            json!({ "rule": "plain", "key": "k", "plan": "pro" }),
            404,
            r#"rule "plain" has no plans; leave out plan "pro""#,
        ),
        (json!({ "limit": "5/s", "key": "k", "plan": "pro" }), 400, "only a rule has plans"),
        (
            json!({ "checks": [{ "rule": "api", "key": "k" }], "plan": "pro" }),
            400,
            "must be set in each element of checks",
        ),
    ] {
        let response = server.post("/v1/check", &body);
        let problem = response.json();
        assert_eq!((response.status, &problem["field"]), (status, &json!("plan")), "{problem}");
        assert!(problem["detail"].as_str().unwrap().starts_with(detail), "{problem}");
    }
}

#[test]
fn a_trusted_proxy_sends_the_plan_in_a_header() {
    let server = ServerProcess::with_policy(POLICY);
    let authorize = |key: &str, plan: &str| {
        let headers = [
            ("x-forwarded-uri", "/api/x"),
            ("x-forwarded-method", "GET"),
            ("x-forwarded-host", "a.example"),
            ("x-key", key),
            ("x-plan", plan),
        ];
        server.request("GET", "/v1/authorize", &headers, "").status
    };
    let allowed = |key: &str, plan: &str| (0..8).filter(|_| authorize(key, plan) == 200).count();
    assert_eq!([allowed("a", "free"), allowed("b", "pro"), allowed("c", "gold")], [2, 5, 2]);
    assert_eq!(allowed("a", "pro"), 3, "what was used on the plan free counts");
    let query = "path=/api/x&header=x-key:%20z&header=x-plan:%20pro";
    let explained = server.get(&format!("/v1/explain?{query}")).json();
    assert_eq!(explained["sentences"][0], "1 of 2 rules applies: api for z on plan pro.");
}

#[test]
fn the_console_shows_plans() {
    let server = ServerProcess::with_policy(POLICY);
    check(&server, &json!({ "rule": "api", "key": "k", "plan": "pro" }));
    let rules = server.get("/rules").body;
    assert!(rules.contains("pro: </span><code>fixed-window 5/h</code>"), "{rules}");
    let page = server.get("/rule?name=api").body;
    assert!(page.contains("free <span class=\"tag\">default</span>"), "{page}");
    let key = server.get("/keys?rule=api&key=k&plan=pro").body;
    assert!(key.contains("aria-current=\"true\">plan pro</a>"), "{key}");
    assert!(key.contains("4 of 5 remaining"), "{key}");
}
