//! The connection limit.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::internal::transport::listener;

use super::rest_of;
use testkit::resp::RespConnection;
use testkit::server::{RawHttpConnection, ServerProcess, TempFolder, wait_until};
use testkit::server_in_process::InProcessServer;

/// Accepted RESP clients, and the reply to the first rejected one.
fn fill(address: std::net::SocketAddr, most: usize) -> (Vec<RespConnection>, String) {
    let mut inside = Vec::new();
    for _ in 0..most {
        let mut client = RespConnection::connect(address);
        match try_receive_after(&mut client, "PING") {
            Some(reply) if reply == "+PONG" => inside.push(client),
            Some(reply) => return (inside, reply),
            None => return (inside, "nothing".into()),
        }
    }
    (inside, "all were let in".into())
}

/// The reply to a command, unless the connection ends first.
fn try_receive_after(client: &mut RespConnection, line: &str) -> Option<String> {
    let _ = std::io::Write::write_all(&mut client.writer(), &testkit::resp::command(&[line]));
    client.try_receive().ok().flatten().map(|reply| reply.to_string())
}

#[test]
fn at_the_cap_new_connections_are_rejected_at_once_and_other_listeners_stay_open() {
    let options =
        listener::ListenerOptions { max_connections: 16, ..listener::ListenerOptions::default() };
    let server = InProcessServer::start(options, AuthTokens::default());
    // Each listener has two reserved connections, and ten are shared.
    let (mut inside, text) = fill(server.resp, 16);
    assert_eq!((inside.len(), &*text), (12, "-ERR max number of clients reached"));
    let mut web: Vec<RawHttpConnection> =
        (0..2).map(|_| RawHttpConnection::connect(server.http)).collect();
    for http in &mut web {
        http.send("GET", "/healthz", &[], "");
        assert_eq!(http.receive().status, 200, "another listener has its own connections");
    }
    let text = rest_of(TcpStream::connect(server.http).unwrap());
    assert!(text.starts_with(b"HTTP/1.1 503 "), "{}", text.escape_ascii());
    server.expect_metric(r#"tidegate_connections_refused_total{listener="resp",reason="full"} 1"#);
    server.expect_metric(r#"tidegate_connections_refused_total{listener="http",reason="full"} 1"#);
    assert!(inside.iter_mut().all(|client| client.send("PING").is("+PONG")), "who is in stays");

    inside.truncate(5);
    wait_until(|| (fill(server.resp, 7).0.len() == 7).then_some(())).expect("there is room again");
}

#[test]
fn a_crowd_leaves_files_for_the_server_itself() {
    let folder = TempFolder::new();
    let file = folder.write("policy.yaml", "rules: [{ name: one, limits: [5/s] }]\n");
    let program = env!("CARGO_BIN_EXE_tidegate");
    let mut command = Command::new("prlimit");
    command.args(["--nofile=64:64", program, "serve", "--config", file.to_str().unwrap()]);
    command.args(["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = Killed(command.spawn().expect("prlimit comes with the system"));
    let mut log = BufReader::new(server.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut next = |message: &str| {
        let entry = |line: String| serde_json::from_str::<Value>(&line).ok();
        log.by_ref()
            .filter_map(entry)
            .map(|entry| entry["fields"].clone())
            .find(|fields| fields["message"].as_str().is_some_and(|text| text.starts_with(message)))
    };
    assert_eq!(next("connection limit lowered").expect("it says so")["allowed"], 32);
    let listening = next("listening").expect("it starts");
    let address = |endpoint: &str| listening[endpoint].as_str().unwrap().parse().unwrap();
    let (inside, text) = fill(address("resp"), 64);
    assert_eq!((inside.len(), &*text), (24, "-ERR max number of clients reached"));
    // Reading a file needs a descriptor, as a connection to a store does.
    std::fs::write(&file, "rules: [{ name: two, limits: [5/s] }]\n").unwrap();
    assert_eq!(next("policy ").expect("not logged")["message"], "policy reloaded");
    let mut http = RawHttpConnection::connect(address("http"));
    http.send("GET", "/v1/rules/two", &[], "");
    assert_eq!(http.receive().status, 200);
}

#[test]
fn a_listener_full_of_partial_requests_leaves_room_at_another() {
    let server = ServerProcess::start(&[], &[]);
    let half = [&b"*2\r\n$4\r\nECHO\r\n$60000\r\n"[..], &[b'x'; 59_000]].concat();
    let mut crowd: Vec<TcpStream> = Vec::new();
    let refused = wait_until(|| {
        for _ in 0..20 {
            let mut stream = TcpStream::connect(server.resp).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            stream.write_all(&half).unwrap();
            crowd.push(stream);
        }
        let text = crowd.iter_mut().find_map(|stream| {
            let mut text = [0; 32];
            stream.read_exact(&mut text).ok().map(|()| text)
        });
        text.map(|text| String::from_utf8_lossy(&text).into_owned())
    });
    assert_eq!(refused.as_deref(), Some("-ERR too many large requests in "));
    let body = format!("{:60000}", r#"{"rule":"login","key":"k"}"#);
    let response = server.request("POST", "/v1/check", &[], &body);
    assert_eq!(response.status, 200, "{}", response.body);
}

/// A process killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
