//! `GET /v1/live`: recent traffic, as one snapshot and as a stream.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::{Outcome, Source};
use tidegate_server::internal::observe::traffic::{TrafficSnapshot, TrafficStats};
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::internal::transport::listener;
use tidegate_server::internal::transport::listener::Timeouts;

use testkit::server::{RawHttpConnection, ServerProcess, TEST_TIMEOUT, wait_until};
use testkit::server_in_process::InProcessServer;

const POLICY: &str = r#"
rules:
  - { name: login, limits: ["sliding-log 5/h", "100/h"] }
  - { name: tried, limits: ["100/h"], shadow_limits: ["2/h"] }
  - { name: listed, limits: ["5/h"], deny: [foe] }
  - { name: unused, limits: ["5/h"] }
"#;

fn check(server: &ServerProcess, rule: &str, key: &str) {
    server.post("/v1/check", &json!({ "rule": rule, "key": key }));
}

/// The snapshot, once the condition holds.
fn live_when(server: &ServerProcess, wanted: impl Fn(&TrafficSnapshot) -> bool) -> TrafficSnapshot {
    let get = || {
        let response = server.get("/v1/live");
        assert_eq!(response.status, 200, "{}", response.body);
        let snapshot: TrafficSnapshot = serde_json::from_str(&response.body).unwrap();
        wanted(&snapshot).then_some(snapshot)
    };
    wait_until(get).unwrap_or_else(|| panic!("never so: {}", server.get("/v1/live").body))
}

#[test]
fn checks_are_reported_by_rule_and_second() {
    let server = ServerProcess::with_policy(POLICY);
    (0..8).for_each(|_| check(&server, "login", "alice"));
    (0..4).for_each(|_| check(&server, "tried", "bob"));
    check(&server, "listed", "foe");
    let seen = live_when(&server, |seen| {
        let totals = seen.total.totals;
        (totals.allowed, totals.denied) == (9, 4)
    });
    assert_eq!(seen.total.totals.would_deny, 2);
    let names: Vec<&str> = seen.rules.iter().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["listed", "login", "tried"]);
    let login = &seen.rules[1].traffic;
    assert_eq!((login.totals.allowed, login.totals.denied), (5, 3));
    assert_eq!(login.series.allowed.len(), 60);
    assert_eq!(login.series.allowed.iter().sum::<u32>(), 5);
    assert_eq!(login.series.denied.iter().sum::<u32>(), 3);
    assert!(login.series.errors.is_empty(), "nothing but zeros");
    assert!(login.rates.allowed > 0.0 && login.rates.denied > 0.0, "{:?}", login.rates);
    assert!(seen.latency.p99_us >= seen.latency.p50_us && seen.latency.p50_us.is_some());
    assert_eq!(seen.latency.p50_us_series.len(), 60);
    assert_eq!((seen.policy.rules, &seen.policy.error), (4, &None));
    assert!(seen.store.up && seen.store.circuit.is_none());
    assert!(seen.connections.http >= 1, "this one");
    // The counts are halved twice a minute, maybe just now.
    let hot = seen.hottest.iter().find(|hot| (&*hot.rule, &*hot.key) == ("login", "alice"));
    let hot = hot.unwrap_or_else(|| panic!("{:?}", seen.hottest));
    assert!((2..=5).contains(&hot.allowed) && (1..=3).contains(&hot.denied), "{hot:?}");
}

#[test]
fn recent_denials_name_the_limit_that_denied() {
    let server = ServerProcess::with_policy(POLICY);
    (0..6).for_each(|_| check(&server, "login", "al\u{1b}ice"));
    (0..3).for_each(|_| check(&server, "tried", "bob"));
    check(&server, "listed", "foe");
    server.post("/v1/check", &json!({ "rule": "login", "key": "huge", "cost": 101 }));
    let seen = live_when(&server, |seen| seen.denials.len() == 4);
    let message: Vec<Value> =
        seen.denials.iter().map(|denial| serde_json::to_value(denial).unwrap()).collect();
    let fields = |i: usize, names: &[&str]| -> Vec<Value> {
        names.iter().map(|name| message[i][name].clone()).collect()
    };
    let names = ["kind", "because", "rule", "policy", "limit", "key"];
    let expected = [
        json!(["deny", "never", "login", "login.1", "sliding-log 5/h", "huge"]),
        json!(["deny", "list", "listed", null, null, "foe"]),
        json!(["would_deny", "limit", "tried", "tried.shadow.1", "2/h", "bob"]),
        json!(["deny", "limit", "login", "login.1", "sliding-log 5/h", "al\\u{1b}ice"]),
    ];
    for (i, expected) in expected.into_iter().enumerate() {
        assert_eq!(Value::from(fields(i, &names)), expected);
    }
    assert!(
        message[3]["retry_after_ms"].as_u64().is_some_and(|wait| wait > 3_000_000),
        "{}",
        message[3]
    );
    assert_eq!((&message[0]["retry_after_ms"], seen.denials_left_out), (&Value::Null, 0));
}

#[test]
fn the_time_span_can_be_chosen_and_a_token_is_required() {
    let policy = testkit::server::TempFolder::new().write("policy.yaml", POLICY);
    let policy = policy.to_str().unwrap();
    let server = ServerProcess::start(&["--config", policy], &[("TIDEGATE_TOKEN", "check-me")]);
    let get = |path: &str| server.request("GET", path, &[("x-tidegate-token", "check-me")], "");
    assert_eq!(get("/v1/live?seconds=900").json()["seconds"], 900);
    assert_eq!(get("/v1/live?seconds=900").header("cache-control"), Some("no-store"));
    for path in ["/v1/live?seconds=901", "/v1/live?seconds=x", "/v1/live?colour=red"] {
        assert_eq!(get(path).status, 400, "{path}");
    }
    for accept in ["application/json", "text/event-stream"] {
        assert_eq!(server.request("GET", "/v1/live", &[("accept", accept)], "").status, 401);
    }
}

/// A stream of events over HTTP/1, in chunks.
struct Stream {
    reader: BufReader<TcpStream>,
    /// The status line.
    status: Option<String>,
    /// Bytes of the next events.
    buffer: Vec<u8>,
}

impl Stream {
    fn open(address: SocketAddr, path: &str) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        Self { reader: BufReader::new(stream), status: None, buffer: Vec::new() }
    }

    fn status(&mut self) -> String {
        if self.status.is_none() {
            self.status = Some(self.line());
            while !self.line().is_empty() {}
        }
        self.status.clone().unwrap_or_default()
    }

    /// The next event; `None` at the end of the stream.
    fn next(&mut self) -> Option<Value> {
        assert_eq!(self.status(), "HTTP/1.1 200 OK");
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let data = event.strip_prefix(b"data: ").expect("an event");
                return Some(serde_json::from_slice(data).expect("an event is JSON"));
            }
            let chunk = self.chunk()?;
            self.buffer.extend(chunk);
        }
    }

    /// The next chunk; `None` at the end.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = self.line();
        let len = usize::from_str_radix(&size, 16).ok().filter(|len| *len > 0)?;
        let mut chunk = vec![0; len + 2];
        self.reader.read_exact(&mut chunk).ok()?;
        assert_eq!(chunk.split_off(len), b"\r\n");
        Some(chunk)
    }

    /// The next line without its end; empty at the end of the stream.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end().into()
    }
}

#[test]
fn events_come_every_second_and_end_with_the_server() {
    let mut server = ServerProcess::with_policy(POLICY);
    let mut stream = Stream::open(server.http, "/v1/live?seconds=3");
    assert_eq!(stream.status(), "HTTP/1.1 200 OK");
    let first = stream.next().unwrap();
    assert_eq!(first["seconds"], 3);
    check(&server, "login", "alice");
    let mut at = first["at_ms"].as_u64().unwrap();
    let mut seen = 0;
    for _ in 0..5 {
        let next = stream.next().expect("the server runs");
        let now = next["at_ms"].as_u64().unwrap();
        assert!(now > at, "{now} after {at}");
        at = now;
        seen = seen.max(next["total"]["totals"]["allowed"].as_u64().unwrap());
    }
    assert_eq!(seen, 1);
    let (took, status) = testkit::process::millis(|| {
        server.signal("TERM");
        while stream.next().is_some() {}
        server.wait()
    });
    assert!(status.is_some_and(|status| status.success()), "it ends well");
    // The shutdown waits up to 65 s for requests in flight.
    let (took, goal) = (Duration::from_millis(took), Duration::from_secs(20));
    testkit::timing::compare_with_goal("stop with a live stream", took, goal);
}

#[test]
fn who_follows_is_not_idle_and_one_who_takes_nothing_is_cut_off() {
    const SHORT: Duration = Duration::from_millis(300);
    let deadlines = Timeouts { idle: SHORT, response: SHORT, ..Timeouts::default() };
    let options = listener::ListenerOptions { deadlines, ..listener::ListenerOptions::default() };
    let server = InProcessServer::start(options, AuthTokens::default());
    let mut stream = Stream::open(server.http, "/v1/live?seconds=900");
    // Far longer than the idle timeout and the response timeout.
    for _ in 0..4 {
        assert!(stream.next().is_some());
    }
    drop(stream);
    server.expect_metric("tidegate_connections{listener=\"http\"} 0");
    // Unread events: about a megabyte per second until the socket buffers are full.
    for rule in 0..512 {
        server.metrics().rule(&format!("r{rule}")).count(Outcome::Allow, Source::Memory);
    }
    let small = server.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(1_024).unwrap();
        socket.connect(server.http).await.unwrap().into_std().unwrap()
    });
    small.set_nonblocking(false).unwrap();
    let get = b"GET /v1/live?seconds=900 HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n";
    (&small).write_all(get).unwrap();
    server.expect_metric("tidegate_connections{listener=\"http\"} 1");
    server.expect_metric("tidegate_connections{listener=\"http\"} 0");
    drop(small);
}

#[test]
fn a_few_dozen_may_follow_and_the_next_is_refused() {
    let server = ServerProcess::with_policy(POLICY);
    let mut streams: Vec<Stream> = (0..TrafficStats::MAX_STREAMS)
        .map(|_| Stream::open(server.http, "/v1/live?seconds=1"))
        .collect();
    for stream in &mut streams {
        assert_eq!(stream.status(), "HTTP/1.1 200 OK");
    }
    let mut client = RawHttpConnection::connect(server.http);
    client.send("GET", "/v1/live", &[("accept", "text/event-stream")], "");
    let refused = client.receive();
    assert_eq!((refused.status, refused.json()["status"].clone()), (503, json!(503)));
    assert_eq!(server.get("/v1/live").status, 200, "once is no matter");
    streams.truncate(1);
    let again = wait_until(|| {
        let mut stream = Stream::open(server.http, "/v1/live?seconds=1");
        (stream.status() == "HTTP/1.1 200 OK").then_some(stream)
    });
    let mut rest = again.expect("there is room again");
    assert!(rest.next().is_some() && streams[0].next().is_some());
    assert!(rest.next().is_some(), "and it goes on");
}
