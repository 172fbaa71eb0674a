//! Timeouts of clients.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::Clock;
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::internal::transport::listener;
use tidegate_server::internal::transport::listener::Timeouts;

use super::rest_of;
use testkit::resp::{RespConnection, command};
use testkit::resp_listener::RespListener;
use testkit::server::{RawHttpConnection, wait_until};
use testkit::server_in_process::InProcessServer;

const SHORT: Duration = Duration::from_millis(300);
/// Short, for timeouts that the test waits for.
const AMPLE: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(300);

fn within(deadlines: Timeouts) -> InProcessServer {
    let options = listener::ListenerOptions { deadlines, ..listener::ListenerOptions::default() };
    InProcessServer::start(options, AuthTokens::default())
}

fn say(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

#[test]
fn a_head_has_its_time_and_a_connection_between_requests_has_longer() {
    let server = within(Timeouts { request: AMPLE, ..Timeouts::default() });
    let mut kept = RawHttpConnection::connect(server.http);
    kept.send("GET", "/healthz", &[], "");
    assert_eq!(kept.receive().status, 200);
    let get = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n";
    // Nothing, half a preface, and half a header block.
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
    let server = within(Timeouts { request: SHORT, ..Timeouts::default() });
    let mut stream = say(server.http, b"GET / HTTP/1.1\r\nx: ");
    // Far more bytes than the timeout allows.
    let cut_off = wait_until(|| stream.write_all(b"x").err().map(|error| error.kind()));
    let cut_off = cut_off.expect("it ends");
    assert!([ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&cut_off), "{cut_off}");
}

#[test]
fn an_idle_connection_is_closed() {
    let server = within(Timeouts { idle: SHORT, ..Timeouts::default() });
    let one = say(server.http, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(rest_of(one).starts_with(b"HTTP/1.1 200 OK"));
    // Only SETTINGS over HTTP/2: GOAWAY comes before the close.
    let frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for address in [server.http, server.grpc] {
        let message = rest_of(say(address, frames));
        assert!(frame_kinds(&message).contains(&GO_AWAY), "{}", message.escape_ascii());
    }
}

const GO_AWAY: u8 = 7;

/// Types of the HTTP/2 frames, in order.
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
    let server = within(Timeouts { idle: AMPLE * 2, request: AMPLE, ..Timeouts::default() });
    let mut http = RawHttpConnection::connect(server.http);
    // The second check waits longer than the idle timeout.
    let check = r#"{"limit":"1/3s","key":"k","wait_ms":60000}"#;
    for _ in 0..2 {
        http.send("POST", "/v1/check", &[], check);
        assert_eq!(http.receive().status, 200);
    }
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let server = within(Timeouts { response: SHORT, ..Timeouts::default() });
    let get = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let echo = command(&["ECHO", &"x".repeat(60_000)]).repeat(10);
    for (address, bytes, endpoint) in [(server.http, get, "http"), (server.resp, echo, "resp")] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        // The server reads requests while it can write responses.
        let cut_off = wait_until(|| match stream.write_all(&bytes) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Some(error.kind()),
            _ => None,
        });
        assert!(cut_off.is_some(), "{endpoint}");
        server.expect_metric(&format!(r#"tidegate_connections{{listener="{endpoint}"}} 0"#));
    }
}

#[test]
fn an_unread_response_over_http2_ends_the_connection() {
    // A fifth of it is the timeout of the first request.
    let server = within(Timeouts { idle: AMPLE * 5, ..Timeouts::default() });
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
        // Other requests complete meanwhile, so that the connection is not idle.
        let mut requests = 0_u32;
        while !ended.is_finished() {
            match sender.send_request(request("/v1/none")).await {
                Ok(response) => assert_eq!(response.status(), 404),
                Err(_) => break,
            }
            requests += 1;
            assert!(requests < 1_000_000, "the response is kept forever");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(kept_back);
    });
    server.expect_metric(r#"tidegate_connections{listener="http"} 0"#);
}

#[test]
fn silence_ends_a_connection_of_the_redis_protocol_where_that_is_wanted() {
    let deadlines = Timeouts { resp_idle: Some(LONG), ..Timeouts::default() };
    let endpoint = RespListener::with(AuthTokens::default(), deadlines);
    let wakes_at = |after: Duration| {
        let expected = endpoint.clock.elapsed().saturating_add(after.into());
        wait_until(|| endpoint.clock.next_wake().filter(|wake| *wake == expected))
            .expect("a deadline");
    };
    // The first command has a shorter timeout.
    let silent = RespConnection::connect(endpoint.address);
    wakes_at(Timeouts::default().request);
    endpoint.clock.advance(Timeouts::default().request);
    assert!(rest_of(silent.writer()).is_empty());

    let mut silent = RespConnection::connect(endpoint.address);
    assert!(silent.send("PING").is("+PONG"));
    wakes_at(LONG);
    endpoint.clock.advance(LONG);
    assert!(rest_of(silent.writer()).is_empty());

    let mut client = RespConnection::connect(endpoint.address);
    assert!(client.send("PING").is("+PONG"));
    wakes_at(LONG);
    endpoint.clock.advance(LONG - Duration::from_millis(1));
    assert!(client.send("PING").is("+PONG"), "a command restarts the timeout");
    // A started request has a shorter timeout.
    client.write(b"*1\r\n");
    wakes_at(Timeouts::default().request);
    endpoint.clock.advance(Timeouts::default().request);
    assert!(rest_of(client.writer()).is_empty());
}
