//! Inputs that are too long, too deep or too many: refused by their announced size, before memory
//! is allocated.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tidegate_server::internal::transport::envoy::grpc::MAX_MESSAGE;
use tokio::runtime::Runtime;

use crate::monitor::{Alone, connect, survive, victim};
use testkit::envoy::{descriptor, request};
use testkit::process::millis;
use testkit::resp::{RespConnection, RespReply, command};
use testkit::server::{RawHttpConnection, ServerProcess, TEST_TIMEOUT, TempFolder};
use testkit::timing::compare_with_goal;

/// The response to bytes that announce more than is ever sent.
fn response_to(listener: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(listener);
    stream.write_all(bytes).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut response = [0; 512];
    let length = stream.read(&mut response).unwrap_or(0);
    String::from_utf8_lossy(&response[..length]).into_owned()
}

#[test]
fn an_announced_length_above_the_cap_is_refused() {
    let _alone = Alone::wait();
    let mut server = victim();
    let post = |fields: &str| format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n");
    let resp: [(&str, &str); 9] = [
        ("*65\r\n", "too many arguments"),
        ("*2147483647\r\n", "too many arguments"),
        ("*18446744073709551615", "too many arguments"),
        ("*2\r\n$4\r\nECHO\r\n$65537", "bulk string too long"),
        ("*1\r\n$9223372036854775807", "bulk string too long"),
        ("*1\r\n*1\r\n", "flat array"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*-9\r\n", "invalid multibulk length"),
        // Two arguments fit, a third exceeds the sum.
        (
            &format!(
                "*4\r\n$4\r\nECHO\r\n$65000\r\n{0}\r\n$60000\r\n{1}\r\n$65000\r\n",
                "x".repeat(65_000),
                "x".repeat(60_000)
            ),
            "request too long",
        ),
    ];
    let http: [(&str, &str); 3] = [
        (&post("content-length: 65537\r\n"), "413"),
        (&post("content-length: 9223372036854775807\r\n"), "413"),
        (&post("content-length: 18446744073709551616\r\n"), "400"),
    ];
    survive("lengths that are announced, 50 times each", &mut server, |server| {
        for _ in 0..50 {
            for (bytes, wanted) in resp {
                let response = response_to(server.resp, bytes.as_bytes());
                assert!(
                    response.starts_with("-ERR Protocol error") && response.contains(wanted),
                    "{wanted}: {response:?}"
                );
            }
            for (bytes, status) in http {
                let response = response_to(server.http, bytes.as_bytes());
                assert!(
                    response.starts_with(&format!("HTTP/1.1 {status}")),
                    "{status}: {response:?}"
                );
            }
            for length in [MAX_MESSAGE + 1, 0x7fff_ffff, 0xffff_ffff] {
                let responded = crate::http2_frames::responds_to_announced_message(
                    server.grpc,
                    u32::try_from(length).unwrap(),
                );
                assert!(responded, "a message of {length} bytes");
            }
        }
    });
}

#[test]
fn every_listener_has_the_same_maximum_key_length() {
    let folder = TempFolder::new();
    folder.write("edge.yaml", "domain: edge\ndescriptors: [{ key: long, limit: 5/h }]\n");
    let path = folder.path("").to_str().unwrap().to_string();
    let server = ServerProcess::start(&["--envoy-config", &path], &[]);
    let mut resp = RespConnection::connect(server.resp);
    let mut http = RawHttpConnection::connect(server.http);
    let runtime = Runtime::new().unwrap();
    let grpc = runtime.block_on(testkit::envoy::EnvoyClient::connect(server.grpc));
    for (length, fits) in [(1_024, true), (1_025, false), (60_000, false)] {
        let key = "k".repeat(length);
        for words in [["TG.LIMIT", "5/h", &key].as_slice(), &["CL.THROTTLE", &key, "5", "5", "60"]]
        {
            let reply = resp.send_args(words);
            assert_eq!(matches!(reply, RespReply::Array(_)), fits, "{length}: {reply}");
        }
        http.send("POST", "/v1/check", &[], &json!({ "limit": "5/h", "key": key }).to_string());
        assert_eq!(http.receive().status, if fits { 200 } else { 400 }, "{length}");
        // Envoy forwards values of its clients: a value that is too long for a key is hashed.
        let check = request("edge", &[descriptor(&[("long", &key)])]);
        assert!(runtime.block_on(grpc.should_rate_limit(&check)).is_ok(), "{length}");
    }
    let two = ["a", "b"]
        .map(|end| request("edge", &[descriptor(&[("long", &("k".repeat(60_000) + end))])]));
    let left = two.map(|check| {
        runtime.block_on(grpc.should_rate_limit(&check)).unwrap().statuses[0].limit_remaining
    });
    assert_eq!(left, [4, 4], "two long values are two keys");
}

#[test]
fn json_nesting_is_accepted_up_to_the_cap_and_refused_above() {
    let variables = [("TIDEGATE_ADMIN_TOKEN", "admin")];
    let mut server = ServerProcess::start(&[], &variables);
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    for depth in [17, 127, 129, 30_000] {
        for (method, path, field) in [
            ("POST", "/v1/check", "key"),
            ("POST", "/v1/check", "checks"),
            ("POST", "/v1/commit", "reservation"),
            ("PUT", "/v1/rules/deep", "limits"),
            ("POST", "/json", "descriptors"),
        ] {
            let body = format!(r#"{{"{field}":{}}}"#, nested(depth));
            let response = server.request(method, path, &[("x-tidegate-token", "admin")], &body);
            assert_eq!(response.status, 400, "{path} {depth}: {}", response.body);
        }
    }
    assert!(server.is_running());
}

/// Large inputs are accepted only after authentication.
#[test]
fn an_unauthenticated_request_is_refused_before_its_body_is_read() {
    let folder = TempFolder::new();
    folder.write("edge.yaml", "domain: edge\ndescriptors: [{ key: k, limit: 5/h }]\n");
    let path = folder.path("").to_str().unwrap().to_string();
    let server = ServerProcess::start(&["--envoy-config", &path], &[("TIDEGATE_TOKEN", "sesame")]);
    for call in ["/v1/check", "/v1/reserve", "/v1/commit", "/json"] {
        let head =
            format!("POST {call} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000\r\n\r\n");
        let response = response_to(server.http, head.as_bytes());
        assert!(response.starts_with("HTTP/1.1 401"), "{call}: {response:?}");
    }
    let long = command(&["ECHO", &"x".repeat(1_025)]);
    let response = response_to(server.resp, &long[..30]);
    assert!(response.contains("bulk string too long"), "{response:?}");
    assert!(response_to(server.resp, b"*9\r\n").contains("too many arguments"));
    // gRPC too: five bytes announce a message of allowed length that is never sent.
    let length = u32::try_from(MAX_MESSAGE).unwrap();
    let responds = || crate::http2_frames::responds_to_announced_message(server.grpc, length);
    let (took, responded) = millis(responds);
    assert!(responded, "not before the message has been read");
    let [took, goal] = [took, 5_000].map(Duration::from_millis);
    compare_with_goal("refused before its message", took, goal);
}
