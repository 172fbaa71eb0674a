//! The health listener: probes are answered whatever happens to the other listeners.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use testkit::process::print_figure;
use testkit::server::{RawHttpConnection, ServerProcess, pause};
use testkit::timing::compare_with_goal;
use tidegate::{Clock as _, SystemClock};

/// A server with a health listener, and the address of that.
fn start(arguments: &[&str]) -> (ServerProcess, SocketAddr) {
    let server = ServerProcess::start(&[&["--health", "127.0.0.1:0"], arguments].concat(), &[]);
    let entry: Value = serde_json::from_str(server.log().last().unwrap()).unwrap();
    let address = entry["fields"]["health"].as_str().unwrap().parse().unwrap();
    (server, address)
}

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut client = RawHttpConnection::connect(address);
    client.send("GET", path, &[("connection", "close")], "");
    let response = client.receive();
    (response.status, response.body)
}

#[test]
fn it_replies_while_no_other_listener_has_room_and_has_nothing_but_probes() {
    let (server, health) = start(&["--max-connections", "8"]);
    let mut crowd: Vec<RawHttpConnection> = Vec::new();
    for _ in 0..8 {
        let mut client = RawHttpConnection::connect(server.http);
        client.send("GET", "/healthz", &[], "");
        crowd.extend((client.receive().status == 200).then_some(client));
    }
    assert_eq!(get(server.http, "/healthz").0, 503, "the HTTP listener is full");
    for path in ["/healthz", "/readyz"] {
        let (status, body) = get(health, path);
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &body["status"]), (200, &Value::from("ok")), "{path}");
    }
    for path in ["/", "/metrics", "/v1/rules", "/v1/live"] {
        assert_eq!(get(health, path).0, 404, "{path}");
    }
}

#[test]
fn it_replies_soon_while_another_listener_is_flooded() {
    let (server, health) = start(&[]);
    for (listener, address) in [("HTTP", server.http), ("gRPC", server.grpc)] {
        let ended = AtomicBool::new(false);
        let (http, own) = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| flood(address, &ended));
            }
            // Until the requests of the flood are in flight.
            pause(Duration::from_millis(500));
            let measured = (latencies(server.http, 5), latencies(health, 40));
            ended.store(true, Ordering::Relaxed);
            measured
        });
        let [http, own] = [http, own].map(|all| (all[all.len() / 2], all[all.len() - 1]));
        print_figure(format_args!(
            "/healthz during a flood of the {listener} listener: HTTP listener p50 {:?}, max {:?}; \
             health listener p50 {:?}, max {:?}",
            http.0, http.1, own.0, own.1
        ));
        compare_with_goal("a probe during a flood", own.1, Duration::from_millis(100));
    }
}

/// Sends pipelined requests on 100 connections, and reads their responses.
fn flood(address: SocketAddr, ended: &AtomicBool) {
    let requests = b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".repeat(16);
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        // With the number of bytes that are sent of the requests.
        (stream, 0)
    };
    let mut streams: Vec<(TcpStream, usize)> = (0..100).map(|_| connect()).collect();
    let mut buffer = vec![0; 256 << 10];
    while !ended.load(Ordering::Relaxed) {
        for (stream, sent) in &mut streams {
            *sent = (*sent + stream.write(&requests[*sent..]).unwrap_or(0)) % requests.len();
            if matches!(stream.read(&mut buffer), Ok(0)) {
                (*stream, *sent) = connect();
            }
        }
    }
}

/// Sorted durations of probes, each on a new connection.
fn latencies(address: SocketAddr, probes: usize) -> Vec<Duration> {
    let probe = |_| {
        let begun = SystemClock.elapsed();
        assert_eq!(get(address, "/healthz").0, 200);
        let took = SystemClock.elapsed().saturating_sub(begun);
        pause(Duration::from_millis(10));
        took.into()
    };
    let mut all: Vec<Duration> = (0..probes).map(probe).collect();
    all.sort_unstable();
    all
}
