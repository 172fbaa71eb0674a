//! A minimal OTLP/HTTP collector that validates the spans it receives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use testkit::server::wait_until;

/// Listens until the test program ends.
pub(crate) struct TestCollector {
    pub(crate) url: String,
    bodies: Arc<Mutex<Vec<Value>>>,
}

/// How the collector responds.
#[derive(Clone, Copy)]
pub(crate) enum CollectorReply {
    Ok,
    Unavailable,
    Never,
}

impl TestCollector {
    pub(crate) fn new(reply: CollectorReply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let received = bodies.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let received = received.clone();
                std::thread::spawn(move || serve(stream, reply, &received));
            }
        });
        Self { url, bodies }
    }

    /// All bodies as one text.
    pub(crate) fn text(&self) -> String {
        self.bodies.lock().unwrap().iter().map(ToString::to_string).collect()
    }

    pub(crate) fn requests(&self) -> usize {
        self.bodies.lock().unwrap().len()
    }

    /// All spans so far.
    pub(crate) fn spans(&self) -> Vec<ReceivedSpan> {
        let bodies = self.bodies.lock().unwrap();
        bodies.iter().flat_map(spans).collect()
    }

    /// Waits for at least this many spans.
    pub(crate) fn wait_for(&self, count: usize) -> Vec<ReceivedSpan> {
        wait_until(|| Some(self.spans()).filter(|spans| spans.len() >= count))
            .unwrap_or_else(|| panic!("{} spans instead of {count}", self.spans().len()))
    }
}

/// A received span.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedSpan(pub(crate) Value);

impl ReceivedSpan {
    /// A top-level field.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    /// An attribute, as text.
    pub(crate) fn attribute(&self, key: &str) -> &str {
        let attributes = self.0["attributes"].as_array().unwrap().iter();
        let value = attributes.filter(|one| one["key"] == key).map(|one| &one["value"]).next();
        value.map_or("", |value| {
            value["stringValue"].as_str().or(value["intValue"].as_str()).unwrap()
        })
    }
}

fn serve(stream: TcpStream, reply: CollectorReply, received: &Mutex<Vec<Value>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_ascii_lowercase()),
            }
        }
        assert_eq!(head[0], "post /v1/traces http/1.1");
        assert!(head.contains(&"content-type: application/json".into()), "{head:?}");
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.expect("a length").parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        received.lock().unwrap().push(serde_json::from_slice(&body).expect("JSON"));
        let response = match reply {
            CollectorReply::Never => continue,
            CollectorReply::Ok => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
            CollectorReply::Unavailable => {
                "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
            }
        };
        let _ = reader.get_mut().write_all(response.as_bytes());
    }
}

/// The spans of a request. Panics if the request is invalid.
fn spans(body: &Value) -> Vec<ReceivedSpan> {
    let [of_resource] = &body["resourceSpans"].as_array().unwrap()[..] else { panic!("{body}") };
    let named = json!({ "key": "service.name", "value": { "stringValue": "tidegate" } });
    assert!(of_resource["resource"]["attributes"].as_array().unwrap().contains(&named), "{body}");
    let [of_scope] = &of_resource["scopeSpans"].as_array().unwrap()[..] else { panic!("{body}") };
    assert_eq!(of_scope["scope"]["name"], "tidegate");
    let spans = of_scope["spans"].as_array().unwrap();
    assert!((1..=512).contains(&spans.len()), "{}", spans.len());
    spans.iter().inspect(|span| assert_valid(span)).cloned().map(ReceivedSpan).collect()
}

fn assert_valid(span: &Value) {
    let is_id = |name: &str, len: usize| {
        let id = span[name].as_str().unwrap_or_default();
        let hex = id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        hex && id.len() == len && id.bytes().any(|b| b != b'0')
    };
    assert!(is_id("traceId", 32) && is_id("spanId", 16), "{span}");
    assert!(span.get("parentSpanId").is_none() || is_id("parentSpanId", 16), "{span}");
    assert!(!span["name"].as_str().unwrap().is_empty() && span["kind"] == 2, "{span}");
    let [start, end] = ["startTimeUnixNano", "endTimeUnixNano"]
        .map(|name| span[name].as_str().unwrap().parse::<u64>().unwrap());
    assert!(start <= end && end - start < 60_000_000_000 && start > 1_700_000_000_000_000_000);
    for attribute in span["attributes"].as_array().unwrap() {
        assert!(attribute["key"].is_string(), "{span}");
        assert_eq!(attribute["value"].as_object().unwrap().len(), 1, "{span}");
    }
}
