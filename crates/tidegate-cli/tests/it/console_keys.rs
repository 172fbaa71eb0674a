//! The page about one key, over real sockets.
use serde_json::json;
use testkit::redis::RedisServer;
use testkit::server::{ServerProcess, ServerResponse, TempFolder, wait_until};

const POLICY: &str = r#"
adhoc: true
rules:
  - { name: log, key: ["header:x-user"], limits: ["sliding-log 5/1h", "fixed-window 100/d"] }
  - { name: bucket, key: ["client_ip"], limits: ["10/h"], shadow_limits: ["leaky-bucket 5/h"] }
  - { name: pair, key: ["header:x-tenant", "header:x-user"], limits: ["sliding-window 60/1h", "sliding-window 60/1h approximate"] }
  - { name: workers, key: ["header:x-user"], limits: ["concurrency 3 lease 1h"] }
  - { name: all, limits: ["5/h"] }
"#;
const ADMIN: (&str, &str) = ("TIDEGATE_ADMIN_TOKEN", "change-me");
const HOSTILE: &str = "<img src=x onerror=alert(1)>\"'&</textarea></script>";
const SAME_ORIGIN: (&str, &str) = ("sec-fetch-site", "same-origin");

#[test]
fn a_key_is_drawn_under_every_limit() {
    let server = start(&[ADMIN]);
    for key in ["alice", "bob"] {
        server.post("/v1/check", &json!({ "rule": "log", "key": key, "cost": 2 }));
    }
    let page = server.get("/keys?rule=log&key=alice");
    assert_eq!(page.status, 200, "{}", page.body);
    assert_eq!(page.body.matches("class=\"plot gauge\"").count(), 2);
    assert_eq!(page.body.matches("class=\"plot recovery\"").count(), 2);
    assert!(page.body.contains("<title>2 used, 3 of 5 remaining</title>"), "{}", page.body);
    assert!(page.body.contains("A request would be allowed now."));
    assert!(page.body.contains("sliding-log 5/h") && page.body.contains("fixed-window 100/d"));
    assert!(page.body.contains("Refresh") && page.body.contains(" UTC</time>"));
    let unused = server.get("/keys?rule=log&key=missing").body;
    assert!(unused.contains("Unused."));
    assert_eq!(unused.matches("class=\"plot recovery\"").count(), 0);
    server.post("/v1/check", &json!({ "rule": "bucket", "key": "10.0.0.1", "cost": 4 }));
    let bucket = server.get("/keys?rule=bucket&parts=10.0.0.1%0D%0A").body;
    assert!(bucket.contains("4 used, 6 of 10 remaining") && bucket.contains(">shadow</span>"));
    server.post("/v1/check", &json!({ "rule": "pair", "key": ["acme", "bob"], "cost": 7 }));
    let pair = server.get("/keys?rule=pair&parts=acme%0D%0Abob").body;
    assert_eq!(pair.matches("7 used, 53 of 60 remaining").count(), 2, "{pair}");
    server.post("/v1/reserve", &json!({ "rule": "workers", "key": "w", "cost": 2 }));
    let workers = server.get("/keys?rule=workers&key=w").body;
    assert_eq!(workers.matches("class=\"slot taken\"").count(), 2);
    assert_eq!(workers.matches("class=\"slot\"").count(), 1);
    assert!(workers.contains("0 used, 2 held, 1 of 3 remaining"));
    server.post("/v1/check", &json!({ "limit": "7/h", "key": "own", "cost": 7 }));
    let own = server.get("/keys?limit=7/h&key=own").body;
    assert!(
        own.contains("7 used, 0 of 7 remaining") && own.contains("would be denied by"),
        "{own}"
    );
    let all = server.get("/keys?rule=all").body;
    assert!(all.contains(" for all requests"), "{all}");
}

#[test]
fn pictures_bring_no_style_of_their_own() {
    let server = start(&[ADMIN]);
    server.post("/v1/check", &json!({ "rule": "log", "key": "k" }));
    for path in ["/keys?rule=log&key=k", "/playground"] {
        let page = server.get(path);
        assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'self'"));
        for forbidden in ["<style", "style=\"", "<script>", "onload=", "onclick=", "javascript:"] {
            assert!(!page.body.contains(forbidden), "{path} has {forbidden}");
        }
    }
}

#[test]
fn hostile_text_stays_text() {
    let server = start(&[ADMIN]);
    let hidden = "a\u{202e}b\u{1b}[31m\nc\u{0}";
    for text in [HOSTILE, hidden] {
        server.post("/v1/check", &json!({ "rule": "log", "key": text, "id": "one" }));
        let encoded = encode(text);
        for path in [
            format!("/keys?rule=log&key={encoded}"),
            format!("/keys?rule={encoded}&key={encoded}"),
            format!("/keys?limit={encoded}&key={encoded}"),
            format!("/keys?rule=log&parts={encoded}"),
            format!("/keys?rule=log&key=k&done={encoded}"),
        ] {
            let page = server.get(&path).body;
            for bad in ["<img", "</textarea></script>", "\u{202e}", "\u{1b}", "\u{0}"] {
                // Field values are shown as typed.
                let shown = page.split("<textarea").next().unwrap_or_default().to_string()
                    + page.split("</textarea>").nth(1).unwrap_or_default();
                let shown = without_values(&shown);
                assert!(!shown.contains(bad), "{path}: {bad:?} in {shown}");
            }
            assert!(!page.contains("<img"), "{page}");
        }
    }
    let page = server.get(&format!("/keys?rule=log&key={}", encode(HOSTILE))).body;
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"), "{page}");
    assert!(page.contains("1 used, 4 of 5 remaining"), "it is the key that was charged");
    let page = server.get(&format!("/keys?rule=log&key={}", encode(hidden))).body;
    assert!(page.contains(r"a\u{202e}b\u{1b}[31m\nc\u{0}"), "{page}");
    assert!(page.contains("1 used, 4 of 5 remaining"), "it is the key that was charged");
}

#[test]
fn an_invalid_search_reports_the_reason() {
    let server = start(&[ADMIN]);
    for (path, status, expected) in [
        ("/keys", 200, "Enter a rule and a key"),
        ("/keys?rule=missing&key=k", 404, "missing"),
        ("/keys?limit=5/parsec&key=k", 400, "unknown unit"),
        ("/keys?rule=log&limit=5/h&key=k", 400, "not both"),
        ("/keys?rule=log", 400, "key: is required"),
    ] {
        let page = server.get(path);
        assert_eq!(page.status, status, "{path}");
        assert!(page.body.contains(expected), "{path}: {}", page.body);
        assert!(page.body.contains("<form class=\"lookup\""), "the form is still there");
    }
    let long = server.get(&format!("/keys?rule=log&key={}", "k".repeat(1_025)));
    assert_eq!(long.status, 400);
}

#[test]
fn a_reset_needs_the_admin_token_and_a_page_of_the_console() {
    let server = start(&[ADMIN]);
    let spend = || server.post("/v1/check", &json!({ "rule": "log", "key": "a\r\nb", "cost": 5 }));
    assert_eq!(spend().status, 200);
    assert_eq!(spend().status, 429);
    let about = encode("rule=log&key=a%0D%0Ab");
    let form = |token: &str| format!("about={about}&token={token}");
    for (headers, body, status) in [
        (&[SAME_ORIGIN][..], form(""), 401),
        (&[SAME_ORIGIN], form("wrong"), 403),
        (&[], form("change-me"), 403),
        (&[("sec-fetch-site", "cross-site")], form("change-me"), 403),
        (&[("origin", "https://evil.example")], form("change-me"), 403),
    ] {
        let refused = post(&server, "/keys/reset", headers, &body);
        assert_eq!(refused.status, status, "{headers:?} {body}: {}", refused.body);
        assert_eq!(spend().status, 429, "nothing was forgotten");
    }
    let done = post(&server, "/keys/reset", &[SAME_ORIGIN], &form("change-me"));
    assert_eq!(done.status, 303, "{}", done.body);
    let location = done.header("location").unwrap();
    assert_eq!(location, "/keys?rule=log&key=a%0D%0Ab&done=reset");
    assert!(server.get(location).body.contains("The key was reset."));
    assert_eq!(spend().status, 200, "the key begins anew, with every byte of it");
    let unknown = post(
        &server,
        "/keys/reset",
        &[SAME_ORIGIN],
        &format!("about={}&token=change-me", encode("rule=x&key=k")),
    );
    assert_eq!(unknown.status, 404);
    assert_eq!(post(&server, "/keys/reset", &[SAME_ORIGIN], "token=change-me").status, 400);
}

#[test]
fn without_an_admin_token_changes_are_refused_and_the_page_reports_it() {
    let server = start(&[]);
    let page = server.get("/keys?rule=log&key=k").body;
    assert!(page.contains("TIDEGATE_ADMIN_TOKEN") && !page.contains("action=\"/keys/reset\""));
    for path in ["/keys/reset", "/keys/override", "/keys/override/end", "/keys/take-back"] {
        let refused =
            post(&server, path, &[SAME_ORIGIN], &format!("about={}", encode("rule=log&key=k")));
        assert_eq!(refused.status, 403, "{path}");
    }
}

#[test]
fn an_override_holds_for_its_key_until_it_ends() {
    let server = start(&[ADMIN]);
    let limit = |key: &str| {
        let message = server.get(&format!("/v1/keys?rule=log&key={key}")).json();
        message["limits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["limit"].as_str().unwrap().to_string())
            .collect::<Vec<_>>()
    };
    let origin = || server.get("/v1/rules/log").json()["origin"].clone();
    let rules = ["sliding-log 5/h", "fixed-window 100/d"];
    let over = |fields: &str| {
        let body = format!("about={}&token=change-me&{fields}", encode("rule=log&key=alice"));
        post(&server, "/keys/override", &[SAME_ORIGIN], &body)
    };
    for (fields, expected) in [
        ("limits=5/parsec&for=1h", "unknown unit"),
        ("limits=5/s&for=often", "duration"),
        ("limits=5/s&for=40d", "use 1us to 31d"),
        ("limits=5/s+tz+Mars&for=1h", ""),
    ] {
        let refused = over(fields);
        assert_eq!(refused.status, 400, "{fields}");
        assert!(refused.body.contains(expected), "{fields}: {}", refused.body);
        assert_eq!(origin(), "file");
    }
    let cross = format!("about={}&token=change-me&limits=9/h&for=1h", encode("rule=log&key=alice"));
    assert_eq!(
        post(&server, "/keys/override", &[("sec-fetch-site", "cross-site")], &cross).status,
        403
    );
    let done = over("limits=1000/s+%2B+50000/1h&for=1h");
    assert_eq!(done.status, 303, "{}", done.body);
    assert_eq!(
        (limit("alice"), limit("bob")),
        (vec!["1000/s".into(), "50000/h".into()], rules.map(String::from).to_vec())
    );
    let many = server.post("/v1/check", &json!({ "rule": "log", "key": "alice", "cost": 500 }));
    assert_eq!(many.status, 200, "{}", many.body);
    let page = server.get(done.header("location").unwrap()).body;
    assert!(
        page.contains("The override is active.") && page.contains("set by admin token, 127.0.0.1")
    );
    assert!(page.contains("1000/s + 50000/h"), "{page}");
    // Another override replaces it, and expires.
    assert_eq!(over("limits=7/h&for=12s").status, 303);
    assert_eq!(limit("alice"), ["7/h"]);
    wait_until(|| (limit("alice") == rules).then_some(())).expect("it ends by itself");
    assert_eq!(origin(), "file");
    let back = || {
        let body = format!("about={}&token=change-me", encode("rule=log&key=alice"));
        post(&server, "/keys/take-back", &[SAME_ORIGIN], &body)
    };
    assert_eq!(back().status, 409, "no run-time rule replaces it");
    let rule = json!({ "limits": ["9/h"] }).to_string();
    let put =
        server.request("PUT", "/v1/rules/log", &[("authorization", "Bearer change-me")], &rule);
    assert_eq!((put.status, origin()), (200, json!("runtime")));
    assert!(server.get("/keys?rule=log&key=bob").body.contains("This rule was set at run time"));
    assert_eq!((back().status, origin()), (303, json!("file")));
}

#[test]
fn an_override_that_is_ended_leaves_the_rule_as_the_file_has_it() {
    let server = start(&[ADMIN]);
    let about = encode("rule=bucket&key=10.0.0.1");
    let set = format!("about={about}&token=change-me&limits=77/h&for=1h");
    assert_eq!(post(&server, "/keys/override", &[SAME_ORIGIN], &set).status, 303);
    assert_eq!(server.get("/v1/overrides").json()["overrides"][0]["limits"][0], "77/h");
    assert_eq!(server.get("/v1/rules/bucket").json()["origin"], "file");
    let ended = post(
        &server,
        "/keys/override/end",
        &[SAME_ORIGIN],
        &format!("about={about}&token=change-me"),
    );
    assert_eq!(ended.status, 303, "{}", ended.body);
    assert_eq!(server.get("/v1/overrides").json()["overrides"], json!([]));
    assert!(server.get(ended.header("location").unwrap()).body.contains("The override has ended."));
    let everybody = format!("about={}&token=change-me&limits=77/h&for=1h", encode("rule=all"));
    assert_eq!(
        post(&server, "/keys/override", &[SAME_ORIGIN], &everybody).status,
        400,
        "there is no key"
    );
}

#[test]
fn after_signing_in_the_page_of_the_key_is_shown() {
    let server = start(&[ADMIN, ("TIDEGATE_TOKEN", "check-me")]);
    let response = server.get("/keys?rule=log&key=k");
    assert_eq!(response.status, 303);
    let login = response.header("location").unwrap();
    assert_eq!(login, "/login?next=%2Fkeys%3Frule%3Dlog%26key%3Dk");
    let signed = post(
        &server,
        "/login",
        &[SAME_ORIGIN],
        &format!("token=change-me&next={}", encode("/keys?rule=log&key=k")),
    );
    assert_eq!((signed.status, signed.header("location")), (303, Some("/keys?rule=log&key=k")));
    let cookie = signed.header("set-cookie").unwrap().split(';').next().unwrap().to_string();
    let page = server.request("GET", "/keys?rule=log&key=k", &[("cookie", &cookie)], "");
    assert!(page.body.contains("action=\"/keys/reset\"") && !page.body.contains("name=\"token\""));
    let body = format!("about={}", encode("rule=log&key=k"));
    let done = post(&server, "/keys/reset", &[SAME_ORIGIN, ("cookie", &cookie)], &body);
    assert_eq!(done.status, 303, "{}", done.body);
    let cross = post(
        &server,
        "/keys/reset",
        &[("sec-fetch-site", "cross-site"), ("cookie", &cookie)],
        &body,
    );
    assert_eq!(cross.status, 403);
}

#[test]
fn a_key_in_redis_is_drawn_alike_and_an_unavailable_store_is_reported() {
    let mut redis = RedisServer::start();
    let policy = format!("store: \"{}\"\nstore_deadline: 2s\n{POLICY}", redis.url());
    let server = start_with(&policy, &[ADMIN]);
    let charged = || {
        let message = server
            .post("/v1/check", &json!({ "rule": "log", "key": "k", "cost": 2, "id": "once" }));
        (message.json()["source"] == "redis").then_some(())
    };
    wait_until(charged).expect("redis decides");
    let page = server.get("/keys?rule=log&key=k").body;
    assert!(page.contains("2 used, 3 of 5 remaining") && page.contains(">redis</span>"), "{page}");
    assert_eq!(page.matches("class=\"plot recovery\"").count(), 2);
    redis.kill();
    let message =
        wait_until(|| Some(server.get("/keys?rule=log&key=k")).filter(|page| page.status == 503));
    let message = message.expect("it reports the unavailable store").body;
    assert!(
        message.contains("role=\"alert\"") && message.contains("<form class=\"lookup\""),
        "{message}"
    );
    let reset = post(
        &server,
        "/keys/reset",
        &[SAME_ORIGIN],
        &format!("about={}&token=change-me", encode("rule=log&key=k")),
    );
    assert_eq!(reset.status, 503, "{}", reset.body);
}

fn start(variables: &[(&str, &str)]) -> ServerProcess {
    start_with(POLICY, variables)
}

fn start_with(policy: &str, variables: &[(&str, &str)]) -> ServerProcess {
    let file = TempFolder::new().write("policy.yaml", policy);
    ServerProcess::start(&["--config", file.to_str().unwrap(), "--console-host", "test"], variables)
}

fn post(
    server: &ServerProcess,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> ServerResponse {
    let form = [("content-type", "application/x-www-form-urlencoded")];
    server.request("POST", path, &[&form, headers].concat(), body)
}

/// A page without the values of its fields.
fn without_values(page: &str) -> String {
    let mut rest = page.split(" value=\"");
    let first = rest.next().unwrap_or_default().to_string();
    rest.fold(first, |page, part| page + part.split_once('"').map_or("", |(_, after)| after))
}

pub(crate) fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}
