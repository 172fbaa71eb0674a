//! How many are let in.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidegate_server::doors;
use tidegate_server::tokens::Tokens;

use super::rest_of;
use crate::inside::Inside;
use crate::resp::Client;
use crate::support::{Folder, Http, Server, wait_until};

/// Clients of the Redis protocol that were let in, and what the first was told that was not.
fn fill(address: std::net::SocketAddr, most: usize) -> (Vec<Client>, String) {
    let mut inside = Vec::new();
    for _ in 0..most {
        let mut client = Client::connect(address);
        match client.try_receive_after("PING") {
            Some(reply) if reply == "+PONG" => inside.push(client),
            Some(reply) => return (inside, reply),
            None => return (inside, "nothing".into()),
        }
    }
    (inside, "all were let in".into())
}

impl Client {
    /// The reply to a command, unless the connection ends first.
    fn try_receive_after(&mut self, line: &str) -> Option<String> {
        let _ = std::io::Write::write_all(&mut self.writer(), &crate::resp::command(&[line]));
        self.try_receive().ok().flatten().map(|reply| reply.to_string())
    }
}

#[test]
fn at_the_cap_newcomers_are_told_at_once_and_other_doors_stay_open() {
    let options = doors::Options { max_connections: 16, ..doors::Options::default() };
    let server = Inside::start(options, Tokens::default());
    // Two places are each door's own, and ten are everybody's.
    let (mut inside, told) = fill(server.resp, 16);
    assert_eq!((inside.len(), &*told), (12, "-ERR max number of clients reached"));
    let mut web: Vec<Http> = (0..2).map(|_| Http::connect(server.http)).collect();
    for http in &mut web {
        http.send("GET", "/healthz", &[], "");
        assert_eq!(http.receive().status, 200, "another door has its own");
    }
    let told = rest_of(TcpStream::connect(server.http).unwrap());
    assert!(told.starts_with(b"HTTP/1.1 503 "), "{}", told.escape_ascii());
    server.expect_metric(r#"tidegate_connections_refused_total{door="resp",reason="full"} 1"#);
    server.expect_metric(r#"tidegate_connections_refused_total{door="http",reason="full"} 1"#);
    assert!(inside.iter_mut().all(|client| client.ask("PING").is("+PONG")), "who is in stays");

    inside.truncate(5);
    wait_until(|| (fill(server.resp, 7).0.len() == 7).then_some(())).expect("there is room again");
}

#[test]
fn a_crowd_leaves_files_for_the_server_itself() {
    let folder = Folder::new();
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
            .find(|fields| fields["message"].as_str().is_some_and(|told| told.starts_with(message)))
    };
    assert_eq!(next("fewer clients than wanted").expect("it says so")["room"], 32);
    let listening = next("listening").expect("it starts");
    let address = |door: &str| listening[door].as_str().unwrap().parse().unwrap();
    let (inside, told) = fill(address("resp"), 64);
    assert_eq!((inside.len(), &*told), (24, "-ERR max number of clients reached"));
    // Reading a file takes a descriptor, as a connection to a store does.
    std::fs::write(&file, "rules: [{ name: two, limits: [5/s] }]\n").unwrap();
    assert_eq!(next("policy ").expect("it is told")["message"], "policy reloaded");
    let mut http = Http::connect(address("http"));
    http.send("GET", "/v1/rules/two", &[], "");
    assert_eq!(http.receive().status, 200);
}

#[test]
fn a_door_full_of_half_requests_leaves_room_at_another() {
    let server = Server::start(&[], &[]);
    let half = [&b"*2\r\n$4\r\nECHO\r\n$60000\r\n"[..], &[b'x'; 59_000]].concat();
    let mut crowd: Vec<TcpStream> = Vec::new();
    let refused = wait_until(|| {
        for _ in 0..20 {
            let mut stream = TcpStream::connect(server.resp).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            stream.write_all(&half).unwrap();
            crowd.push(stream);
        }
        let told = crowd.iter_mut().find_map(|stream| {
            let mut told = [0; 32];
            stream.read_exact(&mut told).ok().map(|()| told)
        });
        told.map(|told| String::from_utf8_lossy(&told).into_owned())
    });
    assert_eq!(refused.as_deref(), Some("-ERR too many long requests are "));
    let body = format!("{:60000}", r#"{"rule":"login","key":"k"}"#);
    let answer = server.request("POST", "/v1/check", &[], &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// A process that ends with the test, however that ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
