//! `tidegate bench`: counts equal the target's, waits are included in latency, and errors are
//! reported.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use testkit::certificates::{TestCa, TestCertificate};
use testkit::process::{CommandOutput, tidegate};
use testkit::redis::RedisServer;
use testkit::resp::RespConnection;
use testkit::server::{ServerProcess, TempFolder, wait_until};
use testkit::slow_target::{SlowTarget, TargetReply};

const POLICY: &str = r#"rules:
  - { name: few, limits: ["fixed-window 5/1d"] }
  - { name: many, limits: ["1000000/s"] }
"#;

fn bench(target: &str, arguments: &[&str]) -> CommandOutput {
    tidegate(&[&["bench", "--target", target], arguments].concat(), &[])
}

/// The JSON report of a successful run.
fn report(target: &str, arguments: &[&str]) -> Value {
    output(&bench(target, &[arguments, &["--json"]].concat()))
}

fn output(ran: &CommandOutput) -> Value {
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.stdout);
    assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
    serde_json::from_str(&ran.stdout).unwrap()
}

fn count(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name}: {report}"))
}

fn micros(report: &Value, of: &str, name: &str) -> u64 {
    report[of][name].as_u64().unwrap_or_else(|| panic!("no {name} of {of}: {report}"))
}

/// Every request has one of these results, and a latency.
fn adds_up(report: &Value) {
    let parts = ["allowed", "denied", "errors", "unsent"].map(|name| count(report, name));
    assert_eq!(count(report, "requests"), parts.iter().sum::<u64>(), "{report}");
    let kinds = report["errors_by_kind"].as_array().unwrap().iter();
    assert_eq!(kinds.map(|kind| count(kind, "count")).sum::<u64>(), parts[2], "{report}");
    let at = |name: &str| micros(report, "latency_us", name);
    let rising = ["min", "p50", "p90", "p99", "p99_9", "p99_99", "max"].map(at);
    assert!(rising.is_sorted() && (rising[0]..=rising[6]).contains(&at("mean")), "{report}");
}

/// Number of decisions by the server's metrics.
fn decided(server: &ServerProcess, outcome: &str) -> u64 {
    let metrics = server.get("/metrics").body;
    let of = format!("outcome=\"{outcome}\"");
    let lines = metrics.lines().filter(|line| line.starts_with("tidegate_checks_total{"));
    let counts = lines.filter(|line| line.contains(&of)).filter_map(|line| line.split(' ').nth(1));
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}

/// The requests equal the server's decisions. The first probe is allowed and is not counted as a
/// request.
fn agrees(report: &Value, server: &ServerProcess) {
    adds_up(report);
    assert_eq!(count(report, "errors"), 0, "{report}");
    assert_eq!(count(report, "warmup_requests"), 1, "{report}");
    assert_eq!(count(report, "allowed") + 1, decided(server, "allow"), "{report}");
    assert_eq!(count(report, "denied"), decided(server, "deny"), "{report}");
    assert!(count(report, "requests") > 0 && count(report, "achieved_per_second") > 0, "{report}");
}

#[test]
fn what_is_counted_is_what_the_server_has_decided() {
    let folder = TempFolder::new();
    let limits = "domain: edge\ndescriptors:\n  - key: user\n    limits: [\"fixed-window 5/1d\"]\n";
    let limits = folder.write("edge.yaml", limits);
    let limits = limits.parent().unwrap().to_str().unwrap();
    let policy = TempFolder::new().write("policy.yaml", POLICY);
    let serve = ["--config", policy.to_str().unwrap(), "--envoy-config", limits];
    let common = ["--duration", "500ms", "--warmup", "0s", "--keys", "10", "--connections", "5"];
    let descriptor = ["--domain", "edge", "--descriptor", "user={key}"];
    let cases: [(&str, &[&str], bool); 9] = [
        ("http", &["--rule", "few"], true),
        ("http", &["--limit", "fixed-window 5/1d"], true),
        ("http", &[], false),
        ("http", &["--rule", "many", "--rate", "200/s"], false),
        ("resp", &["--rule", "few"], true),
        ("resp", &["--limit", "fixed-window 5/1d", "--pipeline", "16"], true),
        ("resp", &["--rate", "200", "--zipf", "1.1"], false),
        ("grpc", &descriptor, true),
        ("grpc", &[&descriptor[..], &["--rate", "200/s"]].concat(), true),
    ];
    for (scheme, arguments, denies) in cases {
        let server = ServerProcess::start(&serve, &[]);
        let address = match scheme {
            "http" => server.http,
            "resp" => server.resp,
            _ => server.grpc,
        };
        let target = format!("{scheme}://{address}");
        let report = report(&target, &[&common[..], arguments].concat());
        agrees(&report, &server);
        assert_eq!((&report["target"], &report["ended"]), (&target.into(), &"done".into()));
        assert_eq!(report["note"], Value::Null);
        if denies {
            // Ten keys with five permits each, the probe included.
            let (allowed, denied) = (count(&report, "allowed"), count(&report, "denied"));
            assert!(allowed <= 49 && denied > 0, "{scheme} {arguments:?}: {report}");
            // On a busy machine, a few requests may leave out a key.
            let keys = server.metric("tidegate_tracked_keys").unwrap();
            assert!((1.0..=10.0).contains(&keys), "{keys}: {report}");
        } else {
            assert_eq!(count(&report, "denied"), 0, "{scheme} {arguments:?}: {report}");
        }
        if arguments.contains(&"--rate") {
            assert_eq!(count(&report, "requests"), 100, "{report}");
        }
    }
}

#[test]
fn redis_is_called_through_the_library() {
    let redis = RedisServer::start();
    let arguments =
        ["--limit", "fixed-window 5/1d", "--duration", "1s", "--keys", "10", "--warmup", "500ms"];
    let output = report(&redis.url(), &arguments);
    adds_up(&output);
    assert!(count(&output, "denied") > 0 && count(&output, "errors") == 0, "{output}");
    assert!(count(&output, "allowed") < 50 && count(&output, "warmup_requests") > 1, "{output}");
    let mut client = RespConnection::connect(([127, 0, 0, 1], redis.port()).into());
    let all = client.send("KEYS *");
    // Ten keys and the secret.
    assert_eq!(all.items().len(), 11, "{all}");
    assert!(all.items().iter().all(|key| key.text().starts_with("tg-bench:")), "{all}");

    let output =
        report(&redis.url(), &["--duration", "300ms", "--rate", "100/s", "--warmup", "0s"]);
    assert_eq!(count(&output, "requests"), 30, "{output}");
    assert_eq!(count(&output, "allowed") + count(&output, "unsent"), 30, "{output}");
}

#[test]
fn an_open_loop_shows_a_stall_that_a_closed_one_hides() {
    const STALL: Duration = Duration::from_millis(500);
    // Leaves CPU time to other processes.
    const USUAL: Duration = Duration::from_millis(2);
    let stalls_once =
        || SlowTarget::start(|nth| TargetReply::Late(if nth == 50 { STALL } else { USUAL }));
    let common = ["--connections", "1", "--warmup", "0s"];
    let open = ["--rate", "200/s", "--duration", "2s"];
    let open = report(&stalls_once().url(), &[&common[..], &open].concat());
    let closed = report(&stalls_once().url(), &[&common[..], &["--duration", "4s"]].concat());
    adds_up(&open);
    adds_up(&closed);
    let stall = u64::try_from(STALL.as_micros()).unwrap();
    for report in [&open, &closed] {
        assert!(micros(report, "latency_us", "max") >= stall, "{report}");
    }
    // A hundred of 400 were due during the stall, and waited up to half a second.
    assert_eq!(count(&open, "requests"), 400, "{open}");
    assert!(micros(&open, "latency_us", "p90") >= stall / 3, "{open}");
    assert!(micros(&open, "latency_us", "p99") >= stall * 3 / 4, "{open}");
    assert!(micros(&open, "behind_us", "max") >= stall * 9 / 10, "{open}");
    // Only one request was sent during the stall.
    assert!(count(&closed, "requests") > 50, "{closed}");
    let [of_closed, of_open] = [&closed, &open].map(|run| micros(run, "latency_us", "p90"));
    assert!(of_closed < of_open, "{closed}");
    assert_eq!((&closed["kept_up"], &closed["behind_us"]), (&Value::Null, &Value::Null));
}

#[test]
fn an_overloaded_target_is_reported_and_no_scheduled_request_is_left_out() {
    let slow = SlowTarget::start(|_| TargetReply::Late(Duration::from_millis(20)));
    let arguments =
        ["--connections", "1", "--rate", "1000/s", "--duration", "1s", "--warmup", "500ms"];
    let output = report(&slow.url(), &arguments);
    adds_up(&output);
    assert_eq!(output["kept_up"], false, "{output}");
    assert_eq!(count(&output, "requests"), 1_000, "{output}");
    // At most fifty per second, for the second and one second of grace.
    assert!((800..1_000).contains(&count(&output, "unsent")), "{output}");
    assert!(count(&output, "achieved_per_second") <= 60, "{output}");
    assert!(micros(&output, "latency_us", "p50") >= 1_000_000, "{output}");
    // Everything sent is reported, whether it counts or not.
    let requests =
        count(&output, "requests") - count(&output, "unsent") + count(&output, "warmup_requests");
    assert_eq!(requests, slow.requests(), "{output}");

    let ran = bench(&slow.url(), &arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for words in ["open loop at 1000/s, 1 connection", "DID NOT KEEP UP with 1000/s", "never sent"]
    {
        assert!(ran.stdout.contains(words), "{}", ran.stdout);
    }
}

#[test]
fn troubles_are_counted_by_kind_and_end_nothing() {
    let common = ["--connections", "2", "--rate", "500/s", "--duration", "1s", "--warmup", "0s"];
    type Course = fn(u64) -> TargetReply;
    let cases: [(Course, &str, &str, &str); 4] = [
        (
            |nth| TargetReply::Status(if nth % 2 == 0 { 200 } else { 503 }),
            "5s",
            "http 503",
            "as the test wants it",
        ),
        (
            |nth| if nth % 10 == 9 { TargetReply::Close } else { TargetReply::Status(200) },
            "5s",
            "closed",
            "",
        ),
        (
            |nth| if nth % 10 == 9 { TargetReply::Never } else { TargetReply::Status(200) },
            "1s",
            "timeout",
            "no response within 1s",
        ),
        (|nth| TargetReply::Status(if nth == 0 { 200 } else { 999 }), "5s", "http 999", ""),
    ];
    for (becomes, patience, kind, example) in cases {
        let arguments = [&common[..], &["--timeout", patience]].concat();
        let target = SlowTarget::start(becomes);
        let output = report(&target.url(), &arguments);
        adds_up(&output);
        let kinds = output["errors_by_kind"].as_array().unwrap();
        assert_eq!(kinds.len(), 1, "{output}");
        assert_eq!(kinds[0]["kind"], kind, "{output}");
        assert!(kinds[0]["example"].as_str().unwrap().contains(example), "{output}");
        let sent = count(&output, "requests") - count(&output, "unsent");
        let requests = sent + count(&output, "warmup_requests");
        // Requests given up may not have reached the target.
        let at_least =
            if kind == "timeout" { requests - count(&output, "errors") } else { requests };
        assert!(
            (at_least..=requests).contains(&target.requests()),
            "{} {output}",
            target.requests()
        );
        let ran = bench(&SlowTarget::start(becomes).url(), &arguments);
        assert!(ran.stdout.contains(&format!("  {kind}: ")), "{}{}", ran.stdout, ran.stderr);
    }
}

#[test]
fn a_server_that_goes_away_is_counted_and_not_the_end() {
    let server = ServerProcess::with_policy(POLICY);
    let target = format!("resp://{}", server.resp);
    // Long enough to see the server stop and to reconnect, on a busy machine too.
    let arguments = ["--duration", "10s", "--warmup", "0s", "--rate", "500/s", "--json"];
    let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "--target", &target])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(|| (decided(&server, "allow") > 100).then_some(())).expect("it receives requests");
    drop(server);
    let output = output(&CommandOutput::from(&child.wait_with_output().unwrap()));
    adds_up(&output);
    assert!(count(&output, "allowed") > 0, "{output}");
    let kinds = output["errors_by_kind"].as_array().unwrap().iter().map(|kind| &kind["kind"]);
    let kinds: Vec<&Value> = kinds.collect();
    assert!(kinds.contains(&&"connect".into()), "{output}");
    // Reconnects back off instead of following every refusal at once.
    assert!(count(&output, "errors") < 50 * 20, "{output}");
}

#[test]
fn an_interrupted_run_reports_the_requests_so_far() {
    for load in [&[][..], &["--rate", "500/s"]] {
        let server = ServerProcess::with_policy(POLICY);
        let target = format!("http://{}", server.http);
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["bench", "--target", &target, "--duration", "1h", "--warmup", "0s", "--json"])
            .args(load)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until(|| (decided(&server, "allow") > 100).then_some(()))
            .expect("it receives requests");
        let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(status.unwrap().success());
        let output = output(&CommandOutput::from(&child.wait_with_output().unwrap()));
        assert_eq!(output["ended"], "stopped", "{output}");
        agrees(&output, &server);
        assert!(count(&output, "elapsed_us") < 60_000_000, "{output}");
    }
}

#[test]
fn listeners_with_tls_and_tokens_are_supported() {
    let authority = TestCa::new();
    let TestCertificate { cert, key } = authority.issue("127.0.0.1");
    let token = [("TIDEGATE_TOKEN", "open")];
    let server = ServerProcess::start(&["--tls-cert", &cert, "--tls-key", &key], &token);
    let ca = authority.ca();
    let common = ["--ca", &ca, "--duration", "200ms", "--connections", "2", "--json"];
    for (plain, scheme, address, refusal) in [
        ("http", "https", server.http, "http 401"),
        ("resp", "resps", server.resp, "resp NOAUTH"),
        ("grpc", "grpcs", server.grpc, "grpc 16"),
    ] {
        let (plain, secure) = (format!("{plain}://{address}"), format!("{scheme}://{address}"));
        let run_bench = |target: &str, variables: &[(&str, &str)]| {
            tidegate(&[&["bench", "--target", target], &common[..]].concat(), variables)
        };
        let output = output(&run_bench(&secure, &token));
        adds_up(&output);
        assert!(count(&output, "allowed") > 0 && count(&output, "errors") == 0, "{output}");

        let ran = run_bench(&secure, &[]);
        assert_eq!(ran.code, Some(2), "{}", ran.stdout);
        let advice = "; set TIDEGATE_TOKEN to the server's token";
        assert!(ran.stderr.contains(refusal) && ran.stderr.contains(advice), "{}", ran.stderr);
        let ran = run_bench(&plain, &token);
        assert_eq!(ran.code, Some(2), "{}", ran.stdout);
        assert!(ran.stderr.contains("no successful request "), "{}", ran.stderr);
    }
    let other_ca = TestCa::new();
    let target = format!("https://{}", server.http);
    let ran = tidegate(&["bench", "--target", &target, "--ca", &other_ca.ca()], &token);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("is --ca correct?"), "{}", ran.stderr);
}

#[test]
fn the_report_names_the_load_and_its_settings() {
    let server = ServerProcess::with_policy(POLICY);
    let target = format!("resp://{}", server.resp);
    let output = report(
        &target,
        &[
            &["--rate", "90000/min", "--connections", "3", "--keys", "7", "--zipf", "1.25"][..],
            &["--seed", "9", "--cost", "0", "--pipeline", "2", "--timeout", "2s"],
            &["--duration", "200ms", "--warmup", "100ms", "--rule", "many"],
        ]
        .concat(),
    );
    let expected = serde_json::json!({
        "loop": "open", "rate": "90000/m", "connections": 3, "pipeline": 2, "keys": 7, "zipf": "1.25", "seed": 9,
        "cost": 0, "rule": "many", "duration_us": 200_000, "warmup_us": 100_000, "timeout_us": 2_000_000,
    });
    assert_eq!(output["options"], expected);
    // Up to 150 during warm-up, and one probe.
    assert_eq!(count(&output, "requests"), 300, "{output}");
    assert!((1..=151).contains(&count(&output, "warmup_requests")), "{output}");

    let ran = bench(&target, &["--duration", "2s", "--warmup", "0s", "--rule", "few"]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    let heading =
        format!("{target}: rule few, 1,000 keys, seed 1\nclosed loop, 50 connections, 2s\n\n");
    assert!(ran.stdout.starts_with(&heading), "{}", ran.stdout);
    for words in
        ["requests  allowed  denied  errors  a second\n", "p50", "p99.99", "max", "\nlatency "]
    {
        assert!(ran.stdout.contains(words), "{words:?}: {}", ran.stdout);
    }

    // The target has no limit, and the report says so.
    let grpc = report(&format!("grpc://{}", server.grpc), &["--duration", "100ms"]);
    assert!(grpc["note"].as_str().unwrap().contains("no limit matches"), "{grpc}");
}

#[test]
fn an_unusable_target_exits_with_2_and_a_remedy() {
    let server = ServerProcess::with_policy(POLICY);
    let (http, resp) = (format!("http://{}", server.http), format!("resp://{}", server.resp));
    let (grpc, crossed) = (format!("grpc://{}", server.grpc), format!("resp://{}", server.http));
    let quick = ["--timeout", "300ms", "--duration", "100ms"];
    let cases: [(&str, &[&str], &str); 34] = [
        ("http://127.0.0.1:1", &[], "connect: Connection refused"),
        ("resp://127.0.0.1:1", &[], "start it (a server: tidegate serve)"),
        ("grpc://127.0.0.1:1", &[], "connect: Connection refused"),
        ("redis://127.0.0.1:1", &quick, "store unavailable: "),
        (&crossed, &[], "garbled: not the Redis protocol"),
        (&http, &["--rule", "missing"], "http 404: rule: no rule named"),
        (&resp, &["--rule", "missing"], "name a rule of the server's policy with --rule"),
        (&http, &["--rule", "few", "--limit", "5/s"], "cannot be used with"),
        (&http, &["--limit", "5/parsec"], "--limit: unknown unit \"parsec\""),
        (&http, &["--domain", "edge"], "--domain and --descriptor need grpc://"),
        (&grpc, &["--rule", "few"], "use --domain and --descriptor"),
        (&grpc, &["--limit", "5/s"], "use --domain and --descriptor"),
        (&grpc, &["--descriptor", "user"], "--descriptor: expected entries like"),
        ("redis://127.0.0.1:1", &["--rule", "few"], "a store has no rules"),
        (&http, &["--pipeline", "2"], "only supported with resp://"),
        (&resp, &["--pipeline", "1001"], "expected a number from 1 to 1000"),
        (&http, &["--connections", "0"], "expected a number from 1 to 10000"),
        (&http, &["--connections", "10001"], "expected a number from 1 to 10000"),
        (&http, &["--keys", "0"], "expected a number from 1 to 10000000"),
        (&http, &["--keys", "10000001"], "expected a number from 1 to 10000000"),
        (&http, &["--duration", "0s"], "expected a duration from 1ms to 24h"),
        (&http, &["--duration", "25h"], "expected a duration from 1ms to 24h"),
        (&http, &["--duration", "10"], "expected a duration from 1ms to 24h"),
        (&http, &["--rate", "0"], "expected a rate from 1/s to 10000000/s"),
        (&http, &["--rate", "10000001/s"], "expected a rate from 1/s to 10000000/s"),
        (&http, &["--rate", "fast"], "expected a rate like 5000/s"),
        (&http, &["--zipf", "11"], "expected an exponent from 0.001 to 10"),
        (&http, &["--cost", "5000000000"], "expected a whole number from 0 to 4294967296"),
        (&http, &["--timeout", "2min"], "expected a duration from 1ms to 1m"),
        ("memory", &[], "--target: invalid target; use http[s]://"),
        ("127.0.0.1:8080", &[], "--target: invalid target; use http[s]://"),
        ("http://user:hunter2@h", &[], "--target: expected host and port"),
        ("redis://hunter2@h", &[], "--target: "),
        (&http, &["--ca", "/nowhere.pem", "--nonsense"], "--nonsense"),
    ];
    for (target, arguments, message) in cases {
        let ran = bench(target, arguments);
        assert_eq!(ran.code, Some(2), "{target} {arguments:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(message), "{target} {arguments:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("panicked") && !ran.stderr.contains("hunter2"));
        assert_eq!(ran.stdout, "", "{target} {arguments:?}");
    }
    assert_eq!(decided(&server, "allow") + decided(&server, "deny"), 0, "no request was sent");
}

#[test]
fn help_shows_how() {
    let ran = tidegate(&["bench", "--help"], &[]);
    assert_eq!(ran.code, Some(0));
    for words in ["--target <URL>", "--rate <RATE>", "resp://127.0.0.1:6380", "never denies"] {
        assert!(ran.stdout.contains(words), "{words:?}:\n{}", ran.stdout);
    }
    assert!(ran.stdout.lines().all(|line| line.len() <= 100), "{}", ran.stdout);
    assert!(ran.stdout.lines().count() <= 60, "{}", ran.stdout);
}
