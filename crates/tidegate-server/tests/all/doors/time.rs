//! How long clients may take.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::Clock;
use tidegate_server::doors::{self, Deadlines};
use tidegate_server::tokens::Tokens;

use super::rest_of;
use crate::in_process::Door;
use crate::inside::Inside;
use crate::resp::{Client, command};
use crate::support::{Http, wait_until};

const SHORT: Duration = Duration::from_millis(300);
/// Short where a client has to do something in time, too.
const AMPLE: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(300);

fn within(deadlines: Deadlines) -> Inside {
    let options = doors::Options { deadlines, ..doors::Options::default() };
    Inside::start(options, Tokens::default())
}

fn say(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

#[test]
fn a_head_has_its_time_and_a_connection_between_requests_has_longer() {
    let server = within(Deadlines { request: AMPLE, ..Deadlines::default() });
    let mut kept = Http::connect(server.http);
    kept.send("GET", "/healthz", &[], "");
    assert_eq!(kept.receive().status, 200);
    let get = "GET /healthz HTTP/1.1\r\nhost: x\r\n";
    // Nothing, half a preface, and half a head.
    let halves = ["", "PRI * HTTP/2", get];
    let begun =
        [server.http, server.grpc].map(|address| halves.map(|half| say(address, half.as_bytes())));
    for (half, stream) in halves.iter().cycle().zip(begun.into_iter().flatten()) {
        assert!(rest_of(stream).is_empty(), "{half:?}");
    }
    kept.send("GET", "/healthz", &[], "");
    assert_eq!(kept.receive().status, 200, "it was idle for longer than a head may take");
}

#[test]
fn a_head_byte_by_byte_has_no_more_time() {
    let server = within(Deadlines { request: SHORT, ..Deadlines::default() });
    let mut stream = say(server.http, b"GET / HTTP/1.1\r\nx: ");
    // Far more bytes than there is time for.
    let cut_off = wait_until(|| stream.write_all(b"x").err().map(|error| error.kind()));
    let cut_off = cut_off.expect("it ends");
    assert!([ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&cut_off), "{cut_off}");
}

#[test]
fn a_connection_that_nobody_uses_ends() {
    let server = within(Deadlines { idle: SHORT, ..Deadlines::default() });
    let one = say(server.http, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(rest_of(one).starts_with(b"HTTP/1.1 200 OK"));
    // Settings and nothing else, over HTTP/2: it is told before it ends.
    let frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for address in [server.http, server.grpc] {
        let told = rest_of(say(address, frames));
        assert!(frame_kinds(&told).contains(&GO_AWAY), "{}", told.escape_ascii());
    }
}

const GO_AWAY: u8 = 7;

/// The kinds of frames of HTTP/2, in order.
fn frame_kinds(mut bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let [a, b, c, kind, _flags, _, _, _, _, rest @ ..] = bytes {
        kinds.push(*kind);
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        bytes = rest.get(len..).unwrap_or_default();
    }
    kinds
}

#[test]
fn a_request_that_waits_for_its_turn_is_not_idle() {
    let server = within(Deadlines { idle: AMPLE * 2, request: AMPLE, ..Deadlines::default() });
    let mut http = Http::connect(server.http);
    // The second has to wait for longer than a connection may be idle.
    let check = r#"{"limit":"1/3s","key":"k","wait_ms":60000}"#;
    for _ in 0..2 {
        http.send("POST", "/v1/check", &[], check);
        assert_eq!(http.receive().status, 200);
    }
}

#[test]
fn who_does_not_take_its_answers_is_cut_off() {
    let server = within(Deadlines { answer: SHORT, ..Deadlines::default() });
    let get = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
    let echo = command(&["ECHO", &"x".repeat(60_000)]).repeat(10);
    for (address, bytes, door) in [(server.http, get, "http"), (server.resp, echo, "resp")] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        // It takes requests for as long as it can send answers, and then no more.
        let cut_off = wait_until(|| match stream.write_all(&bytes) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Some(error.kind()),
            _ => None,
        });
        assert!(cut_off.is_some(), "{door}");
        server.expect_metric(&format!(r#"tidegate_connections{{door="{door}"}} 0"#));
    }
}

#[test]
fn an_answer_that_is_kept_back_over_http2_ends_the_connection() {
    // A fifth of it is the time to ask the first question.
    let server = within(Deadlines { idle: AMPLE * 5, ..Deadlines::default() });
    server.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.http).await.unwrap();
        let mut client = http2::Builder::new(TokioExecutor::new());
        let client = client.initial_stream_window_size(1);
        let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
        let ended = tokio::spawn(connection);
        let request = |path: &str| {
            let request = Request::get(format!("http://{}{path}", server.http));
            request.body(Empty::<Bytes>::new()).unwrap()
        };
        let kept_back = sender.send_request(request("/openapi.json")).await.unwrap();
        // Others are asked meanwhile and taken, so that the connection is anything but idle.
        let mut asked = 0_u32;
        while !ended.is_finished() {
            match sender.send_request(request("/v1/none")).await {
                Ok(answer) => assert_eq!(answer.status(), 404),
                Err(_) => break,
            }
            asked += 1;
            assert!(asked < 1_000_000, "the answer is kept for ever");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(kept_back);
    });
    server.expect_metric(r#"tidegate_connections{door="http"} 0"#);
}

#[test]
fn silence_ends_a_connection_of_the_redis_protocol_where_that_is_wanted() {
    let deadlines = Deadlines { resp_idle: Some(LONG), ..Deadlines::default() };
    let door = Door::with(Tokens::default(), deadlines);
    let wakes_at = |after: Duration| {
        let expected = door.clock.elapsed().saturating_add(after.into());
        wait_until(|| door.clock.next_wake().filter(|wake| *wake == expected)).expect("a deadline");
    };
    // The first command has its own time, which is shorter.
    let silent = Client::connect(door.address);
    wakes_at(Deadlines::default().request);
    door.clock.advance(Deadlines::default().request);
    assert!(rest_of(silent.writer()).is_empty());

    let mut silent = Client::connect(door.address);
    assert!(silent.ask("PING").is("+PONG"));
    wakes_at(LONG);
    door.clock.advance(LONG);
    assert!(rest_of(silent.writer()).is_empty());

    let mut client = Client::connect(door.address);
    assert!(client.ask("PING").is("+PONG"));
    wakes_at(LONG);
    door.clock.advance(LONG - Duration::from_millis(1));
    assert!(client.ask("PING").is("+PONG"), "whoever asks has it all over again");
    // A request that has begun has its own, shorter one.
    client.write(b"*1\r\n");
    wakes_at(Deadlines::default().request);
    door.clock.advance(Deadlines::default().request);
    assert!(rest_of(client.writer()).is_empty());
}
