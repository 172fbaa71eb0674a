//! Floods of commands, requests, connections, keys and names.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::http2_frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, POST, Raw, field, frame, head_to,
};
use crate::monitor::{Alone, Mebibytes, Memory, connect, survive, victim};
use testkit::process::print_figure;
use testkit::resp::{RespConnection, RespReply, command};
use testkit::server::{RawHttpConnection, ServerProcess, pause, wait_until};

/// Clients that send and never read.
const CLIENTS: usize = 16;

/// Sends the bytes up to `times` times, until the listener reads no more.
fn pour(listener: SocketAddr, bytes: &[u8], times: usize) -> (TcpStream, usize) {
    let mut stream = connect(listener);
    let sent = (0..times).take_while(|_| stream.write_all(bytes).is_ok()).count();
    (stream, sent)
}

#[test]
fn commands_are_not_read_while_their_replies_are_unread() {
    const COMMANDS: usize = 100_000;
    let _alone = Alone::wait();
    let long = command(&["ECHO", &"x".repeat(60_000)]);
    let short = command(&["TG.CHECK", "open", "k"]).repeat(100);
    for (name, bytes, each) in [("short", short, 100), ("long", long, 1)] {
        let mut server = victim();
        let name = format!("resp: {CLIENTS} clients pipeline 10^5 {name} commands and never read");
        let taken = survive(&name, &mut server, |server| {
            let held: Vec<_> =
                (0..CLIENTS).map(|_| pour(server.resp, &bytes, COMMANDS / each)).collect();
            held.iter().map(|(_, sent)| sent * each).max()
        });
        // The short replies to all commands fit into the socket buffers.
        assert!(each > 1 || taken < Some(COMMANDS), "the server stops reading");
    }
}

#[test]
fn unread_responses_do_not_accumulate() {
    const REQUESTS: usize = 100_000;
    let _alone = Alone::wait();
    let body = r#"{"rule":"open","key":"k"}"#;
    let check = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for (name, request) in
        [("small", &*check), ("large", "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n")]
    {
        let mut server = victim();
        let name = format!(
            "http: {CLIENTS} clients pipeline 10^5 requests for {name} responses and never read"
        );
        survive(&name, &mut server, |server| {
            let requests = request.repeat(100);
            let pour = |_| pour(server.http, requests.as_bytes(), REQUESTS / 100);
            drop((0..CLIENTS).map(pour).collect::<Vec<_>>());
        });
    }
}

#[test]
fn a_thousand_unfinished_frames_and_bodies_do_not_accumulate() {
    let _alone = Alone::wait();
    let mut half_frame = b"*3\r\n$8\r\nTG.CHECK\r\n$60000\r\n".to_vec();
    half_frame.resize(half_frame.len() + 59_000, b'x');
    let mut half_body =
        b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 65000\r\n\r\n".to_vec();
    half_body.resize(half_body.len() + 64_000, b' ');
    let mut half_head = b"GET / HTTP/1.1\r\nx: ".to_vec();
    half_head.resize(half_head.len() + 30_000, b'x');
    for (name, bytes) in [("frames", half_frame), ("bodies", half_body), ("heads", half_head)] {
        let mut server = victim();
        survive(&format!("1,000 unfinished {name}"), &mut server, |server| {
            let listener = if name == "frames" { server.resp } else { server.http };
            let held: Vec<_> = (0..1_000).map(|_| pour(listener, &bytes, 1)).collect();
            pause(Duration::from_millis(300));
            drop(held);
        });
    }
}

#[test]
fn without_free_files_open_connections_are_served_and_new_ones_wait_for_a_file() {
    let _alone = Alone::wait();
    let mut server = victim();
    let (mut http, mut resp) =
        (RawHttpConnection::connect(server.http), RespConnection::connect(server.resp));
    assert_eq!(resp.send("PING"), RespReply::Simple("PONG".into()));
    survive("64 files and 300 connections", &mut server, |server| {
        let id = server.id().to_string();
        let limited = Command::new("prlimit").args(["--pid", &id, "--nofile=64:64"]).status();
        assert!(limited.expect("prlimit comes with the system").success());
        let listeners = [server.http, server.grpc, server.resp];
        let mut crowd: Vec<TcpStream> =
            (0..300).map(|nth| TcpStream::connect(listeners[nth % 3]).unwrap()).collect();
        let logged = || (server.logged("accept failed") > 0).then_some(());
        wait_until(logged).expect("a log line");
        for _ in 0..50 {
            http.send("POST", "/v1/check", &[], r#"{"rule":"open","key":"inside"}"#);
            assert_eq!(http.receive().status, 200);
            assert_eq!(resp.send("TG.CHECK open inside").items()[0], RespReply::Integer(1));
        }
        // The earlier connections precede the new one in the backlog.
        crowd.clear();
        let mut newcomer = RespConnection::connect(server.resp);
        assert_eq!(newcomer.send("PING"), RespReply::Simple("PONG".into()));
        assert!(server.logged("accept failed") < 20, "the log line is throttled");
    });
}

/// Sends commands in large pieces and reads as many replies.
fn flood_with_keys(server: &ServerProcess, keys: std::ops::Range<u64>) {
    let mut client = RespConnection::connect(server.resp);
    let mut writer = client.writer();
    let count = keys.end - keys.start;
    let sender = std::thread::spawn(move || {
        for piece in keys.collect::<Vec<_>>().chunks(1_000) {
            let check = |key: &u64| command(&["TG.LIMIT", "5/36500d", &format!("key-{key}")]);
            writer.write_all(&piece.iter().flat_map(check).collect::<Vec<u8>>()).unwrap();
        }
    });
    for _ in 0..count {
        assert!(matches!(client.receive(), RespReply::Array(_)));
    }
    sender.join().unwrap();
}

#[test]
fn no_number_of_keys_takes_more_memory_than_the_table_may_have() {
    let _alone = Alone::wait();
    let server = victim();
    // The whole table is 256 MiB: only the long run fills it.
    let keys = if std::env::var_os("TIDEGATE_LONG").is_some() { 10_000_000 } else { 400_000 };
    let memory = Memory::of(server.id());
    flood_with_keys(&server, 0..keys);
    let table = server.get("/healthz").json()["store"]["memory_bytes"].as_u64().unwrap() >> 10;
    let grown = memory.grown();
    print_figure(format_args!(
        "attack: {keys} keys: memory grew by {}, the table reports {}",
        Mebibytes(grown),
        Mebibytes(table)
    ));
    assert!(table <= 256 << 10, "{table}");
    assert!(grown <= table + table / 10 + (16 << 10), "{grown} of {table}");
    let used = server.post("/v1/check", &json!({ "limit": "5/36500d", "key": "key-1", "cost": 5 }));
    assert_eq!(used.status, 429, "new keys do not evict used ones");
}

/// 150 requests on each of a hundred connections, fifty for each of 300 keys without permits.
#[test]
fn fifteen_thousand_waiting_requests_stay_within_64_mib() {
    const LIMIT: &str = "fixed-window 1000/50s first-hit";
    const REQUESTS: u32 = 15_000;
    let _alone = Alone::wait();
    let mut server = victim();
    survive("15,000 requests that wait", &mut server, |server| {
        let key = |nth: u32| format!("key-{}", nth % 300);
        for nth in 0..300 {
            let used = json!({ "limit": LIMIT, "key": key(nth), "cost": 1_000 });
            assert_eq!(server.post("/v1/record", &used).status, 200);
        }
        let mut head = head_to(POST, "/v1/check", &server.http.to_string());
        head.extend(field(0, "content-type", b"application/json"));
        let request = |nth: u32| {
            let body = json!({ "limit": LIMIT, "key": key(nth), "wait_ms": 60_000 }).to_string();
            let stream = 2 * (nth % 150) + 1;
            let data = frame(DATA, END_STREAM, stream, body.as_bytes());
            [frame(HEADERS, END_HEADERS, stream, &head), data].concat()
        };
        let waiting = || server.metric("tidegate_waiting_requests").unwrap();
        let refused = || server.metric("tidegate_waits_refused_total{cap=\"total\"}").unwrap();
        let allowed = r#"tidegate_checks_total{rule="adhoc",outcome="allow",source="memory"}"#;
        let allowed = || server.metric(allowed).unwrap_or(0.0);
        let mut connections = Vec::new();
        for first in (0..REQUESTS).step_by(150) {
            let (all, before) = (f64::from(first + 150), waiting());
            let mut raw = Raw::open(server.http, &[]);
            assert!(raw.send(&(first..first + 150).flat_map(request).collect::<Vec<u8>>()));
            let taken = || (waiting() + refused() + allowed() >= all).then_some(());
            wait_until(taken).expect("each waits, is denied at once, or has waited");
            // This is about requests that wait. A connection without any is closed.
            connections.extend((waiting() > before).then_some(raw));
        }
        let (waiting, refused) = (waiting(), refused());
        print_figure(format_args!("attack: {waiting} of {REQUESTS} wait, {refused} refused"));
        assert!(waiting <= 4_096.0, "{waiting}");
    });
}

#[test]
fn no_name_from_a_request_becomes_a_label() {
    let _alone = Alone::wait();
    let mut server = victim();
    let labels = |server: &ServerProcess| -> BTreeSet<String> {
        let text = server.get("/metrics").body;
        text.lines()
            .map(|line| line.rsplit_once(' ').map_or(line, |(name, _)| name).to_string())
            .collect()
    };
    let send = |server: &ServerProcess, nth: usize| {
        let mut client = RespConnection::connect(server.resp);
        let mut http = RawHttpConnection::connect(server.http);
        for nth in nth..nth + 1_000 {
            client.send_args(&["TG.CHECK", &format!("rule-{nth}"), "k"]);
            client.send_args(&["TG.LIMIT", &format!("{}/h", nth + 1), &format!("key-{nth}")]);
            client.send_args(&["CL.THROTTLE", &format!("throttle-{nth}"), "5", "10", "60"]);
            client.send_args(&[&format!("COMMAND-{nth}")]);
            let body = json!({ "rule": format!("http-{nth}"), "key": "k" }).to_string();
            http.send("POST", "/v1/check", &[], &body);
            assert_eq!(http.receive().status, 404);
            http.send("GET", &format!("/nowhere-{nth}"), &[], "");
            assert_eq!(http.receive().status, 404);
            // No admin token is configured.
            http.send("PUT", &format!("/v1/rules/put-{nth}"), &[], r#"{"limits":["1/s"]}"#);
            assert_eq!(http.receive().status, 403);
        }
    };
    survive("12,000 unknown names", &mut server, |server| {
        send(server, 0);
        let few = labels(server);
        send(server, 1_000);
        assert_eq!(
            few.symmetric_difference(&labels(server)).collect::<Vec<_>>(),
            <Vec<&String>>::new()
        );
        let unexpected = few.iter().find(|label| label.contains("-1") || label.contains("nowhere"));
        assert_eq!(unexpected, None);
    });
}
