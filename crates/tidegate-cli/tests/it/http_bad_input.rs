//! Invalid requests: refused with a reason, without effect, and the server keeps running.
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::server::{RawHttpConnection, ServerProcess, ServerResponse, TEST_TIMEOUT, TempFolder};
use testkit::timing::compare_with_goal;
use tidegate::{Clock, SystemClock};

const POLICY: &str = r#"
rules:
  - { name: five, limits: ["sliding-log 5/1h"] }
  - { name: ten, limits: ["10/h"] }
  - { name: workers, limits: ["concurrency 2"] }
"#;

const KIB: usize = 1 << 10;
const FUZZ_REQUESTS: usize = 2_500;
const CONNECTIONS: usize = 4;

// --- the catalogue -----------------------------------------------------------------------------

/// A body for `/v1/check`, its status, and the field named in the error.
fn bodies() -> Vec<(Vec<u8>, u16, &'static str)> {
    let text = |body: &str, field| (body.as_bytes().to_vec(), 400, field);
    let of = |body: Value, status, field| (body.to_string().into_bytes(), status, field);
    let nested = |open: &str, close: &str, n: usize| open.repeat(n) + &close.repeat(n);
    vec![
        // Not JSON, or not an object.
        text("", ""),
        text(" ", ""),
        text("{", ""),
        text("}", ""),
        text(r#"{"rule":"five","key":"victim"}}"#, ""),
        text(r#"{"rule":"five","key":"victim"} {}"#, ""),
        text(r#"{"rule":"five","key":"victim",}"#, ""),
        text(r#"{rule:"five"}"#, ""),
        text("{'rule':'five'}", ""),
        text(r#"{"rule":"five","cost":NaN}"#, "cost"),
        text(r#"{"rule":"five","cost":01}"#, "cost"),
        text("null", ""),
        text("1", ""),
        text("\"five\"", ""),
        text(r#"["five",null,"victim",1,null,null,null,null]"#, ""),
        text(r#"{"checks":[["five",null,"victim",1]]}"#, "checks[0]"),
        text("\u{feff}{\"rule\":\"five\"}", ""),
        // Types.
        text(r#"{"rule":5,"key":"victim"}"#, "rule"),
        text(r#"{"rule":["five"],"key":"victim"}"#, "rule"),
        text(r#"{"rule":"five","key":5}"#, "key"),
        text(r#"{"rule":"five","key":{"a":"b"}}"#, "key"),
        text(r#"{"rule":"five","key":["a",1]}"#, "key[1]"),
        text(r#"{"rule":"five","key":[["a"]]}"#, "key[0]"),
        text(r#"{"rule":"five","key":"victim","cost":"1"}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","cost":true}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","id":7}"#, "id"),
        text(r#"{"checks":{"rule":"five"}}"#, "checks"),
        text(r#"{"checks":[{"rule":"ten","key":"victim"},{"rule":5}]}"#, "checks[1].rule"),
        // Numbers.
        text(r#"{"rule":"five","key":"victim","cost":-1}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","cost":-0.0}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","cost":0.5}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","cost":1.0}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","cost":1e3}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","cost":1e999}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","cost":4294967297}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","cost":9007199254740993}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","cost":18446744073709551615}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","cost":18446744073709551616}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","wait_ms":60001}"#, "wait_ms"),
        text(r#"{"rule":"five","key":"victim","wait_ms":-1}"#, "wait_ms"),
        text(r#"{"rule":"five","key":"victim","ttl_ms":5}"#, "ttl_ms"),
        // Fields.
        text(r#"{"rule":"five","key":"victim","colour":"red"}"#, "colour"),
        text(r#"{"Rule":"five","key":"victim"}"#, "Rule"),
        text(r#"{"rule":"five","key":"victim","cost":1,"cost":2}"#, "cost"),
        text(r#"{"rule":"five","key":"victim","cost":1,"\u0063ost":2}"#, "cost"),
        text(r#"{"checks":[{"rule":"five","key":"victim","key":"k"}]}"#, "checks[0].key"),
        text(r#"{"key":"victim"}"#, "rule"),
        text(r#"{"rule":"five","limit":"5/min","key":"victim"}"#, "limit"),
        text(r#"{"rule":"five","checks":[{"rule":"ten"}]}"#, "rule"),
        text(r#"{"key":"victim","checks":[{"rule":"ten"}]}"#, "key"),
        text(r#"{"checks":[]}"#, "checks"),
        of(json!({ "checks": vec![json!({ "rule": "ten", "key": "victim" }); 17] }), 400, "checks"),
        of(json!({ "checks": [{ "rule": "ten", "key": "victim" }, {}] }), 400, "checks[1].rule"),
        of(
            json!({ "checks": [{ "rule": "ten", "key": "victim" }, { "rule": "no" }] }),
            404,
            "rule",
        ),
        of(
            json!({ "checks": [{ "rule": "ten", "key": "victim" }, { "rule": "workers" }] }),
            400,
            "rule",
        ),
        // Texts.
        (b"{\"rule\":\"five\",\"key\":\"\xff\"}".to_vec(), 400, "key"),
        (b"{\"rule\":\"five\",\"key\":\"\xc0\x80\"}".to_vec(), 400, "key"),
        (b"{\"rule\":\"five\",\"key\":\"\xed\xa0\x80\"}".to_vec(), 400, "key"),
        (b"{\"rule\":\"five\",\"key\":\"a\0b\"}".to_vec(), 400, "key"),
        (b"{\"rule\":\"five\",\"key\":\"a\nb\"}".to_vec(), 400, "key"),
        text(r#"{"rule":"five","key":"\ud800"}"#, "key"),
        text(r#"{"rule":"five","key":"\x41"}"#, "key"),
        text(r#"{"rule":"five","key":"victim"#, "key"),
        of(json!({ "rule": "five", "key": "k".repeat(1_025) }), 400, "key"),
        of(json!({ "rule": "five", "key": "k".repeat(60 * KIB) }), 400, "key"),
        of(json!({ "rule": "five", "key": vec!["k"; 17] }), 400, "key"),
        of(json!({ "rule": "five", "key": vec!["k".repeat(100); 11] }), 400, "key"),
        of(json!({ "rule": "five", "key": "victim", "id": "" }), 400, "id"),
        of(json!({ "rule": "five", "key": "victim", "id": "x".repeat(65) }), 400, "id"),
        of(json!({ "rule": "five", "key": "victim", "id": "é".repeat(33) }), 400, "id"),
        of(json!({ "rule": "missing", "key": "victim" }), 404, "rule"),
        of(json!({ "rule": "", "key": "victim" }), 404, "rule"),
        of(json!({ "rule": "x".repeat(60 * KIB), "key": "victim" }), 404, "rule"),
        of(json!({ "rule": "five\r\nx-evil: 1", "key": "victim" }), 404, "rule"),
        of(json!({ "rule": "workers", "key": "victim" }), 400, "rule"),
        // Ad-hoc limits.
        of(json!({ "limit": "", "key": "victim" }), 400, "limit"),
        of(json!({ "limit": "5 per minute", "key": "victim" }), 400, "limit"),
        of(json!({ "limit": "-1/s", "key": "victim" }), 400, "limit"),
        of(json!({ "limit": "1/0s", "key": "victim" }), 400, "limit"),
        of(json!({ "limit": "4503599627370496/s", "key": "victim" }), 400, "limit"),
        of(json!({ "limit": "1/36501d", "key": "victim" }), 400, "limit"),
        of(json!({ "limit": "fixed-window 1/d tz Moon/Base", "key": "victim" }), 400, "limit"),
        of(json!({ "limit": "concurrency 5", "key": "victim" }), 400, "rule"),
        of(json!({ "limit": "9".repeat(60 * KIB), "key": "victim" }), 400, "limit"),
        // Depth and size.
        text(&nested("[", "]", 32 * KIB), ""),
        text(&nested("[", "]", 100), ""),
        text(&format!(r#"{{"rule":"five","key":{}}}"#, nested("[", "]", 30 * KIB)), "key[0]"),
        text(&nested(r#"{"rule":"#, "}", 4 * KIB), "rule"),
        text(&format!(r#"{{"x":{}}}"#, nested(r#"{"x":"#, "}", 4 * KIB)), "x"),
        (padded(64 * KIB + 1), 413, ""),
        (vec![b'['; 64 * KIB + 1], 413, ""),
        (padded(4 << 20), 413, ""),
    ]
}

#[test]
fn a_bad_body_is_refused_with_its_field_and_changes_nothing() {
    let mut server = start();
    let before = state(&server);
    let all = bodies();
    for (body, status, field) in &all {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let response = post_bytes(&server, body);
        let problem = is_problem(&response, *status, &shown);
        assert_eq!(problem["field"].as_str().unwrap_or_default(), *field, "{shown}: {problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{shown}");
    }
    assert_eq!(state(&server), before);
    assert!(server.is_running());
    // The same server accepts valid bodies up to the maximum length.
    let good = post_bytes(&server, &padded(64 * KIB));
    assert_eq!(good.status, 200, "{}", good.body);
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "http: {} bad bodies refused", all.len()).unwrap();
}

#[test]
fn a_bad_body_is_refused_by_every_call_that_takes_one() {
    let server = start();
    let before = state(&server);
    for (method, path) in [
        ("POST", "/v1/check-many"),
        ("POST", "/v1/record"),
        ("POST", "/v1/refund"),
        ("POST", "/v1/reserve"),
        ("POST", "/v1/commit"),
        ("POST", "/v1/cancel"),
        ("POST", "/v1/renew"),
        ("POST", "/v1/extend"),
        ("PUT", "/v1/rules/five"),
    ] {
        let token = ("x-tidegate-token", "admin");
        for (content_type, body, status) in [
            ("application/json", "{", 400),
            ("application/json", "", 400),
            ("application/json", "null", 400),
            ("application/json", r#"["five",null,"victim",1,null,null,null,null]"#, 400),
            ("application/json", r#"["00000000000000000000000000000000",null,null]"#, 400),
            ("application/json", r#"{"x":1}"#, 400),
            ("application/json", &*"[".repeat(60 * KIB), 400),
            ("application/json", &*" ".repeat(64 * KIB + 1), 413),
            ("text/plain", r#"{"rule":"five"}"#, 415),
            ("application/x-www-form-urlencoded", "rule=five", 415),
            ("multipart/form-data; boundary=x", "--x--", 415),
            ("application/jsonp", r#"{"rule":"five"}"#, 415),
            ("", r#"{"rule":"five"}"#, 415),
        ] {
            let headers = [token, ("content-type", content_type)];
            let response = server.request(method, path, &headers, body);
            is_problem(&response, status, &format!("{path} {content_type}"));
        }
    }
    assert_eq!(state(&server), before);
}

#[test]
fn json_is_json_under_any_of_its_names() {
    let server = start();
    let body = r#"{"rule":"ten","key":"k"}"#;
    for content_type in
        ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"]
    {
        let response = server.request("POST", "/v1/check", &[("content-type", content_type)], body);
        assert_eq!(response.status, 200, "{content_type}");
    }
    assert_eq!(server.request("POST", "/v1/check", &[], body).status, 200, "and without one");
}

/// Raw bytes and the allowed statuses; 0 is a connection closed without a response.
fn wires() -> Vec<(&'static str, Vec<u8>, &'static [u16])> {
    let good = r#"{"rule":"five","key":"victim"}"#;
    let post = |fields: &str, body: &str| {
        let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
        format!("{head}{fields}\r\n{body}").into_bytes()
    };
    let get = |line: &str, fields: &str| {
        format!("{line}\r\nhost: localhost\r\nconnection: close\r\n{fields}\r\n").into_bytes()
    };
    let length = good.len();
    let chunked = "transfer-encoding: chunked\r\n";
    let chunks = |count: usize| format!("1000\r\n{}\r\n", " ".repeat(4_096)).repeat(count);
    vec![
        ("no host", b"GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n".to_vec(), &[400]),
        ("two hosts", get("GET /healthz HTTP/1.1", "host: localhost\r\n"), &[400]),
        ("HTTP/1.0", b"GET /healthz HTTP/1.0\r\n\r\n".to_vec(), &[200]),
        ("HTTP/0.9", b"GET /\r\n\r\n".to_vec(), &[400, 0]),
        ("noise", (0..=255).cycle().take(9_000).collect(), &[400, 0]),
        ("zeroes", vec![0; 70_000], &[400, 431, 0]),
        ("the Redis protocol", b"*1\r\n$4\r\nPING\r\n\r\n".to_vec(), &[400, 0]),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), &[400, 0]),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), &[400, 505, 0]),
        ("HTTP/3.0", get("GET /healthz HTTP/3.0", ""), &[400, 505, 0]),
        ("a header of 1 MiB", post(&format!("x: {}\r\n", "a".repeat(1 << 20)), good), &[431, 0]),
        (
            "a path of 1 MiB",
            get(&format!("GET /{} HTTP/1.1", "a".repeat(1 << 20)), ""),
            &[414, 431, 0],
        ),
        ("5,000 headers", post(&"x: y\r\n".repeat(5_000), good), &[431, 0]),
        ("NUL in a header", post("x: a\0b\r\n", good), &[400, 0]),
        ("a space in a name", post("x y: z\r\n", good), &[400, 0]),
        ("a path of garbage", get("GET /\x01\x7f HTTP/1.1", ""), &[400, 0]),
        ("dots", get("GET /v1/../v1/rules HTTP/1.1", ""), &[404]),
        ("no length", post("content-length: x\r\n", good), &[400, 0]),
        ("a negative length", post("content-length: -1\r\n", good), &[400, 0]),
        ("a huge length", post("content-length: 99999999999999999999\r\n", good), &[400, 0]),
        (
            "two lengths",
            post(&format!("content-length: {length}\r\ncontent-length: 3\r\n"), good),
            &[400, 0],
        ),
        ("an empty chunked body", post(chunked, "0\r\n\r\n"), &[400]),
        ("a chunk of garbage", post(chunked, "zz\r\n{}\r\n0\r\n\r\n"), &[400, 0]),
        ("a chunk too large", post(chunked, "FFFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n"), &[400, 0]),
        ("a huge chunked body", post(chunked, &(chunks(500) + "0\r\n\r\n")), &[413, 0]),
        ("an unknown encoding", post("transfer-encoding: gzip\r\n", good), &[400, 501, 0]),
        ("a method of its own", get("BREW /v1/check HTTP/1.1", ""), &[405]),
        ("an address elsewhere", get("GET http://other.example/v1/nothing HTTP/1.1", ""), &[404]),
        ("CONNECT", get("CONNECT other.example:443 HTTP/1.1", ""), &[400, 404, 405]),
    ]
}

#[test]
fn bad_bytes_are_refused_or_cut_off_and_change_nothing() {
    let mut server = start();
    let before = state(&server);
    let all = wires();
    for (name, bytes, statuses) in &all {
        let received = testkit::raw_http::exchange(server.http, bytes);
        let status =
            testkit::raw_http::parse_response(&received).map_or(0, |response| response.status);
        let seen = String::from_utf8_lossy(&received);
        assert!(statuses.contains(&status), "{name}: {status} {seen}");
        assert_eq!(server.get("/healthz").status, 200, "{name}");
    }
    assert_eq!(state(&server), before);
    assert!(server.is_running());
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "http: {} kinds of bad bytes refused", all.len()).unwrap();
}

#[test]
fn a_body_that_never_comes_is_given_up_and_one_that_is_cut_off_charges_nothing() {
    let server = start();
    let before = state(&server);
    let begin = |body: &str| {
        let mut stream = TcpStream::connect(server.http).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 40\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    };
    let mut cut_off = begin(r#"{"rule":"five","key":"victim"}"#);
    cut_off.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    let _ = cut_off.read_to_end(&mut rest);
    assert!(testkit::raw_http::parse_response(&rest).is_none_or(|response| response.status == 400));
    let clock = SystemClock;
    let start = clock.elapsed();
    let mut slow = begin(r#"{"rule":"five","#);
    let mut received = Vec::new();
    let _ = slow.read_to_end(&mut received);
    let took = Duration::from(clock.elapsed().saturating_sub(start));
    is_problem(&testkit::raw_http::parse_response(&received).unwrap(), 408, "slow");
    assert!(took >= Duration::from_secs(4), "{took:?}");
    compare_with_goal("a body that stalls", took, Duration::from_secs(20));
    assert_eq!(state(&server), before);
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "http: a body that stalls is given up after {took:.1?}").unwrap();
}

#[test]
fn without_a_store_a_rule_that_returns_an_error_gets_503_with_the_reason() {
    let file = TempFolder::new().write("policy.yaml", POLICY);
    let arguments = ["--config", file.to_str().unwrap(), "--store", "redis://127.0.0.1:1"];
    let mut server = ServerProcess::start(&arguments, &[("TIDEGATE_ADMIN_TOKEN", "admin")]);
    let token = [("x-tidegate-token", "admin")];
    for (path, body) in [
        ("/v1/check", r#"{"rule":"five","key":"k"}"#),
        ("/v1/check", r#"{"rule":"five","key":"k","cost":0}"#),
        ("/v1/reserve", r#"{"rule":"five","key":"k"}"#),
    ] {
        let response = server.request("POST", path, &token, body);
        assert_eq!((response.status, &response.json()["source"]), (200, &json!("fallback")));
    }
    for (method, path, body) in [
        ("POST", "/v1/refund", r#"{"rule":"five","key":"k"}"#),
        ("POST", "/v1/commit", r#"{"reservation":"00000000000000000000000000000000"}"#),
        ("GET", "/v1/keys/five/k", ""),
        ("DELETE", "/v1/keys/five/k", ""),
    ] {
        let response = server.request(method, path, &token, body);
        let problem = is_problem(&response, 503, path);
        assert!(problem["detail"].as_str().unwrap().contains("no decision"), "{problem}");
    }
    // Invalid requests are still refused, and calls that need no store work.
    assert_eq!(server.post("/v1/check", &json!({ "rule": "missing" })).status, 404);
    assert_eq!(server.get("/v1/rules").status, 200);
    assert_eq!((server.get("/healthz").status, server.get("/readyz").status), (200, 200));
    assert!(server.is_running());
}

// --- fuzzing -----------------------------------------------------------------------------------

const SEEDS: [(&str, &str); 13] = [
    ("POST /v1/check", r#"{"rule":"five","key":"victim","cost":1}"#),
    ("POST /v1/check", r#"{"limit":"sliding-log 5/1h","key":["a","b"],"cost":2,"id":"x-1"}"#),
    ("POST /v1/check", r#"{"checks":[{"rule":"five","key":"k"},{"rule":"ten","cost":3}]}"#),
    ("POST /v1/check", r#"{"limit":"sliding-window 240/1h precision 1m","key":"\u00e9\n🌊"}"#),
    ("POST /v1/record", r#"{"rule":"ten","key":"k","cost":4294967296}"#),
    ("POST /v1/refund", r#"{"rule":"ten","key":"k","cost":1}"#),
    ("POST /v1/reserve", r#"{"rule":"ten","key":"k","cost":2,"ttl_ms":60000}"#),
    ("POST /v1/reserve", r#"{"rule":"workers","key":"k"}"#),
    ("POST /v1/commit", r#"{"reservation":"00000000000000000000000000000000","cost":1}"#),
    ("POST /v1/renew", r#"{"reservation":"0123456789abcdef0123456789abcdef","ttl_ms":1000}"#),
    (
        "POST /v1/extend",
        r#"{"reservation":"0123456789abcdef0123456789abcdef","costs":{"ten":5},"min":3}"#,
    ),
    (
        "PUT /v1/rules/fuzz",
        r#"{"match":{"method":["GET"],"path":"/a/{b}/*","header":{"x":"y*"}},"key":["path:b"],
            "limits":["10/s burst 50 every 1s"],"overrides":[{"key":"k","limits":["1/s"]}],
            "fallback_ratio":0.5,"lease":"auto","deny":["10.0.0.0/8"]}"#,
    ),
    ("PUT /v1/rules/fuzz", r#"{"limits":["fixed-window 1000/d tz Asia/Shanghai"],"shadow":true}"#),
];

#[test]
fn no_mutated_body_gets_5xx_or_no_response() {
    let mut server = start();
    let mut clients: Vec<_> =
        (0..CONNECTIONS).map(|_| RawHttpConnection::connect(server.http)).collect();
    let mut random = Random(0x7469_6465);
    let (mut understood, mut refused) = (0, 0);
    for i in 0..FUZZ_REQUESTS {
        let (place, seed) = random.pick(&SEEDS);
        let mut body = seed.as_bytes().to_vec();
        for _ in 0..=random.below(3) {
            random.mutate(&mut body);
        }
        // The client sends UTF-8; other bytes are in the catalogue.
        let body = String::from_utf8_lossy(&body);
        let (method, path) = place.split_once(' ').unwrap();
        let headers = [("content-type", "application/json"), ("x-tidegate-token", "admin")];
        let client = &mut clients[i % CONNECTIONS];
        client.send(method, path, &headers, &body);
        let response = client.receive();
        assert!(response.status < 500, "request {i}: {body}: {response:?}");
        match response.status {
            200 | 201 | 429 => understood += 1,
            status => {
                is_problem(&response, status, &body);
                refused += 1;
            }
        }
    }
    assert!(server.is_running());
    assert!(understood > 100 && refused > 1_000, "good and bad ones: {understood} {refused}");
    let mut stderr = std::io::stderr().lock();
    writeln!(
        stderr,
        "http: {FUZZ_REQUESTS} mutated bodies over {CONNECTIONS} connections, {understood} still \
         made sense, {refused} refused, no response with 5xx"
    )
    .unwrap();
}

/// xorshift: deterministic.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Mutates a body: a byte, a cut, a doubled piece, a piece of another body, a token.
    fn mutate(&mut self, body: &mut Vec<u8>) {
        const TOKENS: [&[u8]; 16] = [
            b"null",
            b"-1",
            b"1e308",
            b"18446744073709551616",
            b"\"\"",
            b"[]",
            b"{}",
            b"[[",
            b"}",
            b"\\u0000",
            b"\\ud800",
            b"\"cost\":",
            b",",
            b"true",
            b"0.1",
            b"\"a\",",
        ];
        let at = self.below(body.len());
        let end = at + self.below(body.len() - at + 1).min(12);
        match self.below(9) {
            6 => self.replace(body, u8::is_ascii_digit, b"0123456789"),
            7 => self.replace(body, u8::is_ascii_lowercase, b"abchrvx-_/ "),
            8 => self.replace(body, u8::is_ascii_whitespace, b" \t\r\n"),
            0 if !body.is_empty() => body[at] = self.next() as u8,
            1 => drop(body.drain(at..end)),
            2 => {
                let piece = body[at..end].to_vec();
                body.splice(at..at, piece);
            }
            3 => {
                let other = self.pick(&SEEDS).1.as_bytes();
                let from = self.below(other.len());
                body.splice(at..end, other[from..].iter().take(20).copied());
            }
            4 => drop(body.splice(at..end, self.pick(&TOKENS).iter().copied())),
            _ => drop(body.splice(at..at, self.pick(&TOKENS).iter().copied())),
        }
    }

    /// Replaces a byte by one of the same kind, which keeps most bodies valid.
    fn replace(&mut self, body: &mut [u8], kind: fn(&u8) -> bool, others: &[u8]) {
        let places: Vec<usize> = (0..body.len()).filter(|&i| kind(&body[i])).collect();
        if !places.is_empty() {
            body[self.pick(&places)] = self.pick(others);
        }
    }
}

// --- helpers -----------------------------------------------------------------------------------

/// A server with one used key.
fn start() -> ServerProcess {
    let file = TempFolder::new().write("policy.yaml", POLICY);
    let variables = [("TIDEGATE_ADMIN_TOKEN", "admin")];
    let server = ServerProcess::start(&["--config", file.to_str().unwrap()], &variables);
    for rule in ["five", "ten"] {
        let response = server.post("/v1/check", &json!({ "rule": rule, "key": "victim" }));
        assert_eq!(response.status, 200);
    }
    server
}

/// All state that a request could change.
fn state(server: &ServerProcess) -> Value {
    let used = |rule: &str| {
        let limits = server.get(&format!("/v1/keys/{rule}/victim")).json()["limits"].clone();
        let used = |limit: &Value| (limit["used"].clone(), limit["held"].clone());
        limits.as_array().unwrap().iter().map(used).collect::<Vec<_>>()
    };
    json!({
        "five": used("five"),
        "ten": used("ten"),
        "rules": server.get("/v1/rules").json(),
        "keys": server.get("/healthz").json()["store"]["tracked_keys"],
    })
}

fn post_bytes(server: &ServerProcess, body: &[u8]) -> ServerResponse {
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let received = testkit::raw_http::exchange(server.http, &[head.as_bytes(), body].concat());
    testkit::raw_http::parse_response(&received).expect("a response")
}

/// A valid body of this length.
fn padded(length: usize) -> Vec<u8> {
    let mut body = br#"{"rule":"ten","key":"padded"}"#.to_vec();
    body.resize(length, b' ');
    body
}

fn is_problem(response: &ServerResponse, status: u16, what: &str) -> Value {
    assert_eq!(response.status, status, "{what}: {}", response.body);
    assert_eq!(response.header("content-type"), Some("application/problem+json"), "{what}");
    let problem = response.json();
    assert_eq!(problem["status"], status, "{what}");
    assert_eq!(problem["type"], "about:blank", "{what}");
    assert!(problem["title"].is_string(), "{what}");
    problem
}
