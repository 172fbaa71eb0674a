//! Clients before authentication.

use std::io::Write;
use std::net::TcpStream;

use bytes::Bytes;
use http::Request;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::internal::transport::listener;

use super::rest_of;
use testkit::resp::RespConnection;
use testkit::server::RawHttpConnection;
use testkit::server_in_process::InProcessServer;

fn guarded() -> InProcessServer {
    InProcessServer::start(
        listener::ListenerOptions::default(),
        AuthTokens::new(Some("sesame"), Some("admin")),
    )
}

#[test]
fn guessing_tokens_costs_a_connection_every_few() {
    let server = guarded();
    let mut client = RespConnection::connect(server.resp);
    let five = ["AUTH a", "AUTH user b", "HELLO 3 AUTH user c", "AUTH sesam", "AUTH sesame5"];
    for wrong in [five, five].concat() {
        assert!(client.send(wrong).to_string().starts_with("-WRONGPASS"), "{wrong}");
    }
    assert!(rest_of(client.writer()).is_empty(), "an error, then the end of the connection");

    // Unknown commands and missing permissions do not close the connection.
    let mut client = RespConnection::connect(server.resp);
    assert!(client.send("AUTH wrong").to_string().starts_with("-WRONGPASS"));
    assert!(client.send("AUTH sesame").is("+OK"));
    for _ in 0..10 {
        assert!(client.send("TG.RESET login k").to_string().starts_with("-NOAUTH"));
    }
    assert!(client.send("PING").is("+PONG"));
}

#[test]
fn nothing_is_read_from_a_stranger_but_the_head_of_a_request() {
    let server = guarded();
    let mut stream = TcpStream::connect(server.http).unwrap();
    stream
        .write_all(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000\r\n\r\n")
        .unwrap();
    let message = rest_of(stream);
    assert!(message.starts_with(b"HTTP/1.1 401 "), "{}", message.escape_ascii());

    for address in [server.grpc, server.http] {
        let (status, message) = server.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
            let (mut sender, connection) = handshake.unwrap();
            tokio::spawn(async move { connection.await.ok() });
            let path = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
            let never = tokio_stream::pending::<Result<Frame<Bytes>, std::io::Error>>();
            let request = Request::post(format!("http://{address}/{path}"));
            let request = request.header("content-type", "application/grpc");
            let response = sender.send_request(request.body(StreamBody::new(never)).unwrap()).await;
            let response = response.unwrap();
            (response.status(), response.headers().get("grpc-status").cloned())
        });
        assert_eq!((status.as_u16(), message.unwrap().to_str().unwrap()), (200, "16"));
    }
}

#[test]
fn the_check_token_changes_nothing_at_any_listener() {
    let server = guarded();
    let mut http = RawHttpConnection::connect(server.http);
    for (token, status) in [("sesame", 403), ("sesam", 401), ("", 401), ("admin", 200)] {
        let header = format!("Bearer {token}");
        http.send("DELETE", "/v1/keys/login/k", &[("authorization", &header)], "");
        assert_eq!(http.receive().status, status, "{token}");
    }
    let mut client = RespConnection::connect(server.resp);
    assert!(client.send("AUTH sesame").is("+OK"));
    assert!(client.send("TG.RESET login k").to_string().starts_with("-NOAUTH"));
    assert!(client.send("AUTH admin").is("+OK"));
    assert!(client.send("TG.RESET login k").is("1"));
}
