//! Requests that wait for permits: how many may, per key, per connection and in all.

use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};

use testkit::server::{RawHttpConnection, ServerProcess, ServerResponse, TempFolder, wait_until};

/// The window is longer than a test; the server is stopped before it ends.
const POLICY: &str = r#"rules: [{ name: api, limits: ["fixed-window 10/50s first-hit"] }]"#;

/// A server with a cap, and keys without permits.
fn start(flag: &str, keys: &[&str]) -> ServerProcess {
    let file = TempFolder::new().write("policy.yaml", POLICY);
    let server = ServerProcess::start(&["--config", file.to_str().unwrap(), flag, "2"], &[]);
    for key in keys {
        let used = json!({ "rule": "api", "key": key, "cost": 10 });
        assert_eq!(server.post("/v1/record", &used).status, 200);
    }
    server
}

fn waiting(key: &str) -> Value {
    json!({ "rule": "api", "key": key, "wait_ms": 60_000 })
}

/// A request that waits on a connection of its own, until that is dropped.
fn wait(server: &ServerProcess, key: &str) -> RawHttpConnection {
    let mut connection = RawHttpConnection::connect(server.http);
    connection.send("POST", "/v1/check", &[], &waiting(key).to_string());
    connection
}

fn expect_waiting(server: &ServerProcess, count: f64) {
    let reached = || server.metric("tidegate_waiting_requests").filter(|now| *now == count);
    assert!(wait_until(reached).is_some(), "{count}: {}", server.get("/metrics").body);
}

fn refused(server: &ServerProcess) -> [Option<f64>; 3] {
    ["key", "connection", "total"]
        .map(|cap| server.metric(&format!("tidegate_waits_refused_total{{cap=\"{cap}\"}}")))
}

/// Denied before the window ends, with the time until then.
fn assert_denied_at_once(response: &ServerResponse) {
    assert_eq!(response.status, 429);
    let wait = response.json()["retry_after_ms"].as_u64().unwrap();
    assert!((1..=50_000).contains(&wait), "{wait}");
}

#[test]
fn a_request_beyond_the_cap_of_its_key_is_denied_at_once() {
    let server = start("--max-waiting-key", &["a", "b"]);
    let _waiting = [wait(&server, "a"), wait(&server, "a")];
    expect_waiting(&server, 2.0);
    assert_denied_at_once(&server.post("/v1/check", &waiting("a")));
    assert_eq!(refused(&server), [Some(1.0), Some(0.0), Some(0.0)]);
    let _other = wait(&server, "b");
    expect_waiting(&server, 3.0);
}

#[test]
fn a_request_beyond_the_cap_of_the_server_is_denied_at_once_unless_it_fits() {
    let server = start("--max-waiting", &["a", "b", "c"]);
    let (first, _second) = (wait(&server, "a"), wait(&server, "b"));
    expect_waiting(&server, 2.0);
    assert_denied_at_once(&server.post("/v1/check", &waiting("c")));
    assert_eq!(server.post("/v1/check", &waiting("unused")).status, 200, "it need not wait");
    assert_eq!(refused(&server), [Some(0.0), Some(0.0), Some(2.0)]);
    // A client that disconnects makes room.
    drop(first);
    expect_waiting(&server, 1.0);
    let _third = wait(&server, "c");
    expect_waiting(&server, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_beyond_the_cap_of_its_connection_is_denied_at_once() {
    let server = start("--max-waiting-conn", &["a"]);
    let stream = tokio::net::TcpStream::connect(server.http).await.unwrap();
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.unwrap();
    tokio::spawn(connection);
    let mut send = || {
        let request = Request::post(format!("http://{}/v1/check", server.http));
        let request = request.header("content-type", "application/json");
        let body = Full::new(Bytes::from(waiting("a").to_string()));
        tokio::spawn(sender.send_request(request.body(body).unwrap()))
    };
    let held = [send(), send()];
    expect_waiting(&server, 2.0);
    let beyond = tokio::time::timeout(Duration::from_secs(40), send()).await;
    let status = beyond.expect("denied at once").unwrap().unwrap().status();
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused(&server), [Some(0.0), Some(1.0), Some(0.0)]);
    assert!(held.iter().all(|request| !request.is_finished()));
    let _other = wait(&server, "a");
    expect_waiting(&server, 3.0);
}
