//! `tidegate bench`: counts that are the target's own, waits that nobody hides, and troubles that are told.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::certificates::{Authority, Certificate};
use crate::late::{Becomes, Target};
use crate::life::redis_server::Server as RedisServer;
use crate::life::{Ran, tidegate};
use crate::resp::Client;
use crate::support::{Folder, Server, wait_until};

const POLICY: &str = r#"rules:
  - { name: few, limits: ["fixed-window 5/1d"] }
  - { name: many, limits: ["1000000/s"] }
"#;

fn bench(target: &str, arguments: &[&str]) -> Ran {
    tidegate(&[&["bench", "--target", target], arguments].concat(), &[])
}

/// The report of one that ends well, in JSON.
fn report(target: &str, arguments: &[&str]) -> Value {
    told(&bench(target, &[arguments, &["--json"]].concat()))
}

fn told(ran: &Ran) -> Value {
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

/// Every question is one of these, and has a latency.
fn adds_up(report: &Value) {
    let parts = ["allowed", "denied", "errors", "unsent"].map(|name| count(report, name));
    assert_eq!(count(report, "requests"), parts.iter().sum::<u64>(), "{report}");
    let kinds = report["errors_by_kind"].as_array().unwrap().iter();
    assert_eq!(kinds.map(|kind| count(kind, "count")).sum::<u64>(), parts[2], "{report}");
    let at = |name: &str| micros(report, "latency_us", name);
    let rising = ["min", "p50", "p90", "p99", "p99_9", "p99_99", "max"].map(at);
    assert!(rising.is_sorted() && (rising[0]..=rising[6]).contains(&at("mean")), "{report}");
}

/// How many decisions the server says it has made.
fn decided(server: &Server, outcome: &str) -> u64 {
    let metrics = server.get("/metrics").body;
    let of = format!("outcome=\"{outcome}\"");
    let lines = metrics.lines().filter(|line| line.starts_with("tidegate_checks_total{"));
    let counts = lines.filter(|line| line.contains(&of)).filter_map(|line| line.split(' ').nth(1));
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}

/// What was asked is what the server has decided. The first question is not among the requests, and allowed.
fn agrees(report: &Value, server: &Server) {
    adds_up(report);
    assert_eq!(count(report, "errors"), 0, "{report}");
    assert_eq!(count(report, "warmup_requests"), 1, "{report}");
    assert_eq!(count(report, "allowed") + 1, decided(server, "allow"), "{report}");
    assert_eq!(count(report, "denied"), decided(server, "deny"), "{report}");
    assert!(count(report, "requests") > 0 && count(report, "achieved_per_second") > 0, "{report}");
}

#[test]
fn what_is_counted_is_what_the_server_has_decided() {
    let folder = Folder::new();
    let limits = "domain: edge\ndescriptors:\n  - key: user\n    limits: [\"fixed-window 5/1d\"]\n";
    let limits = folder.write("edge.yaml", limits);
    let limits = limits.parent().unwrap().to_str().unwrap();
    let policy = Folder::new().write("policy.yaml", POLICY);
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
        let server = Server::start(&serve, &[]);
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
            // Ten keys with five each, the first question included.
            let (allowed, denied) = (count(&report, "allowed"), count(&report, "denied"));
            assert!(allowed <= 49 && denied > 0, "{scheme} {arguments:?}: {report}");
            assert_eq!(server.metric("tidegate_tracked_keys"), Some(10.0), "{report}");
        } else {
            assert_eq!(count(&report, "denied"), 0, "{scheme} {arguments:?}: {report}");
        }
        if arguments.contains(&"--rate") {
            assert_eq!(count(&report, "requests"), 100, "{report}");
        }
    }
}

#[test]
fn a_redis_is_asked_through_the_library() {
    let redis = RedisServer::start();
    let arguments = [
        "--limit",
        "fixed-window 5/1d",
        "--duration",
        "500ms",
        "--keys",
        "10",
        "--warmup",
        "100ms",
    ];
    let told = report(&redis.url(), &arguments);
    adds_up(&told);
    assert!(count(&told, "denied") > 0 && count(&told, "errors") == 0, "{told}");
    assert!(count(&told, "allowed") < 50 && count(&told, "warmup_requests") > 1, "{told}");
    let mut client = Client::connect(([127, 0, 0, 1], redis.port()).into());
    let all = client.ask("KEYS *");
    // Ten keys, and what their names are hashed with.
    assert_eq!(all.items().len(), 11, "{all}");
    assert!(all.items().iter().all(|key| key.text().starts_with("tg-bench:")), "{all}");

    let told = report(&redis.url(), &["--duration", "300ms", "--rate", "100/s", "--warmup", "0s"]);
    assert_eq!(count(&told, "requests"), 30, "{told}");
    assert_eq!(count(&told, "allowed") + count(&told, "unsent"), 30, "{told}");
}

#[test]
fn an_open_loop_shows_a_stall_that_a_closed_one_hides() {
    const STALL: Duration = Duration::from_millis(500);
    // So that a loop without a rate leaves something of the machine to others.
    const USUAL: Duration = Duration::from_millis(2);
    let stalls_once =
        || Target::start(|asked| Becomes::Late(if asked == 50 { STALL } else { USUAL }));
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
    // A hundred of 400 were due while nobody answered, and waited for up to half a second.
    assert_eq!(count(&open, "requests"), 400, "{open}");
    assert!(micros(&open, "latency_us", "p90") >= stall / 3, "{open}");
    assert!(micros(&open, "latency_us", "p99") >= stall * 3 / 4, "{open}");
    assert!(micros(&open, "behind_us", "max") >= stall * 9 / 10, "{open}");
    // Only one of them all was sent into the stall.
    assert!(count(&closed, "requests") > 50, "{closed}");
    assert!(micros(&closed, "latency_us", "p90") < stall / 3, "{closed}");
    assert_eq!((&closed["kept_up"], &closed["behind_us"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_target_that_cannot_keep_up_is_told_and_nothing_due_is_left_out() {
    let slow = Target::start(|_| Becomes::Late(Duration::from_millis(20)));
    let arguments =
        ["--connections", "1", "--rate", "1000/s", "--duration", "1s", "--warmup", "500ms"];
    let told = report(&slow.url(), &arguments);
    adds_up(&told);
    assert_eq!(told["kept_up"], false, "{told}");
    assert_eq!(count(&told, "requests"), 1_000, "{told}");
    // At most fifty a second, for the second and the one that is granted beyond.
    assert!((800..1_000).contains(&count(&told, "unsent")), "{told}");
    assert!(count(&told, "achieved_per_second") <= 60, "{told}");
    assert!(micros(&told, "latency_us", "p50") >= 1_000_000, "{told}");
    // All that was sent is told, whether it counts or not.
    let asked = count(&told, "requests") - count(&told, "unsent") + count(&told, "warmup_requests");
    assert_eq!(asked, slow.asked(), "{told}");

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
    type Course = fn(u64) -> Becomes;
    let cases: [(Course, &str, &str, &str); 4] = [
        (
            |nth| Becomes::Answered(if nth % 2 == 0 { 200 } else { 503 }),
            "5s",
            "http 503",
            "as the test wants it",
        ),
        (
            |nth| if nth % 10 == 9 { Becomes::HungUp } else { Becomes::Answered(200) },
            "5s",
            "closed",
            "",
        ),
        (
            |nth| if nth % 10 == 9 { Becomes::Forgotten } else { Becomes::Answered(200) },
            "1s",
            "timeout",
            "no answer within 1s",
        ),
        (|nth| Becomes::Answered(if nth == 0 { 200 } else { 999 }), "5s", "http 999", ""),
    ];
    for (becomes, patience, kind, example) in cases {
        let arguments = [&common[..], &["--timeout", patience]].concat();
        let target = Target::start(becomes);
        let told = report(&target.url(), &arguments);
        adds_up(&told);
        let kinds = told["errors_by_kind"].as_array().unwrap();
        assert_eq!(kinds.len(), 1, "{told}");
        assert_eq!(kinds[0]["kind"], kind, "{told}");
        assert!(kinds[0]["example"].as_str().unwrap().contains(example), "{told}");
        let sent = count(&told, "requests") - count(&told, "unsent");
        let asked = sent + count(&told, "warmup_requests");
        // What was given up may not have come to the target.
        let at_least = if kind == "timeout" { asked - count(&told, "errors") } else { asked };
        assert!((at_least..=asked).contains(&target.asked()), "{} {told}", target.asked());
        let ran = bench(&Target::start(becomes).url(), &arguments);
        assert!(ran.stdout.contains(&format!("  {kind}: ")), "{}{}", ran.stdout, ran.stderr);
    }
}

#[test]
fn a_server_that_goes_away_is_counted_and_not_the_end() {
    let server = Server::with_policy(POLICY);
    let target = format!("resp://{}", server.resp);
    // Long enough to be there when the server goes, and to look for it again, on a busy machine too.
    let arguments = ["--duration", "10s", "--warmup", "0s", "--rate", "500/s", "--json"];
    let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "--target", &target])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(|| (decided(&server, "allow") > 100).then_some(())).expect("it is asked");
    drop(server);
    let told = told(&Ran::from(&child.wait_with_output().unwrap()));
    adds_up(&told);
    assert!(count(&told, "allowed") > 0, "{told}");
    let kinds = told["errors_by_kind"].as_array().unwrap().iter().map(|kind| &kind["kind"]);
    let kinds: Vec<&Value> = kinds.collect();
    assert!(kinds.contains(&&"connect".into()), "{told}");
    // They are asked again ever later, and not as fast as the system says no.
    assert!(count(&told, "errors") < 50 * 20, "{told}");
}

#[test]
fn whoever_stops_it_early_has_a_report_of_what_was_asked() {
    for load in [&[][..], &["--rate", "500/s"]] {
        let server = Server::with_policy(POLICY);
        let target = format!("http://{}", server.http);
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["bench", "--target", &target, "--duration", "1h", "--warmup", "0s", "--json"])
            .args(load)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until(|| (decided(&server, "allow") > 100).then_some(())).expect("it is asked");
        let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(status.unwrap().success());
        let told = told(&Ran::from(&child.wait_with_output().unwrap()));
        assert_eq!(told["ended"], "stopped", "{told}");
        agrees(&told, &server);
        assert!(count(&told, "elapsed_us") < 60_000_000, "{told}");
    }
}

#[test]
fn doors_with_tls_and_tokens_are_opened() {
    let authority = Authority::new();
    let Certificate { cert, key } = authority.certify("127.0.0.1");
    let token = [("TIDEGATE_TOKEN", "open")];
    let server = Server::start(&["--tls-cert", &cert, "--tls-key", &key], &token);
    let ca = authority.ca();
    let common = ["--ca", &ca, "--duration", "200ms", "--connections", "2", "--json"];
    for (plain, scheme, address, refusal) in [
        ("http", "https", server.http, "http 401"),
        ("resp", "resps", server.resp, "resp NOAUTH"),
        ("grpc", "grpcs", server.grpc, "grpc 16"),
    ] {
        let (plain, secure) = (format!("{plain}://{address}"), format!("{scheme}://{address}"));
        let ask = |target: &str, variables: &[(&str, &str)]| {
            tidegate(&[&["bench", "--target", target], &common[..]].concat(), variables)
        };
        let told = told(&ask(&secure, &token));
        adds_up(&told);
        assert!(count(&told, "allowed") > 0 && count(&told, "errors") == 0, "{told}");

        let ran = ask(&secure, &[]);
        assert_eq!(ran.code, Some(2), "{}", ran.stdout);
        let advice = "; set TIDEGATE_TOKEN to the server's token";
        assert!(ran.stderr.contains(refusal) && ran.stderr.contains(advice), "{}", ran.stderr);
        let ran = ask(&plain, &token);
        assert_eq!(ran.code, Some(2), "{}", ran.stdout);
        assert!(ran.stderr.contains("no decision from "), "{}", ran.stderr);
    }
    let somebody_else = Authority::new();
    let target = format!("https://{}", server.http);
    let ran = tidegate(&["bench", "--target", &target, "--ca", &somebody_else.ca()], &token);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--ca the right file?"), "{}", ran.stderr);
}

#[test]
fn the_report_says_what_was_asked_and_how() {
    let server = Server::with_policy(POLICY);
    let target = format!("resp://{}", server.resp);
    let told = report(
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
    assert_eq!(told["options"], expected);
    // Up to 150 while it warms up, and one before.
    assert_eq!(count(&told, "requests"), 300, "{told}");
    assert!((1..=151).contains(&count(&told, "warmup_requests")), "{told}");

    let ran = bench(&target, &["--duration", "200ms", "--warmup", "0s", "--rule", "few"]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    let heading =
        format!("{target}: rule few, 1,000 keys, seed 1\nclosed loop, 50 connections, 200ms\n\n");
    assert!(ran.stdout.starts_with(&heading), "{}", ran.stdout);
    for words in
        ["requests  allowed  denied  errors  a second\n", "p50", "p99.99", "max", "\nlatency "]
    {
        assert!(ran.stdout.contains(words), "{words:?}: {}", ran.stdout);
    }

    // Nothing is limited there, and it says so.
    let grpc = report(&format!("grpc://{}", server.grpc), &["--duration", "100ms"]);
    assert!(grpc["note"].as_str().unwrap().contains("no limit applies"), "{grpc}");
}

#[test]
fn where_nothing_can_be_asked_it_ends_with_2_and_what_to_do() {
    let server = Server::with_policy(POLICY);
    let (http, resp) = (format!("http://{}", server.http), format!("resp://{}", server.resp));
    let (grpc, crossed) = (format!("grpc://{}", server.grpc), format!("resp://{}", server.http));
    let quick = ["--timeout", "300ms", "--duration", "100ms"];
    let cases: [(&str, &[&str], &str); 34] = [
        ("http://127.0.0.1:1", &[], "connect: Connection refused"),
        ("resp://127.0.0.1:1", &[], "start it, with tidegate serve"),
        ("grpc://127.0.0.1:1", &[], "connect: Connection refused"),
        ("redis://127.0.0.1:1", &quick, "store unavailable: "),
        (&crossed, &[], "garbled: this is not the Redis protocol"),
        (&http, &["--rule", "nobody"], "http 404: rule: no rule named"),
        (&resp, &["--rule", "nobody"], "name a rule of its policy with --rule"),
        (&http, &["--rule", "few", "--limit", "5/s"], "cannot be used with"),
        (&http, &["--limit", "5/parsec"], "--limit: unknown unit \"parsec\""),
        (&http, &["--domain", "edge"], "only grpc:// has domains"),
        (&grpc, &["--rule", "few"], "name --domain and --descriptor instead"),
        (&grpc, &["--limit", "5/s"], "name --domain and --descriptor instead"),
        (&grpc, &["--descriptor", "user"], "--descriptor: write entries like"),
        ("redis://127.0.0.1:1", &["--rule", "few"], "a store knows no rules"),
        (&http, &["--pipeline", "2"], "only resp:// takes several"),
        (&resp, &["--pipeline", "1001"], "write a number from 1 to 1000"),
        (&http, &["--connections", "0"], "write a number from 1 to 10000"),
        (&http, &["--connections", "10001"], "write a number from 1 to 10000"),
        (&http, &["--keys", "0"], "write a number from 1 to 10000000"),
        (&http, &["--keys", "10000001"], "write a number from 1 to 10000000"),
        (&http, &["--duration", "0s"], "write a span from 1ms to 24h"),
        (&http, &["--duration", "25h"], "write a span from 1ms to 24h"),
        (&http, &["--duration", "10"], "write a span from 1ms to 24h"),
        (&http, &["--rate", "0"], "write a rate from 1/s to 10000000/s"),
        (&http, &["--rate", "10000001/s"], "write a rate from 1/s to 10000000/s"),
        (&http, &["--rate", "fast"], "write a rate like 5000/s"),
        (&http, &["--zipf", "11"], "write an exponent from 0.001 to 10"),
        (&http, &["--cost", "5000000000"], "a cost is at most 4294967296"),
        (&http, &["--timeout", "2min"], "write a span from 1ms to 1m"),
        ("memory", &[], "--target: not a target; use http://"),
        ("127.0.0.1:8080", &[], "--target: not a target; use http://"),
        ("http://user:hunter2@h", &[], "--target: write a host and a port"),
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
    assert_eq!(decided(&server, "allow") + decided(&server, "deny"), 0, "nothing was asked");
}

#[test]
fn help_shows_how() {
    let ran = tidegate(&["bench", "--help"], &[]);
    assert_eq!(ran.code, Some(0));
    for words in ["--target <URL>", "--rate <RATE>", "resp://127.0.0.1:6380", "denies nobody"] {
        assert!(ran.stdout.contains(words), "{words:?}:\n{}", ran.stdout);
    }
    assert!(ran.stdout.lines().all(|line| line.len() <= 100), "{}", ran.stdout);
    assert!(ran.stdout.lines().count() <= 60, "{}", ran.stdout);
}
