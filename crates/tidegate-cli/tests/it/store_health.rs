//! A store that does not decide: every report names the cause, at the start and without traffic.

use std::net::SocketAddr;

use serde_json::{Value, json};
use testkit::certificates::TestCa;
use testkit::process::tidegate;
use testkit::redis::{RedisServer, free_port};
use testkit::server::{ServerProcess, wait_until};

const UNAVAILABLE: &str = "store unavailable, on_store_failure applies";
const AVAILABLE: &str = "store available again";

/// A store that never decides, and what must be reported about it.
struct Cause {
    name: &'static str,
    url: String,
    /// A part of the error.
    error: &'static str,
    _redis: Vec<RedisServer>,
}

fn causes(ca: &TestCa, http: SocketAddr) -> Vec<Cause> {
    // A server on which this command was run.
    let cause = |name, login: &str, command: &[&str], error| {
        let redis = RedisServer::start();
        assert!(command.is_empty() || redis.cli(command) == "OK", "{name}");
        let url = format!("redis://{login}127.0.0.1:{}", redis.port());
        Cause { name, url, error, _redis: vec![redis] }
    };
    let gone = |name, url: String, error| Cause { name, url, error, _redis: Vec::new() };
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    replica.replica_of(&primary);
    let (url, _redis) = (replica.url(), vec![primary, replica]);
    let replica = Cause { name: "replica", url, error: "READONLY", _redis };
    let frozen = cause("frozen", "", &[], "no reply within");
    frozen._redis[0].freeze();
    let password = ["CONFIG", "SET", "requirepass", "pw"];
    let user = "ACL SETUSER app on >pw ~* +@read +set +ping +hello +info";
    let user: Vec<&str> = user.split(' ').collect();
    vec![
        gone("refused", format!("redis://127.0.0.1:{}", free_port()), "Connection refused"),
        gone("unknown host", "redis://redis.invalid".into(), "unknown host"),
        gone("TLS", format!("rediss://{http}?ca={}", ca.ca()), "TLS handshake failed"),
        replica,
        frozen,
        cause("password", ":wrong@", &password, "check user and password"),
        cause("no password", "", &password, "NOAUTH"),
        cause("memory", "", &["CONFIG", "SET", "maxmemory", "100kb"], "OOM"),
        cause("replicas", "", &["CONFIG", "SET", "min-replicas-to-write", "1"], "NOREPLICAS"),
        cause("permission", "app:pw@", &user, "NOPERM"),
    ]
}

#[test]
fn whatever_keeps_the_store_from_deciding_is_reported_with_its_cause() {
    // A server that does not use TLS.
    let (ca, other) = (TestCa::new(), ServerProcess::start(&[], &[]));
    for Cause { name, url, error, _redis } in causes(&ca, other.http) {
        let server = ServerProcess::start(&["--store", &url, "--console-host", "test"], &[]);
        // A replica replies to `PING`, so it is known for good once the circuit has opened.
        let is_reported = |health: &Value| {
            let store = &health["store"];
            store["circuit"] != "closed"
                && store["error"].as_str().is_some_and(|text| text.contains(error))
        };
        let health = server.health_when(is_reported);
        println!("{name}: {}", health["store"]["error"]);
        assert_eq!(
            (&health["status"], &health["store"]["up"]),
            (&json!("degraded"), &json!(false))
        );
        assert!(health["store"]["since"].as_u64().is_some_and(|at| at > 1_700_000_000), "{health}");
        let reasons = health["reasons"].as_array().unwrap();
        let is_reason = |reason: &&Value| reason.as_str().unwrap().contains(error);
        assert_eq!(reasons.iter().filter(is_reason).count(), 1, "{name}: {reasons:?}");
        assert_eq!(server.metric("tidegate_store_up"), Some(0.0), "{name}");
        let address = format!("http://{}", server.http);
        let ready = tidegate(&["health", "--server", &address], &[]);
        assert_eq!(ready.code, Some(0), "{name}: ready by default");
        let line = "healthy: degraded (store: ";
        assert!(ready.stdout.starts_with(line) && ready.stdout.contains(error), "{ready:?}");
        server.expect_logged(UNAVAILABLE, 1);
        let logged = |line: &String| line.contains(UNAVAILABLE) && line.contains(error);
        assert!(server.log().iter().any(logged), "{name}: {:?}", server.log());
        let shown = wait_until(|| server.get("/").body.contains(error).then_some(()));
        assert!(shown.is_some(), "{name}: the console");
        let check = server.post("/v1/check", &json!({ "rule": "api", "key": "k" }));
        assert_eq!(check.json()["source"], "fallback", "{name}: {}", check.body);
    }
}

#[test]
fn another_secret_is_reported() {
    let redis = RedisServer::start();
    let start =
        |secret| ServerProcess::start(&["--store", &redis.url()], &[("TIDEGATE_SECRET", secret)]);
    let first = start("one");
    first.health_when(|health| health["status"] == "ok");
    let second = start("two");
    let health = second.health_when(|health| health["status"] == "degraded");
    let error = health["store"]["error"].as_str().unwrap();
    assert!(error.contains("the secret differs"), "{error}");
    assert_eq!(second.metric("tidegate_store_up"), Some(0.0));
    assert_eq!(first.metric("tidegate_store_up"), Some(1.0));
}

#[test]
fn a_server_that_is_ready_only_with_its_store_is_not_ready_without_it() {
    let redis = RedisServer::start();
    let server = ServerProcess::start(&["--store", &redis.url(), "--ready-when", "store"], &[]);
    let address = format!("http://{}", server.http);
    let health = || tidegate(&["health", "--server", &address], &[]);
    server.health_when(|health| health["status"] == "ok");
    assert_eq!((server.get("/readyz").status, health().code), (200, Some(0)));

    redis.cli(&["CONFIG", "SET", "maxmemory", "100kb"]);
    let is_unready = || (server.get("/readyz").status == 503).then_some(());
    wait_until(is_unready).expect("probes notice without traffic");
    let unready = health();
    assert_eq!(unready.code, Some(1));
    assert!(unready.stderr.contains("not healthy: degraded (store: "), "{unready:?}");
    assert!(unready.stderr.contains("OOM"), "{unready:?}");
    assert_eq!(server.get("/healthz").status, 200, "a restart does not repair a store");
    server.expect_logged(UNAVAILABLE, 1);

    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let health = server.health_when(|health| health["status"] == "ok");
    let expected = json!({ "up": true, "error": null, "since": null });
    for name in ["up", "error", "since"] {
        assert_eq!(health["store"][name], expected[name], "{name}");
    }
    assert_eq!((&health["reasons"], server.get("/readyz").status), (&json!([]), 200));
    assert_eq!(server.metric("tidegate_store_up"), Some(1.0));
    server.expect_logged(AVAILABLE, 1);
}
