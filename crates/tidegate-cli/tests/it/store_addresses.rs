//! Store addresses: accepted forms, and what the command line reports about the store.

use std::fs;

use testkit::process::{CommandOutput, tidegate};
use testkit::redis::RedisServer;
use testkit::server::ServerProcess;

fn check(store: &str) -> CommandOutput {
    tidegate(&["check", "--store", store, "--limit", "5/m", "k"], &[])
}

#[test]
fn every_way_to_one_server_leads_to_the_same_count() {
    let redis = RedisServer::start_with(&["--unixsocket", "redis.sock"]);
    redis.cli(&["ACL", "SETUSER", "ann", "on", ">p@w", "~*", "+@all"]);
    let dir = fs::read_link(format!("/proc/{}/cwd", redis.pid())).unwrap();
    let socket = format!("unix://{}/redis.sock", dir.display());
    let port = redis.port();
    for (left, store) in [
        (4, socket.clone()),
        (3, format!("{socket}?user=ann&password=p%40w")),
        (2, format!("redis://ann:p@w@localhost:{port}")),
        (1, format!("redis://127.0.0.1:{port}/0")),
        (4, format!("{socket}?db=1")),
        (3, format!("redis://127.0.0.1:{port}/1")),
    ] {
        let ran = check(&store);
        let message = format!("allowed by adhoc, {left} of 5 remaining (redis)\n");
        assert_eq!((ran.code, ran.stdout), (Some(0), message), "{store}: {}", ran.stderr);
    }
}

#[test]
fn what_is_no_store_ends_with_2_and_says_which_part_is_wrong() {
    for (store, message) in [
        ("mysql://u:hunter2@h", "unknown store; use memory, redis://"),
        ("redis://hunter2@h", "a login without a password"),
        ("redis://u:hunter2@h:0", "a port is not a number from 1 to 65535"),
        ("redis://u:hun/ter2@h", "an @ after the host"),
        ("redis://u:hunter2@h?ca=x", "need TLS; use rediss://"),
        ("redis-cluster://u:hunter2@h/1", "a cluster has only database 0"),
        ("redis-sentinel://u:hunter2@h", "the name of the primary is missing"),
        ("unix:///s?pass=hunter2", "unknown parameter"),
        ("rediss://u:hunter2@h?ca=/nowhere/ca.pem", "cannot read \"/nowhere/ca.pem\""),
    ] {
        let ran = check(store);
        assert_eq!((ran.code, &*ran.stdout), (Some(2), ""), "{store}");
        assert!(ran.stderr.contains(message), "{store}: {}", ran.stderr);
        assert!(!ran.stderr.contains("ter2"), "{}", ran.stderr);
    }
}

#[test]
fn an_evicting_store_is_reported_in_the_log_and_in_health() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lfu"]);
    let server = ServerProcess::start(&["--store", &redis.url()], &[]);
    let health = server.health_when(|health| !health["store"]["warning"].is_null());
    let warning = health["store"]["warning"].as_str().unwrap();
    assert!(warning.contains("maxmemory-policy allkeys-lfu"), "{warning}");
    assert_eq!((&health["status"], &health["store"]["up"]), (&"degraded".into(), &true.into()));
    let ready = server.get("/readyz");
    assert_eq!((ready.status, &ready.json()["store"]["warning"]), (200, &warning.into()));
    server.expect_logged("store misconfigured", 1);
    assert!(server.log().iter().any(|line| line.contains(warning)), "{:?}", server.log());
    for command in ["INFO", "TG.INFO"] {
        let message = redis.cli(&["-p", &server.resp.port().to_string(), command]);
        assert!(
            message.contains("store_warning") && message.contains(warning),
            "{command}: {message}"
        );
    }
}

/// A retry that is too early is denied by the server without the store.
#[test]
fn a_denial_is_cached_unless_the_policy_disables_it() {
    let redis = RedisServer::start();
    let source = |server: &ServerProcess| {
        let body = serde_json::json!({ "limit": "1/m", "key": "k" });
        server.post("/v1/check", &body).json()["source"].clone()
    };
    let folder = testkit::server::TempFolder::new();
    for (name, policy, expected) in [
        ("on.yaml", "", ["redis", "redis", "deny-cache", "deny-cache"]),
        ("off.yaml", "deny_cache: false\n", ["redis", "redis", "redis", "redis"]),
    ] {
        redis.cli(&["FLUSHALL"]);
        let file = folder.write(
            name,
            &format!("store: {}\nstore_deadline: 5s\nrules: []\n{policy}", redis.url()),
        );
        let server = ServerProcess::start(&["--config", file.to_str().unwrap()], &[]);
        testkit::server::wait_until(|| server.store_is_up().then_some(()));
        assert_eq!([(); 4].map(|()| source(&server)), expected, "{name}");
    }
}

/// Without a replica no charge is confirmed, and no check passes.
#[test]
fn a_charge_that_replicas_are_to_confirm_goes_by_the_policy_if_they_do_not() {
    let redis = RedisServer::start();
    let folder = testkit::server::TempFolder::new();
    let policy = "confirmed_by: 1\nstore_deadline: 2s\non_store_failure: deny\nrules: [{ name: api, limits: [9/h] }]\n";
    let file = folder.write("policy.yaml", &format!("store: {}\n{policy}", redis.url()));
    let server = ServerProcess::start(&["--config", file.to_str().unwrap()], &[]);
    testkit::server::wait_until(|| server.store_is_up().then_some(()));
    let body = serde_json::json!({ "rule": "api", "key": "k" });
    // The first checks may end before the connections for `WAIT` are open.
    let health = server.health_when(|health| {
        let denied = server.post("/v1/check", &body);
        assert_ne!(denied.status, 200, "{}", denied.body);
        !health["store"]["warning"].is_null()
    });
    let warning = health["store"]["warning"].as_str().unwrap();
    assert!(warning.contains("1 replica"), "{warning}");
}

/// A server spends its leases locally, and settles them in the store at shutdown.
#[test]
fn a_rule_with_a_lease_is_decided_here_and_charged_there() {
    const CHECKS: u64 = 1_500;
    let redis = RedisServer::start();
    let folder = testkit::server::TempFolder::new();
    let policy = format!(
        "store: {}\nstore_deadline: 5s\nrules: [{{ name: api, limits: [fixed-window 1000000/d], lease: 100 }}]\n",
        redis.url()
    );
    let file = folder.write("lease.yaml", &policy);
    let mut server = ServerProcess::start(&["--config", file.to_str().unwrap()], &[]);
    testkit::server::wait_until(|| server.store_is_up().then_some(()));
    let body = serde_json::json!({ "rule": "api", "key": "k" }).to_string();
    let mut connection = testkit::server::RawHttpConnection::connect(server.http);
    let mut by_lease = 0;
    for _ in 0..CHECKS {
        connection.send("POST", "/v1/check", &[], &body);
        let decision = connection.receive().json();
        assert_eq!(decision["allowed"], true, "{decision}");
        by_lease += u64::from(decision["source"] == "lease");
    }
    let lent = server.get("/metrics").body;
    assert!(lent.contains("tidegate_lease_outstanding{rule=\"api\"}"), "{lent}");
    testkit::process::print_figure(format_args!(
        "lease: {by_lease} of {CHECKS} checks without Redis"
    ));
    assert!(by_lease > CHECKS / 4, "hardly any");
    server.signal("TERM");
    server.wait();
    let store = redis.url();
    let config = file.to_str().unwrap();
    let ran =
        tidegate(&["check", "--store", &store, "--config", config, "api", "k", "--json"], &[]);
    let decision: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(decision["remaining"], 1_000_000 - CHECKS - 1, "{decision}");
}
