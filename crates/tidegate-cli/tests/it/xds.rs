//! Limits from a control plane over xDS.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::certificates::TestCa;
use testkit::control_plane::{ControlPlane, TYPE_URL, domain};
use testkit::server::{RawHttpConnection, ServerProcess, TempFolder, wait_until};
use testkit::timing::compare_with_goal;
use tidegate_server::internal::transport::envoy::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitUnit,
};

const YEAR: RateLimitUnit = RateLimitUnit::Year;

fn edge(requests: u32) -> RateLimitConfig {
    domain("edge", &[("user", YEAR, requests)])
}

/// The server once it listens: the control plane has a configuration.
fn start(control_plane: &ControlPlane, more: &[&str]) -> ServerProcess {
    let address = control_plane.address.to_string();
    ServerProcess::start(&[&["--xds", &*address], more].concat(), &[])
}

/// The response to a request without a charge.
fn probe(server: &ServerProcess, keys: &[&str]) -> Value {
    let descriptor =
        |key: &&str| json!({ "entries": [{ "key": key, "value": "x" }], "hitsAddend": "0" });
    let descriptors: Vec<Value> = keys.iter().map(descriptor).collect();
    server.post("/json", &json!({ "domain": "edge", "descriptors": descriptors })).json()
}

/// The limit of the descriptor `user`.
fn limit(server: &ServerProcess) -> Option<u64> {
    probe(server, &["user"])["statuses"][0]["currentLimit"]["requestsPerUnit"].as_u64()
}

/// The reasons of `/healthz`, in JSON.
fn reasons(server: &ServerProcess) -> String {
    server.get("/healthz").json()["reasons"].to_string()
}

fn expect_limit(server: &ServerProcess, wanted: u64) {
    let is_there = || (limit(server) == Some(wanted)).then_some(());
    assert!(wait_until(is_there).is_some(), "{:?}: {:?}", limit(server), server.log());
}

#[test]
fn the_first_configuration_is_in_force_when_the_server_listens_and_is_acknowledged() {
    let control_plane = ControlPlane::start();
    control_plane.set("v1", &[edge(3)]);
    let server = start(&control_plane, &["--xds-node", "node-7"]);
    assert_eq!(limit(&server), Some(3));
    let accepted = control_plane.expect_accepted("v1");
    assert_eq!((&*accepted.response_nonce, &*accepted.type_url), ("nonce-1", TYPE_URL));
    let first = &control_plane.requests()[0];
    let node = first.node.as_ref().unwrap();
    assert_eq!((&*node.id, &*node.user_agent_name), ("node-7", "tidegate"));
    assert_eq!((&*first.version_info, &*first.response_nonce), ("", ""));
    assert_eq!((&*first.type_url, first.resource_names.len()), (TYPE_URL, 0));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "measures the time until a change is in force")]
fn a_change_is_in_force_within_a_second_and_a_domain_can_go() {
    let control_plane = ControlPlane::start();
    control_plane.set("1", &[edge(3), domain("other", &[("user", YEAR, 1)])]);
    let server = start(&control_plane, &[]);
    let begun = Instant::now();
    control_plane.set("2", &[edge(5)]);
    expect_limit(&server, 5);
    compare_with_goal("change in force", begun.elapsed(), Duration::from_secs(1));
    control_plane.expect_accepted("2");
    control_plane.set("3", &[]);
    control_plane.expect_accepted("3");
    assert_eq!(limit(&server), None, "no domain, no limit");
}

#[test]
fn a_bad_configuration_is_refused_with_its_error_and_the_old_limits_stay() {
    let control_plane = ControlPlane::start();
    control_plane.set("good", &[edge(3)]);
    let server = start(&control_plane, &[]);
    control_plane.set("bad", &[edge(9), domain("x", &[("user", RateLimitUnit::Unknown, 9)])]);
    let refused = control_plane.expect(|request| request.error_detail.is_some());
    assert_eq!((&*refused.version_info, &*refused.response_nonce), ("good", "nonce-2"));
    let error = refused.error_detail.unwrap();
    assert_eq!(error.code, 3, "INVALID_ARGUMENT");
    assert!(error.message.starts_with("x-resource:4:"), "{error:?}");
    assert!(error.message.contains("unknown unit \"unknown\""), "{error:?}");
    assert_eq!(limit(&server), Some(3), "of two resources with one error, none is in force");
    let health = server.get("/healthz").json();
    assert!(health.to_string().contains("unknown unit"), "{health}");

    control_plane.set("twice", &[edge(4), edge(4)]);
    let refused = control_plane.expect(|request| request.response_nonce == "nonce-3");
    assert!(refused.error_detail.unwrap().message.contains("duplicate domain"));

    control_plane.set("better", &[edge(4)]);
    control_plane.expect_accepted("better");
    assert_eq!(limit(&server), Some(4));
    let health = server.get("/healthz").json();
    assert!(!health.to_string().contains("unknown unit"), "{health}");
}

#[test]
fn before_the_first_configuration_the_server_waits_or_is_unavailable() {
    let control_plane = ControlPlane::start();
    let server = start(&control_plane, &["--xds-optional"]);
    let body = json!({ "domain": "edge", "descriptors": [{ "entries": [{ "key": "user" }] }] });
    let response = server.post("/json", &body);
    assert_eq!(response.status, 503, "{response:?}");
    assert!(response.body.contains("no configuration from the control plane"), "{response:?}");
    assert_eq!(server.get("/healthcheck").status, 500, "Envoy would let everything pass");
    assert_eq!(server.get("/readyz").status, 503);
    assert!(reasons(&server).contains("control plane: no valid configuration yet"));
    assert_eq!(server.metric("tidegate_control_plane_up"), Some(0.0));

    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| start(&control_plane, &["--xds-node", "second"]));
        control_plane.expect(|one| one.node.as_ref().is_some_and(|node| node.id == "second"));
        assert!(!waiting.is_finished(), "it does not listen yet");
        control_plane.set("1", &[edge(2)]);
        assert_eq!(limit(&waiting.join().unwrap()), Some(2));
    });
    expect_limit(&server, 2);
    assert_eq!([server.get("/healthcheck").status, server.get("/readyz").status], [200, 200]);
    assert_eq!(reasons(&server), "[]");
    assert_eq!(server.metric("tidegate_control_plane_up"), Some(1.0));
}

#[test]
fn a_control_plane_that_was_never_reached_is_reported_with_its_cause() {
    let free = ControlPlane::start().address.to_string();
    let server = ServerProcess::start(&["--xds", &free, "--xds-optional"], &[]);
    let has_cause = || reasons(&server).contains("Connection refused").then_some(());
    assert!(wait_until(has_cause).is_some(), "{}", reasons(&server));
    let status = server.get("/healthz");
    assert_eq!((status.status, &status.json()["status"]), (200, &json!("degraded")));
    assert_eq!(server.get("/readyz").status, 503);
    assert_eq!(server.metric("tidegate_control_plane_up"), Some(0.0));
}

#[test]
fn a_configuration_that_cannot_be_decoded_is_reported_as_every_other_refusal() {
    let control_plane = ControlPlane::start();
    control_plane.set("1", &[edge(3)]);
    let server = start(&control_plane, &[]);
    control_plane.set_undecodable("2");
    control_plane.expect(|one| one.error_detail.is_some());
    assert!(reasons(&server).contains("cannot be decoded"), "{}", reasons(&server));
    assert_eq!(server.metric("tidegate_config_valid"), Some(0.0));
    assert_eq!(limit(&server), Some(3));
}

#[test]
fn a_refusal_lasts_until_the_configuration_is_taken_back() {
    let control_plane = ControlPlane::start();
    control_plane.set("1", &[edge(3)]);
    let folder = TempFolder::new();
    let file = folder.write("policy.yaml", "rules: [{ name: a, limits: [5/s] }]");
    let server = start(&control_plane, &["--config", file.to_str().unwrap()]);
    control_plane.set("2", &[domain("edge", &[("user", RateLimitUnit::Unknown, 9)])]);
    control_plane.expect(|one| one.error_detail.is_some());
    assert_eq!(server.metric("tidegate_config_valid"), Some(0.0));

    // A reload of the files does not make the refused configuration valid.
    let reloaded = server.logged("policy reloaded");
    server.signal("HUP");
    let is_reloaded = || (server.logged("policy reloaded") > reloaded).then_some(());
    assert!(wait_until(is_reloaded).is_some(), "{:?}", server.log());
    assert_eq!(server.metric("tidegate_config_valid"), Some(0.0));
    assert!(reasons(&server).contains("unknown unit"), "{}", reasons(&server));

    // The configuration of before.
    control_plane.set("3", &[edge(3)]);
    control_plane.expect_accepted("3");
    assert_eq!(server.metric("tidegate_config_valid"), Some(1.0));
    assert_eq!(reasons(&server), "[]");
}

#[test]
fn a_server_that_waits_for_a_control_plane_can_be_stopped() {
    let free = ControlPlane::start().address.to_string();
    let mut child = ServerProcess::command(&["--xds", &free], &[]).spawn().unwrap();
    let id = child.id().to_string();
    // Signals are handled before the first connection attempt.
    let mut log = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("no connection to the control plane") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut log, &mut line).unwrap() > 0);
    }
    assert!(line.contains("Connection refused"), "{line}");
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let status = wait_until(|| child.try_wait().unwrap()).expect("the server stops");
    assert!(status.success(), "{status}");
}

#[test]
fn limits_stay_while_the_control_plane_is_gone_and_change_when_it_is_back() {
    let control_plane = ControlPlane::start();
    control_plane.set("1", &[edge(3)]);
    let server = start(&control_plane, &[]);
    let address = control_plane.address;
    control_plane.expect_accepted("1");
    drop(control_plane);
    let is_gone = || {
        let log = server.log().join("\n");
        log.contains("no connection to the control plane").then_some(())
    };
    assert!(wait_until(is_gone).is_some(), "{:?}", server.log());
    assert_eq!(limit(&server), Some(3));
    assert!(reasons(&server).contains("control plane: no response since"), "{}", reasons(&server));
    assert_eq!(server.metric("tidegate_control_plane_up"), Some(0.0));
    assert_eq!(server.get("/readyz").status, 200, "the last limits are in force");
    // It counts from the start again: the same version is another configuration.
    let control_plane = ControlPlane::start_at(address, None);
    control_plane.set("1", &[edge(8)]);
    expect_limit(&server, 8);
    assert_eq!(control_plane.requests()[0].version_info, "");
    control_plane.expect_accepted("1");
    assert_eq!(reasons(&server), "[]");
    assert_eq!(server.metric("tidegate_control_plane_up"), Some(1.0));
}

#[test]
fn a_changed_policy_file_keeps_the_limits_of_the_control_plane() {
    let control_plane = ControlPlane::start();
    control_plane.set("1", &[edge(3)]);
    let folder = TempFolder::new();
    let file = folder.write("policy.yaml", "rules: [{ name: a, limits: [5/s] }]");
    let server = start(&control_plane, &["--config", file.to_str().unwrap()]);
    folder.write("policy.yaml", "rules: [{ name: b, limits: [5/s] }]");
    let has_b = || {
        let body = json!({ "rule": "b", "key": "x" });
        (server.post("/v1/check", &body).status == 200).then_some(())
    };
    assert!(wait_until(has_b).is_some(), "{:?}", server.log());
    assert_eq!(limit(&server), Some(3));
}

/// Files of a client that are replaced together with the authority.
fn write_identity(folder: &TempFolder, ca: &TestCa) {
    let client = ca.issue("client");
    for (name, from) in [("ca.pem", &ca.ca()), ("tls.crt", &client.cert), ("tls.key", &client.key)]
    {
        std::fs::copy(from, folder.path(name)).unwrap();
    }
}

#[test]
fn mutual_tls_uses_the_files_as_they_are_at_each_connection() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (old, new) = (TestCa::new(), TestCa::new());
    let folder = TempFolder::new();
    write_identity(&folder, &old);
    let control_plane = ControlPlane::start_with_tls(any, &old);
    control_plane.set("1", &[edge(3)]);
    let file = |name| folder.path(name).to_str().unwrap().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("tls.crt"), file("tls.key"));
    let tls = ["--xds-ca", &ca, "--xds-cert", &cert, "--xds-key", &key];
    let server = start(&control_plane, &[&tls[..], &["--xds-server-name", "localhost"]].concat());
    assert_eq!(limit(&server), Some(3));

    // Both sides change the authority; the connection is made anew.
    let address = control_plane.address;
    drop(control_plane);
    let control_plane = ControlPlane::start_with_tls(address, &new);
    control_plane.set("2", &[edge(4)]);
    let is_refused = || server.log().join("\n").contains("certificate").then_some(());
    assert!(wait_until(is_refused).is_some(), "{:?}", server.log());
    assert_eq!(limit(&server), Some(3), "a control plane of another authority is not believed");
    write_identity(&folder, &new);
    expect_limit(&server, 4);
}

#[test]
fn a_name_in_the_certificate_alone_turns_on_tls() {
    let plain = ControlPlane::start();
    let address = plain.address.to_string();
    let named = ["--xds", &*address, "--xds-server-name", "localhost", "--xds-optional"];
    let named = ServerProcess::start(&named, &[]);
    let has_failed = || (named.logged("no connection to the control plane") > 0).then_some(());
    assert!(wait_until(has_failed).is_some() && plain.requests().is_empty(), "{:?}", named.log());
}

#[test]
fn a_thousand_changes_under_load_never_mix_two_versions() {
    const CHANGES: u32 = 1_000;
    let both = |limit: u32| [domain("edge", &[("user", YEAR, limit), ("path", YEAR, limit)])];
    let control_plane = ControlPlane::start();
    control_plane.set("0", &both(1));
    let server = start(&control_plane, &[]);
    let is_done = AtomicBool::new(false);
    let entries = |key| json!({ "entries": [{ "key": key, "value": "x" }] });
    let body = json!({ "domain": "edge", "descriptors": [entries("user"), entries("path")] });
    let body = body.to_string();
    let load = || {
        let mut client = RawHttpConnection::connect(server.http);
        let (mut requests, mut versions) = (0_u64, std::collections::BTreeSet::new());
        while !is_done.load(Ordering::Relaxed) {
            client.send("POST", "/json", &[("content-type", "application/json")], &body);
            let response = client.receive().json();
            let limit =
                |i: usize| response["statuses"][i]["currentLimit"]["requestsPerUnit"].as_u64();
            let (user, path) = (limit(0), limit(1));
            assert!(user.is_some() && user == path, "two versions in one response: {response}");
            versions.insert(user);
            requests += 1;
        }
        (requests, versions.len())
    };
    std::thread::scope(|scope| {
        let clients = [(); 3].map(|()| scope.spawn(load));
        for version in 1..=CHANGES {
            control_plane.set(&version.to_string(), &both(version + 1));
            control_plane.expect_accepted(&version.to_string());
        }
        is_done.store(true, Ordering::Relaxed);
        let seen = clients.map(|client| client.join().unwrap());
        eprintln!("{CHANGES} changes; requests and versions seen by each client: {seen:?}");
        assert!(seen.iter().all(|(requests, versions)| *requests > 100 && *versions > 100));
    });
    expect_limit(&server, u64::from(CHANGES) + 1);
}
