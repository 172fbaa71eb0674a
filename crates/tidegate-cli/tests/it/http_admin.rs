//! Keys, active rules and access levels.
use serde_json::{Value, json};
use testkit::resp::{RespConnection, RespReply};
use testkit::server::{RawHttpConnection, ServerProcess, ServerResponse, TempFolder, wait_until};

const POLICY: &str = r#"
rules:
  - { name: five, limits: ["sliding-log 5/h"], shadow_limits: ["2/h"] }
  - { name: two, limits: ["sliding-log 5/h", "10/h"] }
  - { name: workers, limits: ["concurrency 2 lease 30s"] }
  - { name: listed, limits: ["sliding-log 5/h"], allow: [friend], deny: [foe] }
"#;

const ADMIN: (&str, &str) = ("TIDEGATE_ADMIN_TOKEN", "change-me");
const CHECK: (&str, &str) = ("TIDEGATE_TOKEN", "check-me");

// --- web pages ---------------------------------------------------------------------------------

/// Calls that charge and calls that name keys. `/v1/authorize` is for proxies.
const API: [(&str, &str, &str); 5] = [
    ("POST", "/v1/check", r#"{"rule":"five","key":"k"}"#),
    ("POST", "/v1/record", r#"{"rule":"five","key":"k"}"#),
    ("POST", "/json", r#"{"domain":"d","descriptors":[]}"#),
    ("GET", "/v1/live", ""),
    ("GET", "/v1/keys/five/k", ""),
];

fn used(server: &ServerProcess, headers: &[(&str, &str)]) -> Value {
    let state = server.request("GET", "/v1/keys/five/k", headers, "").json();
    state["limits"][0]["used"].clone()
}

#[test]
fn without_a_token_a_page_of_another_site_cannot_charge_or_read() {
    let server = start(&[]);
    let evil = ("origin", "https://evil.example");
    for (method, path, body) in API {
        for page in [
            &[evil, ("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site")],
            &[("origin", "null")],
            &[evil],
        ] {
            let refused = server.request(method, path, page, body);
            assert_eq!(refused.status, 403, "{path} {page:?}: {}", refused.body);
        }
        let length = body.len();
        let rebound = format!(
            "{method} {path} HTTP/1.1\r\nhost: evil.example\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let mut client = RawHttpConnection::connect(server.http);
        client.try_write(rebound.as_bytes()).unwrap();
        assert_eq!(client.receive().status, 421, "{path}");
    }
    let should_rate_limit = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    for listener in [server.http, server.grpc] {
        let mut client = RawHttpConnection::connect(listener);
        client.send("POST", should_rate_limit, &[evil], "\0\0\0\0\0");
        assert_eq!(client.receive().header("grpc-status"), Some("7"), "permission denied");
    }
    assert_eq!(used(&server, &[]), 0, "nothing was charged");
    // A page of the console, an address that a user enters, and clients that are not browsers.
    let own = ("origin", "http://localhost");
    for page in [&[("sec-fetch-site", "same-origin"), own][..], &[("sec-fetch-site", "none")], &[]]
    {
        let checked = server.request("POST", "/v1/check", page, r#"{"rule":"five","key":"k"}"#);
        assert_eq!(checked.status, 200, "{page:?}");
    }
    assert_eq!(used(&server, &[]), 3);
    // The proxy passes on what the client has sent.
    let client = [("x-forwarded-uri", "/"), evil, ("sec-fetch-site", "cross-site")];
    assert_eq!(server.request("GET", "/v1/authorize", &client, "").status, 200);
}

#[test]
fn with_a_token_browsers_and_host_names_do_not_matter() {
    let server = start(&[CHECK]);
    let token = ("x-tidegate-token", CHECK.1);
    let page = [token, ("origin", "https://app.example"), ("sec-fetch-site", "cross-site")];
    let checked = server.request("POST", "/v1/check", &page, r#"{"rule":"five","key":"k"}"#);
    assert_eq!((checked.status, used(&server, &page)), (200, json!(1)));
}

// --- refunds -----------------------------------------------------------------------------------

#[test]
fn a_policy_can_make_refunds_need_the_admin_token() {
    let refund = r#"{"rule":"five","key":"k","cost":1}"#;
    let envoy = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"isNegativeHits":true,"hitsAddend":"1"}]}"#;
    let limits = "domain: d\ndescriptors:\n  - { key: k, rate_limit: { unit: hour, requests_per_unit: 5 } }\n";
    for (setting, by_check) in [("", [200, 200]), ("refund_token: admin\n", [403, 400])] {
        let folder = TempFolder::new();
        let policy = folder.write("policy.yaml", &format!("{setting}{POLICY}"));
        std::fs::create_dir(folder.path("envoy")).unwrap();
        folder.write("envoy/d.yaml", limits);
        let (policy, envoy_config) = (policy.to_str().unwrap(), folder.path("envoy"));
        let arguments = ["--config", policy, "--envoy-config", envoy_config.to_str().unwrap()];
        let server = ServerProcess::start(&arguments, &[ADMIN, CHECK]);
        let send = |token: &str, path: &str, body: &str| {
            server.request("POST", path, &[("x-tidegate-token", token)], body)
        };
        let statuses = [send(CHECK.1, "/v1/refund", refund), send(CHECK.1, "/json", envoy)];
        assert_eq!(statuses.map(|response| response.status), by_check, "{setting:?}");
        assert_eq!(send(ADMIN.1, "/v1/refund", refund).status, 200, "{setting:?}");
        let mut client = RespConnection::connect(server.resp);
        client.send(&format!("AUTH {}", CHECK.1));
        let refused = matches!(client.send("TG.REFUND five k 1"), RespReply::Error(_));
        assert_eq!(refused, by_check[0] == 403, "{setting:?}");
        client.send(&format!("AUTH {}", ADMIN.1));
        let reply = client.send("TG.REFUND five k 1");
        assert!(!matches!(reply, RespReply::Error(_)), "{setting:?}: {reply:?}");
    }
}

// --- keys --------------------------------------------------------------------------------------

#[test]
fn a_key_can_be_inspected_by_path_and_by_query() {
    let server = start(&[ADMIN]);
    server.post("/v1/check", &json!({ "rule": "five", "key": "k", "cost": 2 }));
    server.post("/v1/reserve", &json!({ "rule": "five", "key": "k", "cost": 1 }));
    let by_path = server.get("/v1/keys/five/k");
    assert_eq!(by_path.status, 200);
    let limits = by_path.json()["limits"].clone();
    let message = |i: usize, field: &str| limits[i][field].clone();
    assert_eq!(limits.as_array().unwrap().len(), 2, "shadow limits too");
    assert_eq!((message(0, "rule"), message(0, "policy")), (json!("five"), json!("five")));
    assert_eq!(
        (message(0, "limit"), message(0, "shadow")),
        (json!("sliding-log 5/h"), json!(false))
    );
    assert_eq!((message(0, "capacity"), message(0, "used")), (json!(5), json!(2)));
    assert_eq!((message(0, "held"), message(0, "remaining")), (json!(1), json!(2)));
    assert_eq!((message(0, "source"), message(0, "shared")), (json!("memory"), json!(false)));
    assert_eq!(message(1, "shadow"), json!(true));
    let used: u64 =
        message(0, "entries").as_array().unwrap().iter().map(|e| e["cost"].as_u64().unwrap()).sum();
    assert_eq!(used, 2, "{}", message(0, "entries"));
    let by_query = server.get("/v1/keys?rule=five&key=k").json();
    assert_eq!(by_query["limits"][0]["used"], 2);
    assert_eq!(server.get("/v1/keys/five/other").json()["limits"][0]["used"], 0);
    assert_eq!(server.get("/v1/keys/five/k").json()["limits"][0]["used"], 2, "looking is free");
}

#[test]
fn every_key_can_be_named_in_an_address() {
    let server = start(&[ADMIN]);
    for (i, (key, query, path)) in [
        (json!("a b/c?&=%"), "key=a+b%2Fc%3F%26%3D%25", Some("a%20b%2Fc%3F%26%3D%25")),
        (json!("é🌊"), "key=%C3%A9%F0%9F%8C%8A", Some("%C3%A9%F0%9F%8C%8A")),
        (json!("nul\u{0}"), "key=nul%00", Some("nul%00")),
        (json!(["tenant", "user"]), "key=tenant&key=user", None),
        (json!(["x", ""]), "key=x&key=", None),
        (json!([]), "", None),
    ]
    .into_iter()
    .enumerate()
    {
        let cost = i as u64 % 4 + 1;
        server.post("/v1/check", &json!({ "rule": "two", "key": key, "cost": cost }));
        let used = |path: &str| server.get(path).json()["limits"][0]["used"].clone();
        assert_eq!(used(&format!("/v1/keys?rule=two&{query}")), cost, "{key}");
        if let Some(path) = path {
            assert_eq!(used(&format!("/v1/keys/two/{path}")), cost, "{key}");
        }
        let path = format!("/v1/keys?{query}&rule=two");
        assert_eq!(admin(&server, "DELETE", &path, "").status, 200);
        assert_eq!(used(&format!("/v1/keys?rule=two&{query}")), 0, "{key}");
    }
    server.post("/v1/check", &json!({ "limit": "sliding-log 5/h", "key": "k", "cost": 3 }));
    let own = server.get("/v1/keys?limit=sliding-log+5/h&key=k").json();
    assert_eq!((&own["limits"][0]["used"], &own["limits"][0]["remaining"]), (&json!(3), &json!(2)));
}

#[test]
fn what_cannot_be_read_in_an_address_is_refused() {
    let server = start(&[ADMIN]);
    for (path, status, field) in [
        ("/v1/keys/missing/k", 404, "rule"),
        ("/v1/keys?rule=missing&key=k", 404, "rule"),
        ("/v1/keys/five/%ff", 400, "key"),
        ("/v1/keys?rule=five&key=%ff", 400, "key"),
        ("/v1/keys?rule=five&key=%", 400, "key"),
        ("/v1/keys?key=k", 400, "rule"),
        ("/v1/keys?rule=five&limit=5/min&key=k", 400, "rule"),
        ("/v1/keys?rule=five&rule=two&key=k", 400, "rule"),
        ("/v1/keys?limit=5&key=k", 400, "limit"),
        ("/v1/keys?rule=five&key=k&colour=red", 400, "colour"),
        ("/v1/explain?rule=missing", 404, "rule"),
        ("/v1/explain?rule=five&key=%ff", 400, "key"),
    ] {
        let refused = server.get(path);
        assert_eq!((refused.status, &refused.json()["field"]), (status, &json!(field)), "{path}");
    }
    let long = format!("/v1/keys/five/{}", "k".repeat(1_025));
    assert_eq!(
        (server.get(&long).status, &server.get(&long).json()["field"]),
        (400, &json!("key"))
    );
    let parts = format!("/v1/keys?rule=five{}", "&key=k".repeat(17));
    assert_eq!(server.get(&parts).status, 400);
}

#[test]
fn a_reset_forgets_what_was_used_and_nothing_else() {
    let server = start(&[ADMIN]);
    for key in ["k", "l"] {
        server.post("/v1/check", &json!({ "rule": "two", "key": key, "cost": 5 }));
    }
    let reset = admin(&server, "DELETE", "/v1/keys/two/k", "");
    let decision = reset.json();
    assert_eq!((reset.status, &decision["allowed"]), (200, &json!(true)));
    assert_eq!(
        (&decision["remaining"], &decision["rules"][1]["remaining"]),
        (&json!(5), &json!(10))
    );
    assert_eq!(server.get("/v1/keys/two/l").json()["limits"][0]["used"], 5);
    assert_eq!(
        server.post("/v1/check", &json!({ "rule": "two", "key": "k", "cost": 5 })).status,
        200
    );
}

#[test]
fn an_explanation_is_in_sentences_and_charges_nothing() {
    let server = start(&[ADMIN]);
    let explain = |rule: &str, key: &str| {
        let message = server.get(&format!("/v1/explain?rule={rule}&key={key}"));
        assert_eq!(message.status, 200, "{}", message.body);
        let message = message.json();
        let sentences = message["sentences"].as_array().unwrap().iter();
        let sentences: Vec<String> = sentences.map(|s| s.as_str().unwrap().to_string()).collect();
        assert!(sentences.iter().all(|sentence| sentence.ends_with('.')), "{sentences:?}");
        (message["allowed"] == true, sentences)
    };
    for _ in 0..2 {
        assert_eq!(
            explain("two", "k"),
            (
                true,
                vec![
                    "two.1 (sliding-log 5/h): 5 of 5 remaining, unused; the next request is \
                     allowed."
                        .into(),
                    "two.2 (10/h): 10 of 10 remaining, unused; the next request is allowed.".into(),
                    "A request would be allowed now.".into(),
                ]
            )
        );
    }
    server.post("/v1/check", &json!({ "rule": "two", "key": "k", "cost": 5 }));
    let (allowed, sentences) = explain("two", "k");
    assert!(!allowed);
    assert!(sentences[0].contains("two.1 (sliding-log 5/h): 0 of 5 remaining"), "{sentences:?}");
    assert!(sentences[0].contains("the next request is denied, retry after"), "{sentences:?}");
    assert!(sentences[1].contains("the next request is allowed"), "{sentences:?}");
    assert!(sentences[2].starts_with("A request would be denied by two.1"), "{sentences:?}");
    let (allowed, sentences) = explain("listed", "foe");
    let denied =
        ["listed denies it: matches its deny list.", "The policy always denies this request."];
    assert_eq!((allowed, &*sentences), (false, &denied.map(String::from)[..]));
    let (allowed, sentences) = explain("listed", "friend");
    let exempt = [
        "listed allows it: matches its allow list.",
        "No limit applies: every request is allowed.",
    ];
    assert_eq!((allowed, &*sentences), (true, &exempt.map(String::from)[..]));
    assert!(explain("workers", "k").0, "a peek at holders");
    let own = server.get("/v1/explain?limit=0/s&key=a&key=b").json();
    assert_eq!((&own["allowed"], own["sentences"].as_array().unwrap().len()), (&json!(false), 2));
}

#[test]
fn a_request_is_explained_by_the_rules_that_apply_to_it() {
    const POLICY: &str = r#"
rules:
  - { name: login, match: { method: POST, path: /login }, key: [client_ip], limits: ["sliding-log 2/h"] }
  - { name: api, key: ["header:x-api-key"], on_missing_key: skip, limits: ["100/h"], cost: "header:x-cost" }
  - { name: staff, match: { path: "/staff/*" }, key: [client_ip], limits: ["5/h"], on_missing_key: deny, deny: ["6.6.6.6"] }
  - { name: friends, match: { path: "/friends" }, key: [client_ip], limits: ["5/h"], allow: ["10.0.0.0/8"] }
  - { name: all, match: { host: example.org }, limits: ["1000/h"], stop: true }
  - { name: late, match: { host: example.org }, limits: ["1000/h"] }
"#;
    let policy = TempFolder::new().write("policy.yaml", POLICY);
    let server = ServerProcess::start(&["--config", policy.to_str().unwrap()], &[]);
    let explain = |query: &str| {
        let message = server.get(&format!("/v1/explain?{query}"));
        assert_eq!(message.status, 200, "{}", message.body);
        let message = message.json();
        let sentences = message["sentences"].as_array().unwrap().iter();
        let sentences: Vec<String> = sentences.map(|s| s.as_str().unwrap().to_string()).collect();
        (message["allowed"] == true, sentences)
    };
    let login = "path=/login&method=POST&client_ip=1.2.3.4&header=X-Api-Key:+k1";
    for _ in 0..2 {
        let (allowed, sentences) = explain(login);
        assert!(allowed);
        assert_eq!(sentences[0], "2 of 6 rules apply: login for 1.2.3.4, api for k1.");
        assert!(
            sentences[1].starts_with("login (sliding-log 2/h): 2 of 2 remaining"),
            "{sentences:?}"
        );
        assert!(sentences[2].starts_with("api (100/h): 100 of 100 remaining"), "{sentences:?}");
        assert_eq!(sentences[3], "A request would be allowed now.");
    }
    server.post("/v1/check", &json!({ "rule": "login", "key": "1.2.3.4", "cost": 2 }));
    let (allowed, sentences) = explain(login);
    assert!(
        !allowed && sentences[3].starts_with("A request would be denied by login"),
        "{sentences:?}"
    );
    let (allowed, sentences) = explain("path=/&header=x-api-key:k1&header=x-cost:101");
    assert!(!allowed && sentences[1].contains("no request is ever allowed"), "{sentences:?}");

    let cases = [
        ("path=/login", "None of 6 rules applies.", "No limit applies: every request is allowed."),
        (
            "path=/x/../login%3Fq=1&method=POST",
            "1 of 6 rules applies: login for requests without client address.",
            "",
        ),
        ("path=/&host=EXAMPLE.org:80", "1 of 6 rules applies: all for all requests together.", ""),
        ("path=/staff/a&client_ip=6.6.6.6", "1 of 6 rules applies: staff.", "staff denies it: "),
        (
            "path=/friends&client_ip=10.1.1.1",
            "1 of 6 rules applies: friends.",
            "friends allows it: ",
        ),
    ];
    for (query, applies, says) in cases {
        let (_, sentences) = explain(query);
        assert_eq!(sentences[0], applies, "{query}");
        assert!(sentences[1].starts_with(says), "{query}: {sentences:?}");
    }
    for (query, field) in [
        ("method=POST", "path"),
        ("path=login", "path"),
        ("path=/&path=/", "path"),
        ("path=/&method=%20", "method"),
        ("path=/&client_ip=me", "client_ip"),
        ("path=/&host=a/b", "host"),
        ("path=/&header=nothing", "header"),
        ("path=/&header=a:b%0Ac", "header"),
        ("path=/&rule=login", "rule"),
    ] {
        let message = server.get(&format!("/v1/explain?{query}"));
        assert_eq!(
            (message.status, &message.json()["field"]),
            (400, &json!(field)),
            "{query}: {}",
            message.body
        );
    }
}

// --- rules -------------------------------------------------------------------------------------

#[test]
fn rules_can_be_seen_set_and_taken_back() {
    let server = start(&[ADMIN]);
    let names = || -> Vec<(String, String)> {
        let rules = server.get("/v1/rules").json();
        let text = |value: &Value| value.as_str().unwrap().to_string();
        let rules = rules["rules"].as_array().unwrap().iter();
        rules.map(|rule| (text(&rule["name"]), text(&rule["origin"]))).collect()
    };
    let own = |name: &str, origin: &str| (name.to_string(), origin.to_string());
    let file = ["five", "two", "workers", "listed"].map(|name| own(name, "file"));
    assert_eq!(names(), file);
    let two = server.get("/v1/rules/two").json();
    let expected =
        json!({ "name": "two", "limits": ["sliding-log 5/h", "10/h"], "origin": "file" });
    assert_eq!(two, expected);
    assert_eq!(server.get("/v1/rules/missing").status, 404);

    let rule = json!({ "key": ["header:x-user"], "limits": ["sliding-log 3/1h"] });
    let made = put(&server, "new", &rule);
    assert_eq!((made.status, &made.json()["origin"]), (201, &json!("runtime")));
    assert_eq!(made.json()["name"], "new", "the name in the address is enough");
    assert_eq!(names(), [file.to_vec(), vec![own("new", "runtime")]].concat());
    let check =
        |key: &str| server.post("/v1/check", &json!({ "rule": "new", "key": key, "cost": 3 }));
    assert_eq!((check("k").status, check("k").status), (200, 429), "in force at once");
    assert_eq!(put(&server, "new", &json!({ "limits": ["sliding-log 9/1h"] })).status, 200);
    assert_eq!(check("k").json()["remaining"], 3, "what was used is kept");

    let file_rule = put(&server, "five", &json!({ "limits": ["sliding-log 50/1h"] }));
    assert_eq!((file_rule.status, &file_rule.json()["origin"]), (200, &json!("runtime")));
    assert_eq!(names()[0], own("five", "runtime"), "in the place of the file's");
    assert_eq!(server.post("/v1/check", &json!({ "rule": "five" })).json()["limit"], 50);

    let metrics = || server.get("/metrics").body;
    assert!(metrics().contains("rule=\"new\""));
    assert_eq!(admin(&server, "DELETE", "/v1/rules/new", "").status, 204);
    assert!(!metrics().contains("rule=\"new\""), "{}", metrics());
    assert_eq!(admin(&server, "DELETE", "/v1/rules/new", "").status, 404);
    assert_eq!(server.post("/v1/check", &json!({ "rule": "new" })).status, 404);
    assert_eq!(admin(&server, "DELETE", "/v1/rules/five", "").status, 204);
    assert_eq!(server.post("/v1/check", &json!({ "rule": "five" })).json()["limit"], 5);
    let refused = admin(&server, "DELETE", "/v1/rules/five", "");
    assert_eq!(refused.status, 409, "the file's own is changed in the file");
    assert!(refused.json()["detail"].as_str().unwrap().contains("policy file"));
    assert_eq!(names(), file);
}

#[test]
fn if_none_match_sets_a_rule_only_if_it_is_absent() {
    let server = start(&[ADMIN]);
    let put_new = |name: &str, only_if: &str| {
        let headers = [("x-tidegate-token", ADMIN.1), ("if-none-match", only_if)];
        server
            .request("PUT", &format!("/v1/rules/{name}"), &headers, r#"{"limits":["1/s"]}"#)
            .status
    };
    assert_eq!(put_new("five", "*"), 412);
    assert_eq!(put_new("new", "*"), 201);
    assert_eq!(put_new("new", "*"), 412);
    assert_eq!(put_new("new", "\"etag\""), 400, "only * has a meaning");
    assert_eq!(server.get("/v1/rules/five").json()["origin"], "file");
}

#[test]
fn a_rule_that_is_set_survives_a_reload_and_not_a_restart() {
    let folder = TempFolder::new();
    let file = folder.write("policy.yaml", POLICY);
    let arguments = ["--config", file.to_str().unwrap()];
    let server = ServerProcess::start(&arguments, &[ADMIN]);
    put(&server, "five", &json!({ "limits": ["sliding-log 50/1h"] }));
    put(&server, "new", &json!({ "limits": ["1/s"] }));
    folder.write("policy.yaml", &format!("{POLICY}  - {{ name: more, limits: [7/s] }}\n"));
    server.signal("HUP");
    let more = wait_until(|| (server.get("/v1/rules/more").status == 200).then_some(()));
    assert!(more.is_some(), "reloaded");
    for (name, origin) in [("five", "runtime"), ("new", "runtime"), ("two", "file")] {
        assert_eq!(server.get(&format!("/v1/rules/{name}")).json()["origin"], origin, "{name}");
    }
    assert_eq!(server.post("/v1/check", &json!({ "rule": "five" })).json()["limit"], 50);
    let restarted = ServerProcess::start(&arguments, &[ADMIN]);
    assert_eq!(restarted.get("/v1/rules/new").status, 404);
    assert_eq!(restarted.get("/v1/rules/five").json()["origin"], "file");
}

#[test]
fn a_rule_that_is_none_is_refused_and_changes_nothing() {
    let server = start(&[ADMIN]);
    let deep = "[".repeat(17) + &"]".repeat(17);
    for (body, field) in [
        (r#"{"limits":["5 per min"]}"#, json!("limits[0]")),
        (r#"{"limits":["5/min"],"colour":"red"}"#, json!("colour")),
        (r#"{"limits":"5/min"}"#, json!("limits")),
        (r#"{"name":"other","limits":["5/min"]}"#, json!("name")),
        (r#"{"limits":["5/min"],"match":{"path":"login"}}"#, json!("match.path")),
        (r#"{"limits":["5/min"],"limits":["6/min"]}"#, Value::Null),
        (r#"{"limits":["5/min"]"#, Value::Null),
        ("", Value::Null),
        (&*format!(r#"{{"limits":{deep}}}"#), Value::Null),
    ] {
        let refused = admin(&server, "PUT", "/v1/rules/five", body);
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        assert_eq!(refused.json().get("field").unwrap_or(&Value::Null), &field, "{body}");
    }
    for name in ["-", "a b", "%ff", &"x".repeat(65)] {
        let path = format!("/v1/rules/{}", name.replace(' ', "%20"));
        let refused = admin(&server, "PUT", &path, r#"{"limits":["5/min"]}"#);
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("name")), "{name}");
    }
    assert_eq!(server.get("/v1/rules/five").json()["origin"], "file");
    assert_eq!(server.get("/v1/rules").json()["rules"].as_array().unwrap().len(), 4);
}

// --- tokens ------------------------------------------------------------------------------------

/// Status of each call without a token, with a wrong one, with the check token and with the admin
/// token.
const CHECKS: [(&str, &str, &str); 5] = [
    ("POST", "/v1/check", r#"{"rule":"five","cost":0}"#),
    ("GET", "/v1/keys/five/k", ""),
    ("GET", "/v1/explain?rule=five", ""),
    ("GET", "/v1/rules", ""),
    ("GET", "/v1/rules/five", ""),
];
const CHANGES: [(&str, &str, &str); 4] = [
    ("DELETE", "/v1/keys/five/k", ""),
    ("DELETE", "/v1/keys?rule=five&key=k", ""),
    ("PUT", "/v1/rules/new", r#"{"limits":["1/s"]}"#),
    ("DELETE", "/v1/rules/new", ""),
];

#[test]
fn a_token_opens_what_it_is_for() {
    for (variables, asking, changing) in [
        (&[][..], [200, 200, 200, 200], [403, 403, 403, 403]),
        (&[ADMIN], [200, 200, 200, 200], [401, 401, 401, 200]),
        (&[CHECK], [401, 401, 200, 401], [403, 403, 403, 403]),
        (&[CHECK, ADMIN], [401, 401, 200, 200], [401, 401, 403, 200]),
    ] {
        let server = start(variables);
        let tokens = [None, Some("wrong"), Some(CHECK.1), Some(ADMIN.1)];
        for ((method, path, body), expected) in CHECKS
            .into_iter()
            .map(|call| (call, asking))
            .chain(CHANGES.into_iter().map(|call| (call, changing)))
        {
            for (token, expected) in tokens.into_iter().zip(expected) {
                let bearer = token.map(|token| format!("Bearer {token}"));
                let shown = [
                    bearer.as_deref().map(|value| ("authorization", value)),
                    token.map(|value| ("x-tidegate-token", value)),
                ];
                for header in shown {
                    let headers: Vec<_> = header.into_iter().collect();
                    let response = server.request(method, path, &headers, body);
                    let status = if response.status < 300 { 200 } else { response.status };
                    let what = format!("{variables:?} {method} {path} {token:?}");
                    // A second delete finds nothing.
                    assert!(
                        status == expected || (status, expected) == (404, 200),
                        "{what}: {status}"
                    );
                    let challenge = (status == 401).then_some("Bearer");
                    assert_eq!(response.header("www-authenticate"), challenge, "{what}");
                }
            }
        }
        for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
            assert_eq!(server.get(path).status, 200, "{path} needs no token");
        }
    }
}

#[test]
fn a_token_can_be_in_a_file_and_is_never_printed() {
    let folder = TempFolder::new();
    let token = folder.write("token", "from-a-file\n");
    let server = start(&[("TIDEGATE_TOKEN_FILE", token.to_str().unwrap()), ADMIN]);
    let get_rules =
        |token: &str| server.request("GET", "/v1/rules", &[("x-tidegate-token", token)], "");
    assert_eq!((get_rules("from-a-file").status, get_rules("from-a-fil").status), (200, 401));
    let everything: String = ["/healthz", "/metrics", "/openapi.json"]
        .into_iter()
        .map(|path| server.get(path).body)
        .chain([get_rules("wrong").body])
        .chain(server.log())
        .collect();
    assert!(!everything.contains("from-a-file") && !everything.contains(ADMIN.1));
}

#[test]
fn the_series_of_a_deleted_rule_end() {
    let server = start(&[ADMIN]);
    assert_eq!(put(&server, "temporary", &json!({ "limits": ["5/h"] })).status, 201);
    let check = |rule: &str| server.post("/v1/check", &json!({ "rule": rule, "key": "k" })).status;
    let series = |rule: &str| {
        let label = format!("rule=\"{rule}\"");
        server.get("/metrics").body.lines().filter(|line| line.contains(&label)).count()
    };
    assert_eq!((check("temporary"), check("five")), (200, 200));
    assert!(series("temporary") > 0 && series("five") > 0);
    let deleted = admin(&server, "DELETE", "/v1/rules/temporary", "");
    assert!(deleted.status < 300, "{deleted:?}");
    let before = series("five");
    assert_eq!((series("temporary"), check("temporary")), (0, 404));
    // Those of the other rules go on, and a rule of the same name begins at zero.
    assert_eq!((check("five"), series("five")), (200, before));
    put(&server, "temporary", &json!({ "limits": ["5/h"] }));
    let allowed = r#"tidegate_checks_total{rule="temporary",outcome="allow",source="memory"}"#;
    assert_eq!((check("temporary"), server.metric(allowed)), (200, Some(1.0)));
}

// --- helpers -----------------------------------------------------------------------------------

fn start(variables: &[(&str, &str)]) -> ServerProcess {
    let file = TempFolder::new().write("policy.yaml", POLICY);
    ServerProcess::start(&["--config", file.to_str().unwrap()], variables)
}

fn admin(server: &ServerProcess, method: &str, path: &str, body: &str) -> ServerResponse {
    server.request(method, path, &[("x-tidegate-token", ADMIN.1)], body)
}

fn put(server: &ServerProcess, name: &str, rule: &Value) -> ServerResponse {
    admin(server, "PUT", &format!("/v1/rules/{name}"), &rule.to_string())
}
