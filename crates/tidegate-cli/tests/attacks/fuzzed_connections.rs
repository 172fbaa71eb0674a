//! Connections that send a damaged request and leave, on every listener. `TIDEGATE_LONG=1` opens a
//! million on each.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use prost::Message;
use tidegate::{Clock, SystemClock};
use tidegate_model::{TraceRng, run_size};

use crate::envoy_fuzz::{mutate, seeds};
use crate::http2_frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, POST, PREFACE, SETTINGS, field, frame, head_to,
};
use crate::monitor::{Alone, Mebibytes, Memory, assert_serves, victim};
use testkit::process::print_figure;
use testkit::resp::command;
use testkit::server::{ServerProcess, pause, wait_until};

const SEED: u64 = 0x66_757a_7a65;
const CLIENTS: u64 = 4;
/// Time for a reply, or for the end of the connection, after the client has sent its last byte.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a port to become free again, if this process has used all of them.
const NO_PORT: Duration = Duration::from_millis(50);

/// Whole requests of a listener, as its clients send them.
fn requests(name: &str) -> Vec<Vec<u8>> {
    let body = r#"{"rule":"open","key":"k","cost":1,"id":"42"}"#;
    let http1 = |head: &str, body: &str| {
        let length = body.len();
        format!("{head} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")
            .into_bytes()
    };
    let http2 = |path: &str, kind: &str, body: &[u8]| {
        let mut head = head_to(POST, path, "localhost");
        head.extend(field(0, "content-type", kind.as_bytes()));
        let data = frame(DATA, END_STREAM, 1, body);
        [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(HEADERS, END_HEADERS, 1, &head), &data]
            .concat()
    };
    match name {
        "resp" => vec![
            [command(&["HELLO", "3"]), command(&["TG.CHECK", "open", "k"]).repeat(3)].concat(),
            command(&["CL.THROTTLE", "k", "15", "30", "60", "1"]),
            [command(&["MULTI"]), command(&["TG.CHECK", "five", "k"]), command(&["EXEC"])].concat(),
            b"PING\r\nTG.PEEK open k\r\nCOMMAND DOCS\r\n".to_vec(),
        ],
        "http" => vec![
            http1("POST /v1/check", body),
            http1("POST /v1/reserve", r#"{"rule":"open","key":"k","cost":5,"ttl_ms":1}"#),
            http1("GET /v1/auth?a=1;b=%2F", "").repeat(2),
            http2("/v1/check", "application/json", body.as_bytes()),
        ],
        _ => seeds()
            .iter()
            .map(|request| {
                let message = request.encode_to_vec();
                let length = u32::try_from(message.len()).unwrap().to_be_bytes();
                let body = [&[0], &length[..], &message].concat();
                let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
                http2(path, "application/grpc", &body)
            })
            .collect(),
    }
}

/// Opens connections one after the other. Returns how many, and how many had a reply.
fn send_damaged(listener: SocketAddr, name: &str, seed: u64, count: u64) -> (u64, u64) {
    let (requests, mut rng) = (requests(name), TraceRng::new(SEED ^ seed));
    let (mut opened, mut replied) = (0, 0);
    while opened < count {
        let mut stream = match TcpStream::connect(listener) {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                pause(NO_PORT);
                continue;
            }
            Err(error) => panic!("{name}: {error} after {opened} connections"),
        };
        opened += 1;
        let mut bytes = requests[rng.index(requests.len())].clone();
        for _ in 0..rng.index(5) {
            mutate(&mut bytes, &mut rng);
        }
        let (first, second) = bytes.split_at(rng.index(bytes.len() + 1));
        // The listener may close the connection at any time.
        let _ = stream.write_all(first).and_then(|()| stream.write_all(second));
        match rng.index(16) {
            0 => {
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.set_read_timeout(Some(REPLY_TIMEOUT));
                replied += u64::from(matches!(stream.read(&mut [0; 4_096]), Ok(1..)));
            }
            1 => drop(stream.shutdown(Shutdown::Both)),
            _ => {}
        }
    }
    (opened, replied)
}

/// Open files of the server.
fn open_files(server: &ServerProcess) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.id())).expect("the process runs").count()
}

#[test]
fn no_damaged_connection_panics_or_leaks_a_descriptor() {
    let _alone = Alone::wait();
    let count = run_size(800, 6_000, 1_000_000);
    let mut server = victim();
    // What the first connections open for good is no leak.
    for (name, listener) in listeners(&server) {
        send_damaged(listener, name, 99, 100);
    }
    assert_serves(&mut server);
    pause(Duration::from_millis(500));
    for (name, listener) in listeners(&server) {
        let (before, memory) = (open_files(&server), Memory::of(server.id()));
        let begun = SystemClock.elapsed();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|nth| {
                std::thread::spawn(move || send_damaged(listener, name, nth, count / CLIENTS))
            })
            .collect();
        let sums = clients.into_iter().map(|client| client.join().unwrap());
        let (opened, replied) = sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let took = Duration::from(SystemClock.elapsed().saturating_sub(begun));
        let closed = wait_until(|| (open_files(&server) <= before).then_some(()));
        let after = open_files(&server);
        print_figure(format_args!(
            "fuzz: {opened} connections on {name} in {took:?}, {replied} of about {} that wait had a \
             reply: {} panics, {before} -> {after} descriptors, memory grew by {}, {} kept",
            opened / 16,
            server.metric("tidegate_panics_total").unwrap_or(0.0),
            Mebibytes(memory.grown()),
            Mebibytes(memory.kept()),
        ));
        assert!(closed.is_some(), "{name}: {before} -> {after} descriptors");
        assert!(replied > opened / 160, "{name}: {replied} replies of {opened}");
        assert_serves(&mut server);
    }
}

fn listeners(server: &ServerProcess) -> [(&'static str, SocketAddr); 3] {
    [("resp", server.resp), ("http", server.http), ("grpc", server.grpc)]
}
