//! Bytes of a request that try to become a line, a header, a label, a reply or another key.

use std::collections::BTreeSet;
use std::io::Write;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use testkit::envoy::{descriptor, request};
use testkit::redis::RedisServer;
use testkit::resp::{RespConnection, RespReply};
use testkit::server::{ServerProcess, TempFolder, wait_until};

/// Marker that is found if a text takes effect.
const MARK: &str = "injected";

/// Texts with line breaks, quotes and terminal escape sequences.
const NASTY: [&str; 12] = [
    "a\r\n+injected\r\n",
    "a\r\n-ERR injected\r\n",
    "a\r\ninjected: 1\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "a\ninjected 1\n",
    "a\"} injected 1\n#",
    "a\0injected",
    "\u{1b}[2Jinjected",
    "a\u{85}injected",
    "a\u{2028}injected",
    "a\u{202e}injected",
    "{a}injected",
    "\",\"injected\":\"1",
];

fn is_control(c: char) -> bool {
    c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c)
}

fn start(variables: &[(&str, &str)]) -> (ServerProcess, TempFolder) {
    let folder = TempFolder::new();
    let envoy = "domain: edge\ndescriptors: [{ key: k, limit: 1000/s, value_to_metric: true }]\n";
    folder.write("edge.yaml", envoy);
    let path = folder.path("").to_str().unwrap().to_string();
    let variables = [&[("TIDEGATE_LOG", "trace")][..], variables].concat();
    (ServerProcess::start(&["--envoy-config", &path, "--envoy-stats"], &variables), folder)
}

/// Every log line is one JSON object without control characters.
fn assert_log_is_whole(server: &ServerProcess) {
    let log = server.log();
    assert!(!log.is_empty());
    for line in log {
        assert!(serde_json::from_str::<Value>(&line).is_ok(), "{line:?}");
        assert!(!line.contains(is_control), "{line:?}");
    }
    let metrics = server.get("/metrics").body;
    for line in metrics.lines() {
        let is_known = ["#", "tidegate_", "ratelimit_"].iter().any(|start| line.starts_with(start));
        assert!(is_known && !line.starts_with(MARK), "{line:?}");
    }
}

#[test]
fn no_resp_reply_contains_a_line_of_the_request() {
    let (server, _folder) = start(&[("TIDEGATE_ADMIN_TOKEN", "admin")]);
    for nasty in NASTY {
        let mut client = RespConnection::connect(server.resp);
        let commands: [&[&str]; 21] = [
            &[nasty],
            &["TG.CHECK", nasty, "k"],
            &["TG.CHECK", "login", nasty],
            &["TG.CHECK", "login", "k", nasty, "1"],
            &["TG.CHECK", "login", "k", "ID", nasty],
            &["TG.PEEK", nasty, nasty],
            &["TG.LIMIT", nasty, "k"],
            &["TG.LIMIT", "5/min", nasty, "COST", nasty],
            &["TG.MCHECK", "1", nasty, nasty, nasty],
            &["TG.RESERVE", "login", nasty, "1", "TTL", nasty],
            &["TG.COMMIT", nasty, "1"],
            &["TG.RENEW", nasty, "1"],
            &["TG.EXTEND", nasty, "1", nasty, nasty, "1"],
            &["TG.RESET", nasty, nasty],
            &["CL.THROTTLE", nasty, "1", "1", "1"],
            &["CL.THROTTLE", "k", nasty, "1", "1"],
            &["AUTH", nasty],
            &["HELLO", "3", "AUTH", nasty, nasty, "SETNAME", nasty],
            &["CLIENT", "SETNAME", nasty],
            &["CLIENT", nasty],
            &["CONFIG", "GET", nasty],
        ];
        for words in commands {
            let reply = client.send_args(words);
            if let RespReply::Simple(text) | RespReply::Error(text) = &reply {
                // Quoted names are escaped, so that they stay within their line.
                assert!(!text.chars().any(char::is_control), "{words:?}: {text:?}");
                assert!(!text.starts_with(MARK), "{words:?}: {text:?}");
            }
            // The next reply belongs to the next command.
            assert_eq!(
                client.send_args(&["ECHO", "in step"]),
                RespReply::Bulk(b"in step".into()),
                "{words:?}"
            );
        }
    }
    assert_log_is_whole(&server);
}

#[test]
fn no_response_header_contains_a_line_of_the_request() {
    let (server, _folder) = start(&[("TIDEGATE_ADMIN_TOKEN", "admin")]);
    let percent = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let mut sent = 0;
    for nasty in NASTY {
        let body = |field: &str| json!({ "rule": "login", "key": "k", field: nasty }).to_string();
        let coded = percent(nasty);
        let mut requests: Vec<(String, String, String)> = Vec::new();
        for path in ["/v1/check", "/v1/record", "/v1/reserve", "/v1/commit", "/json"] {
            for field in ["rule", "key", "id", "limit", "reservation", "domain", nasty] {
                requests.push((format!("POST {path}"), String::new(), body(field)));
            }
        }
        requests.push((
            format!("PUT /v1/rules/{coded}"),
            "x-tidegate-token: admin\r\n".into(),
            r#"{"limits":["1/s"]}"#.into(),
        ));
        requests.push((
            "PUT /v1/rules/good".into(),
            "x-tidegate-token: admin\r\n".into(),
            json!({ "limits": [nasty] }).to_string(),
        ));
        for path in [
            "/v1/keys/login/",
            "/v1/keys/",
            "/v1/explain?rule=",
            "/v1/explain?limit=5/s&key=",
            "/v1/authorize?deny_status=",
            "/",
        ] {
            requests.push((format!("GET {path}{coded}"), String::new(), String::new()));
        }
        for name in [
            "x-forwarded-uri",
            "x-forwarded-method",
            "x-forwarded-host",
            "x-forwarded-for",
            "x-original-url",
            "authorization",
            "x-request-id",
            "origin",
            "traceparent",
        ] {
            // With raw line breaks, and without.
            let visible: String = nasty.chars().filter(|c| !c.is_control()).collect();
            requests.push((
                "GET /v1/authorize".into(),
                format!("{name}: {visible}\r\n"),
                String::new(),
            ));
            requests.push((
                "GET /v1/authorize".into(),
                format!("{name}: {coded}\r\n"),
                String::new(),
            ));
        }
        for (line, fields, body) in requests {
            let length = body.len();
            let text = format!(
                "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fields}content-length: {length}\r\n\r\n{body}"
            );
            let bytes = testkit::raw_http::exchange(server.http, text.as_bytes());
            let end =
                bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(bytes.len());
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            assert!(!head.contains(MARK), "{line} {fields:?}: {head}");
            if let Some(response) = testkit::raw_http::parse_response(&bytes) {
                assert_eq!(bytes.len(), end + 4 + response.body.len(), "one response: {line}");
                assert!(response.status < 500, "{line}: {response:?}");
                let kind = response.header("content-type").unwrap_or_default();
                assert!(
                    !kind.contains("json") || serde_json::from_str::<Value>(&response.body).is_ok()
                );
            }
            sent += 1;
        }
    }
    assert!(sent > 500, "{sent}");
    assert_log_is_whole(&server);
}

#[test]
fn no_text_of_an_envoy_request_becomes_a_line_or_a_label() {
    let (server, _folder) = start(&[]);
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(testkit::envoy::EnvoyClient::connect(server.grpc));
    for nasty in NASTY {
        for check in [
            request(nasty, &[descriptor(&[("k", "v")])]),
            request("edge", &[descriptor(&[(nasty, nasty)])]),
            request("edge", &[descriptor(&[("k", nasty)])]),
            request("", &[descriptor(&[("k", nasty)])]),
        ] {
            match runtime.block_on(client.should_rate_limit(&check)) {
                Ok(response) => assert_eq!(response.statuses.len(), 1),
                Err(status) => assert!(!status.message().contains(MARK), "{status:?}"),
            }
        }
    }
    assert_log_is_whole(&server);
}

/// In Redis, braces would choose the slot of a Cluster, and line breaks would start a command.
#[test]
fn no_byte_of_a_key_reaches_redis_and_no_two_keys_are_one() {
    let redis = RedisServer::start();
    // A long deadline, for a busy machine.
    let policy = "store_deadline: 10s\nrules: [{ name: login, limits: [5/min] }]\n";
    let file = TempFolder::new().write("policy.yaml", policy);
    let arguments = ["--config", file.to_str().unwrap(), "--store", &redis.url()];
    let server = ServerProcess::start(&arguments, &[]);
    let mut client = RespConnection::connect(server.resp);
    let source = |client: &mut RespConnection| client.send("TG.PEEK login warm").items()[7].text();
    wait_until(|| (source(&mut client) == "redis").then_some(())).expect("redis decides");
    let long = ["x".repeat(1_024), "x".repeat(1_023)];
    let mut keys: Vec<Value> = NASTY.iter().map(|key| json!(key)).collect();
    keys.extend(long.iter().map(|key| json!(key)));
    // One part never equals several parts, wherever they are split.
    for parts in [
        &["a_b", "c"][..],
        &["a", "b_c"],
        &["a_b_c"],
        &["a", "b", "c"],
        &["ab", "c"],
        &["", "abc"],
        &["abc", ""],
        &["abc"],
    ] {
        keys.push(if parts.len() == 1 { json!(parts[0]) } else { json!(parts) });
    }
    for key in &keys {
        let response = server.post("/v1/check", &json!({ "limit": "5/36500d", "key": key }));
        let decision = response.json();
        assert_eq!(decision["remaining"], 4, "{key}: {decision}");
        assert_eq!(decision["source"], "redis");
    }
    let stored = redis.cli(&["--raw", "KEYS", "*"]);
    // Next to the hash is the rule, or the limit in its notation.
    let names: BTreeSet<&str> = stored.lines().collect();
    assert!(names.len() > keys.len(), "{names:?}");
    for name in names {
        let is_plain =
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":{}-_./ ".contains(&byte));
        assert!(
            is_plain && name.len() < 100 && !name.contains(MARK) && !name.contains("xxx"),
            "{name:?}"
        );
    }
}

/// A terminal would execute escape sequences.
#[test]
fn the_cli_prints_no_control_characters_of_a_server() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let liar = std::thread::spawn(move || {
        for body in [
            r#"{"status":400,"title":"\u001b[2J","detail":"a\nb\u001b]0;owned\u0007"}"#,
            "\u{1b}[2J no JSON",
        ] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let _ = std::io::Read::read(&mut stream, &mut request);
            let head = format!(
                "HTTP/1.1 400 Bad\r\ncontent-type: application/problem+json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all((head + body).as_bytes()).unwrap();
        }
    });
    for _ in 0..2 {
        let ran = testkit::process::tidegate(
            &["check", "login", "k", "--server", &format!("http://{address}")],
            &[],
        );
        assert_eq!(ran.code, Some(2));
        for line in (ran.stdout + &ran.stderr).lines() {
            assert!(!line.contains(is_control), "{line:?}");
        }
    }
    liar.join().unwrap();
}
