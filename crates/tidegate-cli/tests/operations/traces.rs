//! Spans, at a collector.

use std::time::Duration;

use serde_json::json;
use tidegate_server::internal::transport::envoy::proto::RateLimitResponse;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;

use crate::collector::{CollectorReply, ReceivedSpan, TestCollector};
use testkit::envoy::{descriptor, request};
use testkit::process::{millis, serve};
use testkit::server::{RawHttpConnection, ServerProcess, TempFolder, wait_until};
use testkit::timing::compare_with_goal;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

const POLICY: &str = "rules:\n  - { name: login, limits: [fixed-window 2/1d] }\n";
const ENVOY: &str = "domain: edge\ndescriptors:\n  - key: remote_address\n    rate_limit: { unit: day, requests_per_unit: 1 }\n";

/// A server that sends its spans to `collector`.
fn traced(collector: &TestCollector, more: &[&str]) -> ServerProcess {
    let folder = TempFolder::new();
    let policy = folder.write("policy.yaml", POLICY);
    let mut arguments = vec!["--config", policy.to_str().unwrap(), "--otlp", &collector.url];
    arguments.extend(more);
    ServerProcess::start(&arguments, &[])
}

/// A check over HTTP, as part of a trace with these flags.
fn check(server: &ServerProcess, key: &str, flags: Option<&str>) -> u16 {
    let parent = flags.map(|flags| format!("00-{TRACE}-{PARENT}-{flags}"));
    let headers: Vec<_> = parent.iter().map(|parent| ("traceparent", parent.as_str())).collect();
    let mut client = RawHttpConnection::connect(server.http);
    let body = json!({ "rule": "login", "key": key }).to_string();
    client.send("POST", "/v1/check", &headers, &body);
    client.receive().status
}

/// Number of spans with this outcome, by the metrics.
fn counted(server: &ServerProcess, outcome: &str) -> u64 {
    let start = format!("tidegate_trace_spans_total{{outcome=\"{outcome}\"}} ");
    let metrics = server.get("/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.expect("it is counted").parse().unwrap()
}

async fn check_as_envoy(server: &ServerProcess, address: &str) {
    let client = testkit::envoy::EnvoyClient::connect(server.grpc).await;
    let mut request =
        tonic::Request::new(request("edge", &[descriptor(&[("remote_address", address)])]));
    let parent = format!("00-{TRACE}-{PARENT}-01").parse().unwrap();
    request.metadata_mut().insert("traceparent", parent);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let codec = tonic_prost::ProstCodec::default();
    let mut grpc = Grpc::new(client.channel());
    grpc.ready().await.unwrap();
    let response = grpc.unary(request, PathAndQuery::from_static(path), codec).await.unwrap();
    let _: RateLimitResponse = response.into_inner();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_on_any_listener_is_one_span_with_its_rule_and_never_its_key() {
    let collector = TestCollector::new(CollectorReply::Ok);
    let folder = TempFolder::new();
    let limits = folder.path("limits");
    std::fs::create_dir_all(&limits).unwrap();
    folder.write("limits/edge.yaml", ENVOY);
    let server = traced(&collector, &["--envoy-config", limits.to_str().unwrap()]);
    assert_eq!(check(&server, "secret-key", Some("01")), 200);
    let mut client = testkit::resp::RespConnection::connect(server.resp);
    client.send("PING");
    client.send("TG.CHECK login secret-key");
    client.send("TG.CHECK login secret-key");
    client.send("TG.CHECK nowhere secret-key");
    check_as_envoy(&server, "secret-key").await;
    let spans = collector.wait_for(5);
    let message = |span: &ReceivedSpan| {
        ["tidegate.listener", "tidegate.rule", "tidegate.outcome", "tidegate.source"]
            .map(|name| span.attribute(name).to_string())
            .join(" ")
    };
    let mut found: Vec<_> =
        spans.iter().map(|s| (s.field("name").to_string(), message(s))).collect();
    found.sort();
    let grpc = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    assert_eq!(found.len(), 5, "{found:?}");
    assert_eq!(found[0], ("POST /v1/check".into(), "http login allow memory".into()));
    assert_eq!(found[1], ("TG.CHECK".into(), "resp   ".into()), "no such rule");
    assert_eq!(found[2], ("TG.CHECK".into(), "resp login allow memory".into()));
    assert_eq!(found[3], ("TG.CHECK".into(), "resp login deny memory".into()));
    assert_eq!(found[4].0, grpc);
    assert!(found[4].1.starts_with("grpc ") && found[4].1.ends_with(" allow memory"), "{found:?}");
    for span in &spans {
        let has_parent = span.field("name") != "TG.CHECK";
        assert_eq!(span.field("traceId") == TRACE, has_parent, "{span:?}");
        assert_eq!(span.field("parentSpanId") == PARENT, has_parent, "{span:?}");
        assert_eq!(span.0["flags"], if has_parent { 0x301 } else { 0x101 }, "{span:?}");
        assert!(span.0.get("status").is_none(), "nothing failed: {span:?}");
    }
    let http = spans.iter().find(|span| span.field("name") == "POST /v1/check").unwrap();
    assert_eq!(http.attribute("http.response.status_code"), "200");
    assert_eq!(http.attribute("http.route"), "/v1/check");
    assert!(!collector.text().contains("secret"), "{}", collector.text());
    let all = wait_until(|| Some(counted(&server, "exported")).filter(|count| *count == 5));
    assert_eq!(all, Some(5));
}

#[test]
fn the_parent_decides_on_sampling_and_the_ratio_without_a_parent() {
    let collector = TestCollector::new(CollectorReply::Ok);
    let server = traced(&collector, &["--otlp-sample", "0"]);
    for flags in [None, Some("00"), Some("01"), Some("nonsense"), None] {
        check(&server, "k", flags);
    }
    let spans = collector.wait_for(1);
    assert_eq!((spans.len(), spans[0].field("traceId")), (1, TRACE));

    let collector = TestCollector::new(CollectorReply::Ok);
    let server = traced(&collector, &["--otlp-sample", "0.5"]);
    let mut client = testkit::resp::RespConnection::connect(server.resp);
    (0..2_000).for_each(|_| drop(client.send("TG.PEEK login k")));
    let seen = || Some(counted(&server, "exported")).filter(|count| *count >= 850);
    let count = wait_until(seen).expect("about half of them");
    assert!((850..=1_150).contains(&count), "{count} of 2000");
}

#[test]
fn an_unauthenticated_request_does_not_decide_on_sampling() {
    let collector = TestCollector::new(CollectorReply::Ok);
    let arguments = ["--otlp", &collector.url, "--otlp-sample", "0"];
    let mut server = ServerProcess::start(&arguments, &[("TIDEGATE_TOKEN", "sesame")]);
    let parent = |digit: &str| format!("00-{}-{PARENT}-01", digit.repeat(32));
    for (digit, token, status) in [("a", "", 401), ("b", "wrong", 401), ("c", "sesame", 200)] {
        let parent = parent(digit);
        let headers = [("traceparent", &*parent), ("x-tidegate-token", token)];
        let check = r#"{"rule":"login","key":"k"}"#;
        assert_eq!(server.request("POST", "/v1/check", &headers, check).status, status);
    }
    // The server sends all spans before it exits.
    server.signal("TERM");
    assert!(server.wait().is_some_and(|status| status.success()));
    let traces: Vec<_> = collector.spans().iter().map(|s| s.field("traceId").to_string()).collect();
    assert_eq!(traces, ["c".repeat(32)]);
}

#[test]
fn pending_spans_are_sent_when_the_server_stops() {
    let collector = TestCollector::new(CollectorReply::Ok);
    let mut server = traced(&collector, &[]);
    for _ in 0..700 {
        check(&server, "k", None);
    }
    server.signal("TERM");
    assert!(server.wait().is_some_and(|status| status.success()));
    assert_eq!(collector.spans().len(), 700);
}

#[test]
fn a_collector_that_fails_costs_spans_and_no_call() {
    for reply in [CollectorReply::Unavailable, CollectorReply::Never] {
        let collector = TestCollector::new(reply);
        let mut server = traced(&collector, &[]);
        check(&server, "k", None);
        wait_until(|| (collector.requests() > 0).then_some(())).expect("a request");
        let (took, ()) = millis(|| {
            let mut client = testkit::resp::RespConnection::connect(server.resp);
            (0..200).for_each(|_| drop(client.send("TG.PEEK login k")));
        });
        // Each would wait for the timeout of the collector.
        let [took, goal] = [took, 2_000].map(Duration::from_millis);
        compare_with_goal("200 calls", took, goal);
        if let CollectorReply::Unavailable = reply {
            let failed = wait_until(|| Some(counted(&server, "failed")).filter(|count| *count > 0));
            assert!(failed.is_some() && counted(&server, "exported") == 0);
            let lines =
                server.log().iter().filter(|line| line.contains("span export failed")).count();
            assert_eq!(lines, 1, "once: {:?}", server.log());
        }
        let (took, status) = millis(|| {
            server.signal("TERM");
            server.wait()
        });
        assert!(status.is_some_and(|status| status.success()));
        let [took, goal] = [took, 8_000].map(Duration::from_millis);
        compare_with_goal("the shutdown", took, goal);
    }
}

#[test]
fn only_the_flag_enables_spans_and_the_variable_sets_the_address() {
    let collector = TestCollector::new(CollectorReply::Ok);
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url)];
    let server = ServerProcess::start(&[], &variables);
    check(&server, "k", Some("01"));
    assert!(!server.get("/metrics").body.contains("tidegate_trace"));
    drop(server);
    let mut server = ServerProcess::start(&["--otlp"], &variables);
    check(&server, "k", Some("01"));
    assert_eq!(collector.wait_for(1).len(), 1);
    server.signal("TERM");
    assert!(server.wait().is_some());
    assert_eq!(collector.spans().len(), 1, "none of the server without the flag");
}

#[test]
fn an_invalid_collector_is_refused_at_the_start() {
    let here = ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
    let cases: [(&[&str], &str); 4] = [
        (&["--otlp", "https://c:4318"], "OTLP over https is not supported"),
        (&["--otlp", "c:4318"], "invalid collector URL; expected one like http://127.0.0.1:4318"),
        (&["--otlp", "--otlp-sample", "2"], "expected a ratio from 0 to 1"),
        (&["--otlp"], "OTEL_EXPORTER_OTLP_ENDPOINT: invalid collector URL"),
    ];
    for (arguments, words) in cases {
        let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "c")];
        let ran = serve(&[&here, arguments].concat(), &variables);
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
    }
}
