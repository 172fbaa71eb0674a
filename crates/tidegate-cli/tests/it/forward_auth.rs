//! Forward-auth: direct requests, and real proxies configured as in their recipes.
use std::io::Write as _;
use std::net::Ipv4Addr;

use serde_json::json;
use testkit::proxy::{ProxyProcess, ProxyProgram, ProxyUpstream};
use testkit::server::{RawHttpConnection, ServerProcess, ServerResponse};

const POLICY: &str = r#"
rules:
  - { name: login, match: { method: POST, path: /login }, key: [client_ip], limits: ["sliding-log 2/1h"] }
  - { name: host, match: { host: shop.example, path: /host }, limits: ["sliding-log 1/1h"] }
  - { name: plan, match: { path: /plan, header: { x-plan: "free*" } }, limits: ["sliding-log 1/1h"] }
  - { name: key, match: { path: /key }, key: ["header:x-key"], on_missing_key: deny, limits: ["sliding-log 1/1h"] }
  - { name: skip, match: { path: /skip }, key: ["header:x-key"], on_missing_key: skip, limits: ["sliding-log 1/1h"] }
  - { name: tenant, match: { path: "/t/{id}/*" }, key: ["path:id", "query:u", "cookie:c"], limits: ["sliding-log 1/1h"] }
  - { name: bearer, match: { path: /bearer }, key: [bearer], limits: ["sliding-log 1/1h"] }
  - { name: cost, match: { path: /cost }, cost: "header:x-cost", limits: ["sliding-log 10/1h"] }
  - { name: wide, match: { path: /both/* }, limits: ["sliding-log 10/1h"] }
  - { name: narrow, match: { path: /both/x }, limits: ["sliding-log 2/1h"], stop: true }
  - { name: never, match: { path: /both/x }, limits: ["0/s"] }
  - { name: mixed, match: { path: /mixed }, limits: ["concurrency 1", "sliding-log 2/1h"] }
"#;

// --- direct requests ----------------------------------------------------------------------------

#[test]
fn a_request_is_allowed_and_denied_by_the_rules_that_match_it() {
    let server = ServerProcess::with_policy(POLICY);
    let login = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login")];
    for remaining in ["1", "0"] {
        let allowed = authorize(&server, &login);
        assert_eq!((allowed.status, &*allowed.body), (200, ""));
        assert_eq!(allowed.header("x-ratelimit-remaining"), Some(remaining));
        assert_eq!(allowed.header("ratelimit-policy"), Some(r#""login";q=2;w=3600"#));
        assert_eq!(allowed.header("retry-after"), None);
    }
    let denied = authorize(&server, &login);
    assert_eq!(denied.status, 429);
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&wait), "{wait}");
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    let expected = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": ["login"],
    });
    assert_eq!(denied.json(), expected);
    // The same request in nginx's headers, and in other spellings.
    for uri in ["/login", "/login?next=/", "//login", "/./login", "/x/../login", "/%6Cogin"] {
        let denied = authorize(&server, &[("x-original-method", "POST"), ("x-original-uri", uri)]);
        assert_eq!(denied.status, 429, "{uri}");
    }
    let url = "https://shop.example/login";
    let message = [("x-original-method", "POST"), ("x-original-url", url)];
    assert_eq!(authorize(&server, &message).status, 429);
    // Other requests match no rule and carry no limit headers.
    for (method, uri) in [("GET", "/login"), ("POST", "/logins"), ("POST", "/LOGIN")] {
        let free = authorize(&server, &[("x-forwarded-method", method), ("x-forwarded-uri", uri)]);
        assert_eq!((free.status, free.header("ratelimit")), (200, None), "{method} {uri}");
    }
}

#[test]
fn a_denial_for_a_missing_key_names_it_and_has_a_status_of_choice() {
    let server = ServerProcess::with_policy(POLICY);
    let request = |query: &str, headers: &[(&str, &str)]| {
        let mut http = RawHttpConnection::connect(server.http);
        let headers = [&[("x-forwarded-uri", "/key")], headers].concat();
        http.send("GET", &format!("/v1/authorize{query}"), &headers, "");
        http.receive()
    };
    let detail = r#"the request has no header x-key, by which rule "key" counts"#;
    for (query, status) in [
        ("", 429),
        ("?deny_status=403", 403),
        ("?missing_key_status=401", 401),
        ("?deny_status=403&missing_key_status=400", 400),
    ] {
        let denied = request(query, &[]);
        assert_eq!((denied.status, &denied.json()["detail"]), (status, &json!(detail)), "{query}");
        assert_eq!(denied.header("www-authenticate").is_some(), status == 401, "{query}");
        assert_eq!(denied.header("retry-after"), None, "{query}");
    }
    // With a key, the limit denies with its own status.
    let with_key = [("x-key", "k")];
    assert_eq!(request("?missing_key_status=401", &with_key).status, 200);
    let denied = request("?missing_key_status=401", &with_key);
    assert_eq!((denied.status, &denied.json()["detail"]), (429, &json!(null)));
    let refused = request("?missing_key_status=200", &[]);
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("missing_key_status")));

    let explained = server.get("/v1/explain?path=/key").json();
    let sentence = "key denies it: the request has no header x-key.";
    assert_eq!(explained["sentences"][1], sentence, "{explained}");
    let explained = server.get("/v1/explain?path=/t/7/x").json();
    let first = "1 of 12 rules applies: tenant for requests without query parameter u.";
    assert_eq!(explained["sentences"][0], first);
    let limit = &explained["limits"][0];
    let expected = json!({
        "policy": "tenant", "rule": "tenant", "limit": "sliding-log 1/h", "capacity": 1,
        "remaining": 1, "reset_after_ms": 0, "retry_after_ms": 0,
    });
    assert_eq!(*limit, expected);
}

#[test]
fn every_part_of_a_request_can_be_matched_and_counted() {
    let server = ServerProcess::with_policy(POLICY);
    for (name, first, second, status) in [
        (
            "host",
            "/host\nx-forwarded-host: shop.example",
            "/host\nx-forwarded-host: SHOP.example:443",
            429,
        ),
        ("another host", "/host", "/host\nx-forwarded-host: other.example", 200),
        ("header", "/plan\nx-plan: free-2", "/plan\nx-plan: freedom", 429),
        ("another value", "/plan\nx-plan: paid", "/plan\nx-plan: paid", 200),
        ("key", "/key\nx-key: a", "/key\nx-key: a", 429),
        ("another key", "/key\nx-key: b", "/key\nx-key: c", 200),
        ("no key, skipped", "/skip", "/skip", 200),
        ("parts", "/t/7/x?u=1\ncookie: c=2", "/t/7/y?z&u=1\ncookie: d=1; c=2", 429),
        ("another part", "/t/8/x?u=1\ncookie: c=2", "/t/8/x?u=2\ncookie: c=2", 200),
        ("bearer", "/bearer\nauthorization: Bearer tok", "/bearer\nauthorization: bearer tok", 429),
        (
            "another bearer",
            "/bearer\nauthorization: Bearer x",
            "/bearer\nauthorization: Bearer y",
            200,
        ),
    ] {
        let authorize = |message: &str| {
            let (uri, more) = message.split_once('\n').unwrap_or((message, ""));
            let mut headers = vec![("x-forwarded-method", "GET"), ("x-forwarded-uri", uri)];
            headers.extend(more.split_once(": "));
            authorize(&server, &headers).status
        };
        assert_eq!((authorize(first), authorize(second)), (200, status), "{name}");
    }
    let denied = authorize(&server, &[("x-forwarded-uri", "/key")]);
    assert_eq!(
        (denied.status, denied.header("retry-after")),
        (429, None),
        "denied for want of a key"
    );
    let long = "k".repeat(1_025);
    let refused = authorize(&server, &[("x-forwarded-uri", "/key"), ("x-key", &long)]);
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("key")));
}

#[test]
fn every_matching_rule_applies_until_one_stops() {
    let server = ServerProcess::with_policy(POLICY);
    let authorize =
        |uri: &str| authorize(&server, &[("x-forwarded-method", "GET"), ("x-forwarded-uri", uri)]);
    let first = authorize("/both/x");
    assert_eq!(
        first.header("ratelimit-policy"),
        Some(r#""wide";q=10;w=3600, "narrow";q=2;w=3600"#)
    );
    assert_eq!(
        (first.status, authorize("/both/x").status, authorize("/both/x").status),
        (200, 200, 429)
    );
    let left = server.post("/v1/check", &json!({ "rule": "wide", "cost": 0 })).json();
    assert_eq!(left["remaining"], 8, "the denied one charged no rule");
    assert_eq!(authorize("/both/y").header("x-ratelimit-remaining"), Some("7"));
    // Forward-auth holds no slots, so concurrency is not counted.
    let mixed = authorize("/mixed");
    assert_eq!(
        (mixed.status, authorize("/mixed").status, authorize("/mixed").status),
        (200, 200, 429)
    );
    assert_eq!(mixed.header("ratelimit-policy"), Some(r#""mixed.2";q=2;w=3600"#));
}

#[test]
fn the_client_is_the_last_address_that_is_no_trusted_proxy() {
    let policy = |trusted: &str| {
        let rule = r#"  - { name: all, key: [client_ip], limits: ["sliding-log 1/1h"] }"#;
        format!("{trusted}rules:\n{rule}\n")
    };
    for (trusted, first, second, same) in [
        ("", "9.9.9.9", "9.9.9.9", true),
        ("", "9.9.9.9", "8.8.8.8", false),
        ("", "6.6.6.6, 9.9.9.9", "7.7.7.7, 9.9.9.9", true),
        ("", "9.9.9.9, 6.6.6.6", "9.9.9.9, 7.7.7.7", false),
        ("", "9.9.9.9, 127.0.0.5", "9.9.9.9", true),
        ("", "::ffff:9.9.9.9", "9.9.9.9:4711", true),
        ("", "2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true),
        ("", "2001:db8:1:2::1", "[2001:db8:1:3::1]:80", false),
        ("", "unknown", "garbage", true),
        (
            "trusted_proxies: [\"127.0.0.0/8\", \"10.0.0.0/8\"]\n",
            "9.9.9.9, 10.1.1.1",
            "9.9.9.9, 10.2.2.2",
            true,
        ),
        ("trusted_proxies: []\n", "9.9.9.9", "8.8.8.8", true),
        ("trusted_proxies: [\"10.0.0.0/8\"]\n", "9.9.9.9", "8.8.8.8", true),
    ] {
        let server = ServerProcess::with_policy(&policy(trusted));
        let from = |client: &str| {
            authorize(&server, &[("x-forwarded-uri", "/"), ("x-forwarded-for", client)]).status
        };
        let expected = (200, if same { 429 } else { 200 });
        assert_eq!((from(first), from(second)), expected, "{trusted}{first} | {second}");
    }
}

#[test]
fn the_cost_counts_only_from_a_trusted_proxy() {
    for (trusted, cost, left) in [
        ("", "4", "6"),
        ("", "0", "9"),
        ("", "-3", "9"),
        ("", "much", "9"),
        ("trusted_proxies: []\n", "4", "9"),
    ] {
        let server = ServerProcess::with_policy(&format!("{trusted}{POLICY}"));
        let response = authorize(&server, &[("x-forwarded-uri", "/cost"), ("x-cost", cost)]);
        assert_eq!(response.header("x-ratelimit-remaining"), Some(left), "{trusted}{cost}");
    }
}

#[test]
fn a_denial_has_the_requested_status() {
    let server = ServerProcess::with_policy(POLICY);
    let authorize = |query: &str| {
        let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/host"), HOST];
        server.request("GET", &format!("/v1/authorize{query}"), &headers, "")
    };
    assert_eq!(authorize("?deny_status=403").status, 200, "nothing to deny yet");
    for (query, status) in [
        ("", 429),
        ("?deny_status=403", 403),
        ("?deny_status=429", 429),
        ("?deny_status=503&x=y", 503),
    ] {
        let denied = authorize(query);
        assert_eq!(denied.status, status, "{query}");
        assert_eq!(denied.json()["status"], status, "{query}");
        assert!(denied.header("retry-after").is_some(), "{query}");
        assert_eq!(denied.header("cache-control"), Some("no-store"), "{query}");
    }
    for status in
        ["200", "204", "302", "399", "600", "99", "-1", "", "abc", "403.0", "403&deny_status=404"]
    {
        let refused = authorize(&format!("?deny_status={status}"));
        let problem = refused.json();
        assert_eq!((refused.status, &problem["field"]), (400, &json!("deny_status")), "{status}");
    }
}

#[test]
fn a_request_with_a_missing_or_ambiguous_target_is_refused() {
    let server = ServerProcess::with_policy(POLICY);
    for headers in [
        &[][..],
        &[("x-forwarded-method", "POST")],
        &[("x-forwarded-uri", "login")],
        &[("x-forwarded-uri", "")],
        &[("x-original-uri", "?a=b")],
        // One of the two headers comes from the client.
        &[("x-forwarded-uri", "/login"), ("x-original-uri", "/free")],
        &[("x-forwarded-uri", "/login"), ("x-original-uri", "/LOGIN")],
        &[("x-forwarded-uri", "/login"), ("x-original-uri", "/login?a")],
        &[("x-forwarded-uri", "/login"), ("x-original-url", "http://a/b/login")],
        &[("x-original-uri", "/free"), ("x-original-url", "http://a/login")],
        &[
            ("x-forwarded-uri", "/login"),
            ("x-forwarded-uri", "/free"),
            ("x-original-uri", "/login"),
        ],
        &[("x-forwarded-uri", "/a"), ("x-forwarded-method", "GET"), ("x-original-method", "POST")],
        &[("x-forwarded-uri", "/a"), ("x-forwarded-host", "a"), ("x-original-host", "b")],
        &[("x-forwarded-uri", "/a"), ("x-forwarded-host", "a"), ("x-original-url", "http://b/a")],
    ] {
        let refused = authorize(&server, headers);
        assert_eq!(refused.status, 400, "{headers:?}: {}", refused.body);
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
        assert!(refused.json()["field"].is_string(), "{headers:?}: {}", refused.body);
    }
    let agreed = [
        ("x-forwarded-uri", "/login"),
        ("x-original-uri", "/login"),
        ("x-original-url", "http://Shop.example/login"),
        ("x-forwarded-host", "shop.example:80"),
        ("x-original-host", "shop.example"),
        ("x-forwarded-method", "POST"),
        ("x-original-method", "POST"),
    ];
    assert_eq!(authorize(&server, &agreed).status, 200, "both headers agree");
}

#[test]
fn a_proxy_may_use_any_method_which_counts_unless_a_header_overrides_it() {
    let server = ServerProcess::with_policy(POLICY);
    let authorize = |method: &str, more: &[(&str, &str)]| {
        let headers = [&[("x-forwarded-uri", "/login")], more].concat();
        server.request(method, "/v1/authorize", &headers, "").header("ratelimit").is_some()
    };
    assert!(authorize("POST", &[]), "the rule is about POST");
    assert!(!authorize("GET", &[]));
    assert!(!authorize("POST", &[("x-forwarded-method", "GET")]), "the forwarded method counts");
    assert!(authorize("GET", &[("x-original-method", "POST")]));
}

#[test]
fn the_proxy_shows_its_token_in_a_header_of_its_own() {
    let file = testkit::server::TempFolder::new().write("policy.yaml", POLICY);
    let arguments = ["--config", file.to_str().unwrap()];
    let variables = [("TIDEGATE_TOKEN", "check-me"), ("TIDEGATE_ADMIN_TOKEN", "change-me")];
    let server = ServerProcess::start(&arguments, &variables);
    for (name, token, status) in [
        ("x-other", "check-me", 401),
        ("x-tidegate-token", "wrong", 401),
        ("authorization", "Bearer check-me", 401),
        ("x-tidegate-token", "check-me", 200),
        ("x-tidegate-token", "change-me", 200),
    ] {
        let response = authorize(&server, &[("x-forwarded-uri", "/"), (name, token)]);
        assert_eq!(response.status, status, "{name}: {token}");
    }
}

// --- behind real proxies -----------------------------------------------------------------------

#[test]
fn nginx_checks_before_it_forwards_a_request() {
    behind(ProxyProgram::Nginx);
}

#[test]
fn caddy_checks_before_it_forwards_a_request() {
    behind(ProxyProgram::Caddy);
}

const LOGIN: &str = r#"
rules:
  - { name: login, match: { method: POST, path: /login }, key: [client_ip], limits: ["sliding-log 5/1m"] }
"#;

const CLIENT: Ipv4Addr = Ipv4Addr::LOCALHOST;
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn behind(program: ProxyProgram) {
    let server = ServerProcess::with_policy(LOGIN);
    let upstream = ProxyUpstream::start();
    let Some(proxy) = ProxyProcess::start(program, &server, &upstream) else { return };
    let login =
        |from, headers: &[(&str, &str)]| proxy.request(from, "POST", "/login", headers, "me");

    let passed = proxy.request(CLIENT, "GET", "/some/page?a=b", &[], "");
    assert_eq!((passed.status, &*passed.body), (200, "GET /some/page?a=b"), "passed through");
    for _ in 0..5 {
        let passed = login(CLIENT, &[]);
        assert_eq!((passed.status, &*passed.body), (200, "POST /login me"), "body and all");
    }
    let reached = upstream.requests().len();
    let denied = login(CLIENT, &[]);
    assert_eq!(denied.status, 429, "the sixth: {denied:?}");
    let wait: u64 = denied.header("retry-after").expect("a time to come back").parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    let state = denied.header("ratelimit").expect("how the limit stands");
    assert!(state.starts_with(r#""login";r=0;t="#), "{state}");

    for headers in SPOOFS {
        let denied = login(CLIENT, headers);
        assert_eq!(denied.status, 429, "{headers:?}");
    }
    for path in ["//login", "/./login", "/%6cogin", "/x/../login", "/login?next=/"] {
        let denied = proxy.request(CLIENT, "POST", path, &[], "");
        assert_eq!(denied.status, 429, "{path}");
    }
    assert_eq!(upstream.requests().len(), reached, "nothing that was denied came through");
    assert_eq!(login(OTHER, &[]).status, 200, "another client");
    assert_eq!(proxy.request(CLIENT, "GET", "/login", &[], "").status, 200, "another method");
    for headers in SPOOFS {
        let passed = proxy.request(CLIENT, "GET", "/free", headers, "");
        assert_eq!(passed.status, 200, "forged headers lock no client out: {headers:?}");
    }

    let reached = upstream.requests().len();
    drop(server);
    let unanswered = proxy.request(CLIENT, "GET", "/some/page", &[], "");
    let expected = if program == ProxyProgram::Nginx { 500 } else { 502 };
    assert_eq!(unanswered.status, expected, "without a response nothing passes");
    assert_eq!(upstream.requests().len(), reached);
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "{}: as in its recipe", program.name()).unwrap();
}

/// Headers that a client may forge.
const SPOOFS: &[&[(&str, &str)]] = &[
    &[("x-forwarded-for", "9.9.9.9")],
    &[("x-forwarded-for", "9.9.9.9, 8.8.8.8"), ("x-forwarded-for", "7.7.7.7")],
    &[("x-real-ip", "9.9.9.9"), ("forwarded", "for=9.9.9.9")],
    &[("x-forwarded-uri", "/free")],
    &[("x-forwarded-uri", "/login"), ("x-forwarded-uri", "/free")],
    &[("x-forwarded-method", "GET")],
    &[("x-forwarded-host", "other.example")],
    &[("x-original-uri", "/free")],
    &[("x-original-url", "http://shop.example/free")],
    &[("x-original-method", "GET")],
    &[("x-original-host", "other.example")],
    &[("X-FORWARDED-URI", "/free"), ("X-Original-URI", "/free")],
];

// --- helpers -----------------------------------------------------------------------------------

const HOST: (&str, &str) = ("x-forwarded-host", "shop.example");

fn authorize(server: &ServerProcess, headers: &[(&str, &str)]) -> ServerResponse {
    server.request("GET", "/v1/authorize", headers, "")
}

#[test]
fn no_spelling_of_a_path_slips_past_its_rule() {
    let policy = "rules:
  - { name: at, match: { path: /@admin }, limits: [2/h] }
  - { name: accent, match: { path: /café }, limits: [2/h] }
  - { name: escaped, match: { path: '/caf%c3%a9s/*' }, limits: [2/h] }
  - { name: login, match: { path: /login }, limits: [2/h] }
  - { name: account, match: { path: /account }, limits: [2/h] }
";
    let server = ServerProcess::with_policy(policy);
    for spellings in [
        ["/login;x=1", "/;x/login", "/login%2F", "/%2Flogin"],
        ["/a/..;/account", "/account;a=b;c/", "/account/;x", "/./;x/account%2f"],
        ["/@admin", "/%40admin", "/%40%61dmin", "//@admin/"],
        ["/caf%C3%A9", "/caf%c3%a9", "/caf%C3%A9/", "/x/../c%61f%c3%A9"],
        ["/caf%C3%A9s/a", "/caf%c3%a9s/b", "/c%61f%C3%A9s/", "/caf%C3%A9s//c"],
    ] {
        let authorize =
            |uri| server.request("GET", "/v1/authorize", &[("x-forwarded-uri", uri)], "").status;
        assert_eq!(spellings.map(authorize), [200, 200, 429, 429], "{spellings:?}");
    }
}

#[test]
fn what_a_client_brings_about_is_a_denial_to_the_proxy() {
    let policy = "rules: [{ name: api, key: ['header:x-api-key'], limits: [2/h] }]";
    let server = ServerProcess::with_policy(policy);
    let long = "k".repeat(1_100);
    for headers in [
        vec![("x-original-uri", "/x"), ("x-api-key", &*long)],
        vec![("x-original-uri", "/x"), ("x-forwarded-uri", "/y")],
    ] {
        let authorize = |path: &str| server.request("GET", path, &headers, "").status;
        assert_eq!(authorize("/v1/authorize?deny_status=403"), 403, "{headers:?}");
        assert_eq!(authorize("/v1/authorize"), 400, "{headers:?}");
    }
    let unset = server.request("GET", "/v1/authorize?deny_status=403", &[], "");
    assert_eq!(unset.status, 400, "the proxy does not name the request");
}

/// Services differ in which of several values they use. If one were counted, a client could pass
/// another to the service.
#[test]
fn a_key_that_is_named_twice_is_missing() {
    let policy = "
rules:
  - { name: session, match: { path: /c }, key: ['cookie:sid'], limits: [5/h] }
  - { name: user, match: { path: /q }, key: ['query:user'], limits: [5/h] }
  - { name: api, match: { path: /h }, key: ['header:x-api-key'], limits: [5/h] }
  - { name: plan, match: { path: /m, header: { x-plan: free } }, key: [client_ip], limits: [5/h] }
";
    let server = ServerProcess::with_policy(policy);
    let allowed = |request: &dyn Fn(usize) -> Vec<(&'static str, String)>| {
        let statuses = (0..12).map(|nth| {
            let lines = request(nth);
            let lines: Vec<_> = lines.iter().map(|(name, value)| (*name, &**value)).collect();
            authorize(&server, &lines).status
        });
        statuses.filter(|status| *status == 200).count()
    };
    let uri = |uri: String| ("x-forwarded-uri", uri);
    let cookie = |nth: usize| vec![uri("/c".into()), ("cookie", format!("sid=x{nth}; sid=real"))];
    // Requests without a key share one.
    assert_eq!(allowed(&cookie), 5);
    assert_eq!(allowed(&|nth| vec![uri(format!("/q?user=x{nth}&user=real"))]), 5);
    let keys = |nth: usize| [format!("x{nth}"), "real".into()].map(|key| ("x-api-key", key));
    assert_eq!(allowed(&|nth| [vec![uri("/h".into())], keys(nth).into()].concat()), 5);
    assert_eq!(allowed(&|_| vec![uri("/q?user=real&user=real".into())]), 5, "equal copies");
    let plans = ["paid", "free"].map(|plan| ("x-plan", plan.to_string()));
    assert_eq!(allowed(&|_| [vec![uri("/m".into())], plans.clone().into()].concat()), 5);
    let two = |_| vec![uri("/q?user=a".into()), uri("/q?user=b".into())];
    assert_eq!(allowed(&two), 0, "two different requests");
}
