//! Too long, too deep, too many: refused when it is announced, before it comes and before there is room for it.

use std::io::{Read, Write};
use std::net::SocketAddr;

use serde_json::json;
use tidegate_server::envoy::grpc::MAX_MESSAGE;
use tokio::runtime::Runtime;

use crate::envoy::{self, descriptor, request};
use crate::frames;
use crate::life::millis;
use crate::resp::{Client, Reply, command};
use crate::support::{Folder, Http, PATIENCE, Server};
use crate::witness::{Alone, connect, survive, victim};

/// What comes back to bytes that are never followed by what they announce.
fn answer_to(door: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(door);
    stream.write_all(bytes).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 512];
    let length = stream.read(&mut answer).unwrap_or(0);
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

#[test]
fn what_is_too_long_is_refused_when_it_is_announced() {
    let _alone = Alone::wait();
    let mut server = victim();
    let post = |fields: &str| format!("POST /v1/check HTTP/1.1\r\nhost: x\r\n{fields}\r\n");
    let resp: [(&str, &str); 9] = [
        ("*65\r\n", "too many arguments"),
        ("*2147483647\r\n", "too many arguments"),
        ("*18446744073709551615", "too many arguments"),
        ("*2\r\n$4\r\nECHO\r\n$65537", "bulk string too long"),
        ("*1\r\n$9223372036854775807", "bulk string too long"),
        ("*1\r\n*1\r\n", "flat array"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*-9\r\n", "invalid multibulk length"),
        // Two that fit, and a third that does not fit beside them.
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
                let answer = answer_to(server.resp, bytes.as_bytes());
                assert!(
                    answer.starts_with("-ERR Protocol error") && answer.contains(wanted),
                    "{wanted}: {answer:?}"
                );
            }
            for (bytes, status) in http {
                let answer = answer_to(server.http, bytes.as_bytes());
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer:?}");
            }
            for length in [MAX_MESSAGE + 1, 0x7fff_ffff, 0xffff_ffff] {
                let answered = frames::answers_the_beginning_of_a_message(
                    server.grpc,
                    u32::try_from(length).unwrap(),
                );
                assert!(answered, "a message of {length} bytes");
            }
        }
    });
}

#[test]
fn a_key_is_as_long_as_a_key_may_be_on_every_door() {
    let folder = Folder::new();
    folder.write("edge.yaml", "domain: edge\ndescriptors: [{ key: long, limit: 5/h }]\n");
    let path = folder.path("").to_str().unwrap().to_string();
    let server = Server::start(&["--envoy-config", &path], &[]);
    let mut resp = Client::connect(server.resp);
    let mut http = Http::connect(server.http);
    let runtime = Runtime::new().unwrap();
    let grpc = runtime.block_on(envoy::Client::connect(server.grpc));
    for (length, fits) in [(1_024, true), (1_025, false), (60_000, false)] {
        let key = "k".repeat(length);
        for words in [["TG.LIMIT", "5/h", &key].as_slice(), &["CL.THROTTLE", &key, "5", "5", "60"]]
        {
            let reply = resp.ask_words(words);
            assert_eq!(matches!(reply, Reply::Array(_)), fits, "{length}: {reply}");
        }
        http.send("POST", "/v1/check", &[], &json!({ "limit": "5/h", "key": key }).to_string());
        assert_eq!(http.receive().status, if fits { 200 } else { 400 }, "{length}");
        // Envoy sends what its own clients send; a value that is too long for a key is hashed into one.
        let asked = request("edge", &[descriptor(&[("long", &key)])]);
        assert!(runtime.block_on(grpc.ask(&asked)).is_ok(), "{length}");
    }
    let two = ["a", "b"]
        .map(|end| request("edge", &[descriptor(&[("long", &("k".repeat(60_000) + end))])]));
    let left =
        two.map(|asked| runtime.block_on(grpc.ask(&asked)).unwrap().statuses[0].limit_remaining);
    assert_eq!(left, [4, 4], "two long values are two keys");
}

#[test]
fn json_is_as_deep_as_it_may_be_and_no_deeper() {
    let variables = [("TIDEGATE_ADMIN_TOKEN", "admin")];
    let mut server = Server::start(&[], &variables);
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

/// Before the token is shown, nothing is taken that only its owner may send.
#[test]
fn a_stranger_is_sent_away_before_the_body_comes() {
    let folder = Folder::new();
    folder.write("edge.yaml", "domain: edge\ndescriptors: [{ key: k, limit: 5/h }]\n");
    let path = folder.path("").to_str().unwrap().to_string();
    let server = Server::start(&["--envoy-config", &path], &[("TIDEGATE_TOKEN", "sesame")]);
    for call in ["/v1/check", "/v1/reserve", "/v1/commit", "/json"] {
        let head = format!("POST {call} HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n");
        let answer = answer_to(server.http, head.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 401"), "{call}: {answer:?}");
    }
    let long = command(&["ECHO", &"x".repeat(1_025)]);
    let answer = answer_to(server.resp, &long[..30]);
    assert!(answer.contains("bulk string too long"), "{answer:?}");
    assert!(answer_to(server.resp, b"*9\r\n").contains("too many arguments"));
    // Of gRPC, too: five bytes announce a message that is allowed, and never comes.
    let length = u32::try_from(MAX_MESSAGE).unwrap();
    let answer = || frames::answers_the_beginning_of_a_message(server.grpc, length);
    let (took, answered) = millis(answer);
    assert!(
        answered && took < 5_000,
        "sent away after {took} ms, and not when the message is late"
    );
}
