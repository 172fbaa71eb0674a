//! `POST /json` and `GET /healthcheck`, with the responses of envoyproxy/ratelimit.
use serde_json::{Value, json};
use testkit::server::{ServerProcess, TempFolder};

const DUMMY: &str = r#"
domain: dummy
descriptors:
  - { key: one_per_year, rate_limit: { name: one, unit: year, requests_per_unit: 1 } }
  - { key: ten_per_year, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: own, limit: "sliding-log 7/90s" }
"#;

fn start() -> ServerProcess {
    let folder = TempFolder::new();
    folder.write("dummy.yaml", DUMMY);
    let path = folder.path("");
    ServerProcess::start(
        &["--envoy-config", path.to_str().unwrap(), "--envoy-headers", "envoy"],
        &[],
    )
}

fn post_json(server: &ServerProcess, body: &str) -> (u16, Value) {
    // As curl's `--data` sends it.
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    let response = server.request("POST", "/json", &headers, body);
    (response.status, response.json())
}

/// Without fields that depend on time.
fn timeless(mut response: Value) -> Value {
    for status in response["statuses"].as_array_mut().unwrap() {
        if let Some(reset) = status.as_object_mut().unwrap().remove("durationUntilReset") {
            let seconds = reset.as_str().unwrap().strip_suffix('s').unwrap();
            assert!(seconds.parse::<f64>().unwrap() > 0.0, "{reset}");
        }
    }
    for header in response["responseHeadersToAdd"].as_array_mut().into_iter().flatten() {
        if header["key"] == "RateLimit-Reset" {
            header["value"] = "?".into();
        }
    }
    response
}

#[test]
fn a_response_has_their_shape() {
    let server = start();
    let message = r#"{"domain": "dummy", "descriptors": [
        {"entries": [{"key": "one_per_year", "value": "x"}]},
        {"entries": [{"key": "ten_per_year", "value": "x"}]},
        {"entries": [{"key": "free"}]}, {"entries": [{"key": "unknown"}]},
        {"entries": [{"key": "own", "value": "x"}]}]}"#;
    let one = json!({ "name": "one", "requestsPerUnit": 1, "unit": "YEAR" });
    let ten = json!({ "requestsPerUnit": 10, "unit": "YEAR" });
    let own = json!({ "requestsPerUnit": 7 });
    let rest = [
        json!({ "code": "OK", "currentLimit": ten, "limitRemaining": 9 }),
        json!({ "code": "OK", "limitRemaining": u32::MAX }),
        json!({ "code": "OK" }),
        json!({ "code": "OK", "currentLimit": own, "limitRemaining": 6 }),
    ];
    let headers = json!([
        { "key": "RateLimit-Limit", "value": "1" },
        { "key": "RateLimit-Remaining", "value": "0" },
        { "key": "RateLimit-Reset", "value": "?" },
    ]);
    for (status, code) in [(200, "OK"), (429, "OVER_LIMIT")] {
        let (returned, response) = post_json(&server, message);
        assert_eq!(returned, status, "{response}");
        let first = json!({ "code": code, "currentLimit": one });
        let statuses: Vec<_> = [first].into_iter().chain(rest.clone()).collect();
        let wanted =
            json!({ "overallCode": code, "statuses": statuses, "responseHeadersToAdd": headers });
        assert_eq!(timeless(response), wanted);
    }
}

#[test]
fn a_request_is_read_as_protocol_buffers_write_it() {
    let server = start();
    let of = |more: &str| {
        format!(
            r#"{{"domain":"dummy","descriptors":[{{"entries":[{{"key":"ten_per_year","value":"y"}}]{more}}}]}}"#
        )
    };
    for (more, left) in [
        (r#","hitsAddend":"2""#, Some(8)),
        (r#","hits_addend":2"#, Some(6)),
        (r#","hitsAddend":2,"isNegativeHits":true"#, Some(8)),
        (r#","hitsAddend":null,"limit":null,"is_negative_hits":null"#, Some(7)),
        (r#","limit":{"requestsPerUnit":100,"unit":"HOUR"}"#, Some(99)),
        (r#","limit":{"requests_per_unit":"100","unit":3}"#, Some(98)),
    ] {
        let (status, response) = post_json(&server, &of(more));
        let message = response["statuses"][0]["limitRemaining"].as_u64();
        assert_eq!((status, message), (200, left), "{more}: {response}");
    }
    let whole = r#"{"domain":"dummy","hitsAddend":3,"descriptors":[{"entries":[{"key":"ten_per_year","value":"z"}]}]}"#;
    assert_eq!(post_json(&server, whole).1["statuses"][0]["limitRemaining"], 7);
}

#[test]
fn what_is_no_request_is_refused() {
    let server = start();
    for (body, wanted) in [
        ("", "EOF"),
        ("[]", "object"),
        ("{", "EOF"),
        (r#"{"domain":""}"#, "domain must not be empty"),
        (r#"{"domain":"dummy"}"#, "descriptor list must not be empty"),
        (r#"{"domain":"dummy","descriptor":[]}"#, "unknown field"),
        (r#"{"domain":7}"#, "invalid type"),
        (r#"{"domain":"dummy","hitsAddend":-1}"#, "an integer in range"),
        (r#"{"domain":"dummy","hitsAddend":4294967296}"#, "an integer in range"),
        (r#"{"domain":"dummy","hitsAddend":"1e3"}"#, "an integer in range"),
        (r#"{"domain":"dummy","descriptors":[{"limit":{"unit":"PARSEC"}}]}"#, "not a unit"),
        (r#"{"domain":"dummy","descriptors":[{"limit":{"requestsPerUnit":1}}]}"#, "unit"),
    ] {
        let response = server.request("POST", "/json", &[], body);
        assert_eq!(response.status, 400, "{body}: {}", response.body);
        let message = response.json()["detail"].as_str().unwrap().to_string();
        assert!(message.contains(wanted), "{body}: {message}");
    }
    let long = format!(r#"{{"domain":"{}"}}"#, "x".repeat(64 << 10));
    assert_eq!(server.request("POST", "/json", &[], &long).status, 413);
    assert_eq!(server.get("/json").status, 405);
}
