//! A server whose memory is full: replies, health, metrics and log.

use serde_json::json;
use testkit::process::print_figure;
use testkit::resp::{RespConnection, RespReply};
use testkit::server::{ServerProcess, TempFolder, wait_until};

const POLICY: &str = "rules: [{ name: llm, limits: [1000000/s] }, { name: login, limits: [5/1m] }]";

#[test]
fn full_memory_is_named_in_replies_health_metrics_and_the_log_and_others_are_served() {
    let file = TempFolder::new().write("policy.yaml", POLICY);
    let flags = ["--config", file.to_str().unwrap(), "--memory", "1MiB"];
    let server = ServerProcess::start(&flags, &[]);
    let status = server.get("/healthz").json();
    assert_eq!((&status["status"], &status["memory"]["full"]), (&json!("ok"), &json!({})));
    assert_eq!(status["memory"]["id_retention_s"], 3_600);

    let mut resp = RespConnection::connect(server.resp);
    let mut check = |id: u32| resp.send(&format!("TG.CHECK llm gateway ID id-{id}"));
    // None is a minute old, so that none can be forgotten.
    let refused = (0..20_000).map(&mut check).find(|reply| matches!(reply, RespReply::Error(_)));
    let expected = "BUSY ids: memory is full; nothing was charged, retry later or without an ID";
    assert_eq!(refused, Some(RespReply::Error(expected.into())));
    let body = json!({ "rule": "llm", "key": "gateway", "id": "another" });
    let refused = server.post("/v1/check", &body);
    assert_eq!(refused.status, 503);
    let detail = refused.json()["detail"].to_string();
    assert!(detail.contains("memory is full (ids)"), "{detail}");
    // A repeated id is answered, and the reply says how long ids are kept.
    let body = json!({ "rule": "llm", "key": "gateway", "id": "id-1" });
    let kept = || server.post("/v1/check", &body).json()["id_retention_s"].as_u64();
    assert_eq!(wait_until(kept), Some(60));
    let without = server.post("/v1/check", &json!({ "rule": "llm", "key": "gateway" })).json();
    assert_eq!(without.get("id_retention_s"), None);

    for user in 0..1_000 {
        let reply = resp.send(&format!("TG.CHECK login user-{user}"));
        assert_eq!(reply.items()[0], RespReply::Integer(1), "user {user}");
    }
    let status = server.get("/readyz");
    assert_eq!((status.status, &status.json()["status"]), (200, &json!("degraded")));
    let why = status.json()["memory"]["full"]["ids"].to_string();
    assert!(why.contains("calls with a new id may fail"), "{why}");
    for (series, at_least) in [
        ("tidegate_memory_bytes{kind=\"ids\"}", 100_000.0),
        ("tidegate_memory_bytes{kind=\"state\"}", 30_000.0),
        ("tidegate_memory_overflow_total{kind=\"ids\"}", 2.0),
        ("tidegate_memory_overflow_total{kind=\"state\"}", 0.0),
        ("tidegate_id_retention_seconds", 60.0),
    ] {
        let value = server.metric(series).unwrap_or_else(|| panic!("{series}"));
        assert!(value >= at_least, "{series} {value}");
    }
    server.expect_logged("memory full; raise it with --memory", 1);
}

#[test]
fn the_memory_of_the_policy_applies_unless_a_flag_overrides_it() {
    let small = TempFolder::new().write("policy.yaml", &format!("memory: 1MiB\n{POLICY}"));
    let small = small.to_str().unwrap();
    for (flags, fits) in
        [(&["--config", small][..], false), (&["--config", small, "--memory", "64MiB"], true)]
    {
        let server = ServerProcess::start(flags, &[]);
        let mut resp = RespConnection::connect(server.resp);
        let all = (0..5_000).all(|id| {
            let reply = resp.send(&format!("TG.CHECK llm gateway ID id-{id}"));
            !matches!(reply, RespReply::Error(_))
        });
        assert_eq!(all, fits, "{flags:?}");
    }
}

/// A reload makes a second policy before it frees the first one, and the next ones use that memory
/// again.
#[test]
fn reloads_of_5000_rules_need_the_memory_of_a_second_policy_and_no_more() {
    const RELOADS: usize = 25;
    let policy = |burst: usize| {
        let limits = format!("[\"100/s burst {burst}\"]");
        let rule = |n: usize| {
            format!(
                "- {{ name: r{n}, match: {{ path: /v{n} }}, key: [client_ip], limits: {limits} }}\n"
            )
        };
        format!("rules:\n{}", (0..5_000).map(rule).collect::<String>())
    };
    let folder = TempFolder::new();
    let file = folder.write("policy.yaml", &policy(20));
    let server = ServerProcess::start(&["--config", file.to_str().unwrap()], &[]);
    let mut resident = vec![resident_kib(&server)];
    for reload in 1..=RELOADS {
        folder.write("policy.yaml", &policy(20 + reload));
        server.signal("HUP");
        let done = wait_until(|| (server.logged("policy reloaded") >= reload).then_some(()));
        assert!(done.is_some(), "reload {reload}");
        resident.push(resident_kib(&server));
    }
    let [start, fifth, end] = [0, 5, RELOADS].map(|reload| resident[reload]);
    print_figure(format!(
        "5,000 rules: {start} KiB, {fifth} after 5 reloads, {end} after {RELOADS}"
    ));
    assert!(end <= 2 * start, "{resident:?}");
    assert!(end <= fifth + fifth / 10, "{resident:?}");
}

fn resident_kib(server: &ServerProcess) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
