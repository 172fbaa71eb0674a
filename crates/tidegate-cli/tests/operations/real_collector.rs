//! Spans, at the OTLP receiver of the OpenTelemetry Collector.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::server::{RawHttpConnection, ServerProcess};

/// Built by `interop/collector/fetch`, next to the build output of cargo.
const PROGRAM: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../interop-clients/go/collector");

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[test]
fn the_collector_receives_a_span_as_it_was_sent() {
    if !Path::new(PROGRAM).is_file() {
        let line = "skipped: the Collector is not installed; run interop/collector/fetch";
        let _ = writeln!(std::io::stderr(), "{line}");
        return;
    }
    // It ends when its input is closed.
    let mut collector =
        Command::new(PROGRAM).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(collector.stdout.take().unwrap()).lines().map_while(Result::ok);
    let url = format!("http://{}", lines.next().expect("it listens"));

    let server = ServerProcess::start(&["--otlp", &url], &[]);
    let mut client = RawHttpConnection::connect(server.http);
    let headers = [
        ("content-type", "application/json"),
        ("traceparent", &format!("00-{TRACE}-b7ad6b7169203331-01")),
    ];
    let body = json!({ "limit": "3/min", "key": "k" }).to_string();
    client.send("POST", "/v1/check", &headers, &body);
    assert_eq!(client.receive().status, 200);

    let batch: Value = serde_json::from_str(&lines.next().expect("a batch")).unwrap();
    let resource = &batch["resourceSpans"][0];
    let service = &resource["resource"]["attributes"][0];
    assert_eq!(*service, json!({ "key": "service.name", "value": { "stringValue": "tidegate" } }));
    let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
    assert_eq!(spans.len(), 1, "{batch}");
    assert_eq!(
        (&spans[0]["traceId"], &spans[0]["name"]),
        (&json!(TRACE), &json!("POST /v1/check"))
    );
    let status = json!({ "key": "http.response.status_code", "value": { "intValue": "200" } });
    assert!(spans[0]["attributes"].as_array().unwrap().contains(&status), "{batch}");

    drop(collector.stdin.take());
    assert!(collector.wait().unwrap().success());
}
