//! Spans, at a collector.

use serde_json::json;
use tidegate_server::envoy::proto::RateLimitResponse;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;

use crate::collector::{Answers, Collector};
use crate::envoy::{self, descriptor, request};
use crate::life::{millis, serve};
use crate::resp;
use crate::support::{Folder, Http, Server, wait_until};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

const POLICY: &str = "rules:\n  - { name: login, limits: [fixed-window 2/1d] }\n";
const ENVOY: &str = "domain: edge\ndescriptors:\n  - key: remote_address\n    rate_limit: { unit: day, requests_per_unit: 1 }\n";

/// A server that sends its spans to `collector`.
fn traced(collector: &Collector, more: &[&str]) -> Server {
    let folder = Folder::new();
    let policy = folder.write("policy.yaml", POLICY);
    let mut arguments = vec!["--config", policy.to_str().unwrap(), "--otlp", &collector.url];
    arguments.extend(more);
    Server::start(&arguments, &[])
}

/// A check over HTTP, as part of a trace with these flags.
fn check(server: &Server, key: &str, flags: Option<&str>) -> u16 {
    let parent = flags.map(|flags| format!("00-{TRACE}-{PARENT}-{flags}"));
    let headers: Vec<_> = parent.iter().map(|parent| ("traceparent", parent.as_str())).collect();
    let mut client = Http::connect(server.http);
    let body = json!({ "rule": "login", "key": key }).to_string();
    client.send("POST", "/v1/check", &headers, &body);
    client.receive().status
}

/// The spans that became of something, as the metrics tell it.
fn counted(server: &Server, outcome: &str) -> u64 {
    let start = format!("tidegate_trace_spans_total{{outcome=\"{outcome}\"}} ");
    let metrics = server.get("/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.expect("it is counted").parse().unwrap()
}

async fn ask_as_envoy(server: &Server, address: &str) {
    let client = envoy::Client::connect(server.grpc).await;
    let mut question =
        tonic::Request::new(request("edge", &[descriptor(&[("remote_address", address)])]));
    let parent = format!("00-{TRACE}-{PARENT}-01").parse().unwrap();
    question.metadata_mut().insert("traceparent", parent);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let codec = tonic_prost::ProstCodec::default();
    let mut grpc = Grpc::new(client.channel());
    grpc.ready().await.unwrap();
    let answer = grpc.unary(question, PathAndQuery::from_static(path), codec).await.unwrap();
    let _: RateLimitResponse = answer.into_inner();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_over_any_door_is_one_span_with_its_rule_and_never_its_key() {
    let collector = Collector::new(Answers::Well);
    let folder = Folder::new();
    let limits = folder.path("limits");
    std::fs::create_dir_all(&limits).unwrap();
    folder.write("limits/edge.yaml", ENVOY);
    let server = traced(&collector, &["--envoy-config", limits.to_str().unwrap()]);
    assert_eq!(check(&server, "secret-key", Some("01")), 200);
    let mut client = resp::Client::connect(server.resp);
    client.ask("PING");
    client.ask("TG.CHECK login secret-key");
    client.ask("TG.CHECK login secret-key");
    client.ask("TG.CHECK nowhere secret-key");
    ask_as_envoy(&server, "secret-key").await;
    let spans = collector.wait_for(5);
    let told = |span: &crate::collector::Span| {
        ["tidegate.door", "tidegate.rule", "tidegate.outcome", "tidegate.source"]
            .map(|name| span.attribute(name).to_string())
            .join(" ")
    };
    let mut found: Vec<_> = spans.iter().map(|s| (s.field("name").to_string(), told(s))).collect();
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
fn upstream_decides_and_the_ratio_where_nobody_has() {
    let collector = Collector::new(Answers::Well);
    let server = traced(&collector, &["--otlp-sample", "0"]);
    for flags in [None, Some("00"), Some("01"), Some("nonsense"), None] {
        check(&server, "k", flags);
    }
    let spans = collector.wait_for(1);
    assert_eq!((spans.len(), spans[0].field("traceId")), (1, TRACE));

    let collector = Collector::new(Answers::Well);
    let server = traced(&collector, &["--otlp-sample", "0.5"]);
    let mut client = resp::Client::connect(server.resp);
    (0..2_000).for_each(|_| drop(client.ask("TG.PEEK login k")));
    let seen = || Some(counted(&server, "exported")).filter(|count| *count >= 850);
    let count = wait_until(seen).expect("about half of them");
    assert!((850..=1_150).contains(&count), "{count} of 2000");
}

#[test]
fn a_stranger_does_not_decide_what_is_traced() {
    let collector = Collector::new(Answers::Well);
    let arguments = ["--otlp", &collector.url, "--otlp-sample", "0"];
    let mut server = Server::start(&arguments, &[("TIDEGATE_TOKEN", "sesame")]);
    let parent = |digit: &str| format!("00-{}-{PARENT}-01", digit.repeat(32));
    for (digit, token, status) in [("a", "", 401), ("b", "wrong", 401), ("c", "sesame", 200)] {
        let parent = parent(digit);
        let headers = [("traceparent", &*parent), ("x-tidegate-token", token)];
        let check = r#"{"rule":"login","key":"k"}"#;
        assert_eq!(server.request("POST", "/v1/check", &headers, check).status, status);
    }
    // By its end it has sent all there are.
    server.signal("TERM");
    assert!(server.wait().is_some_and(|status| status.success()));
    let traces: Vec<_> = collector.spans().iter().map(|s| s.field("traceId").to_string()).collect();
    assert_eq!(traces, ["c".repeat(32)]);
}

#[test]
fn a_span_that_nobody_has_sent_yet_goes_when_the_server_ends() {
    let collector = Collector::new(Answers::Well);
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
    for answers in [Answers::Badly, Answers::Never] {
        let collector = Collector::new(answers);
        let mut server = traced(&collector, &[]);
        check(&server, "k", None);
        wait_until(|| (collector.requests() > 0).then_some(())).expect("it was tried");
        let (took, ()) = millis(|| {
            let mut client = resp::Client::connect(server.resp);
            (0..200).for_each(|_| drop(client.ask("TG.PEEK login k")));
        });
        assert!(took < 2_000, "200 calls took {took} ms");
        if let Answers::Badly = answers {
            let failed = wait_until(|| Some(counted(&server, "failed")).filter(|count| *count > 0));
            assert!(failed.is_some() && counted(&server, "exported") == 0);
            let told =
                server.log().iter().filter(|line| line.contains("spans are not taken")).count();
            assert_eq!(told, 1, "once: {:?}", server.log());
        }
        let (took, status) = millis(|| {
            server.signal("TERM");
            server.wait()
        });
        assert!(status.is_some_and(|status| status.success()));
        assert!(took < 8_000, "the end took {took} ms");
    }
}

#[test]
fn only_the_flag_turns_spans_on_and_the_variable_says_where() {
    let collector = Collector::new(Answers::Well);
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url)];
    let server = Server::start(&[], &variables);
    check(&server, "k", Some("01"));
    assert!(!server.get("/metrics").body.contains("tidegate_trace"));
    drop(server);
    let mut server = Server::start(&["--otlp"], &variables);
    check(&server, "k", Some("01"));
    assert_eq!(collector.wait_for(1).len(), 1);
    server.signal("TERM");
    assert!(server.wait().is_some());
    assert_eq!(collector.spans().len(), 1, "none of the server without the flag");
}

#[test]
fn what_is_no_collector_is_refused_at_the_start() {
    let here = ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
    let cases: [(&[&str], &str); 4] = [
        (&["--otlp", "https://c:4318"], "spans are not sent over https"),
        (&["--otlp", "c:4318"], "not a collector; write one like http://127.0.0.1:4318"),
        (&["--otlp", "--otlp-sample", "2"], "write a share between 0 and 1"),
        (&["--otlp"], "OTEL_EXPORTER_OTLP_ENDPOINT: not a collector"),
    ];
    for (arguments, words) in cases {
        let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "c")];
        let ran = serve(&[&here, arguments].concat(), &variables);
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
    }
}
