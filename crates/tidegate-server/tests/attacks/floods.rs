//! More than anybody can take: commands, requests, connections, keys, names.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::life::print_figure;
use crate::resp::{Client, Reply, command};
use crate::support::{Http, Server, pause, wait_until};
use crate::witness::{Alone, Mebibytes, Memory, connect, survive, victim};

/// Who sends and never reads.
const CLIENTS: usize = 16;

/// Sends the same until the door takes no more, so often at most.
fn pour(door: SocketAddr, bytes: &[u8], times: usize) -> (TcpStream, usize) {
    let mut stream = connect(door);
    let sent = (0..times).take_while(|_| stream.write_all(bytes).is_ok()).count();
    (stream, sent)
}

#[test]
fn commands_whose_answers_nobody_reads_are_not_taken() {
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
        // The short answers to all of them fit into what the system keeps for a socket.
        assert!(each > 1 || taken < Some(COMMANDS), "somebody has to stop");
    }
}

#[test]
fn answers_that_nobody_reads_are_not_piled_up() {
    const REQUESTS: usize = 100_000;
    let _alone = Alone::wait();
    let body = r#"{"rule":"open","key":"k"}"#;
    let check = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for (name, request) in
        [("small", &*check), ("large", "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n")]
    {
        let mut server = victim();
        let name = format!(
            "http: {CLIENTS} clients pipeline 10^5 requests for {name} answers and never read"
        );
        survive(&name, &mut server, |server| {
            let requests = request.repeat(100);
            let pour = |_| pour(server.http, requests.as_bytes(), REQUESTS / 100);
            drop((0..CLIENTS).map(pour).collect::<Vec<_>>());
        });
    }
}

#[test]
fn a_thousand_unfinished_frames_and_bodies_are_not_piled_up() {
    let _alone = Alone::wait();
    let mut half_frame = b"*3\r\n$8\r\nTG.CHECK\r\n$60000\r\n".to_vec();
    half_frame.resize(half_frame.len() + 59_000, b'x');
    let mut half_body =
        b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 65000\r\n\r\n".to_vec();
    half_body.resize(half_body.len() + 64_000, b' ');
    let mut half_head = b"GET / HTTP/1.1\r\nx: ".to_vec();
    half_head.resize(half_head.len() + 30_000, b'x');
    for (name, bytes) in [("frames", half_frame), ("bodies", half_body), ("heads", half_head)] {
        let mut server = victim();
        survive(&format!("1,000 unfinished {name}"), &mut server, |server| {
            let door = if name == "frames" { server.resp } else { server.http };
            let held: Vec<_> = (0..1_000).map(|_| pour(door, &bytes, 1)).collect();
            pause(Duration::from_millis(300));
            drop(held);
        });
    }
}

#[test]
fn when_no_file_is_left_those_inside_are_served_and_others_come_in_when_one_leaves() {
    let _alone = Alone::wait();
    let mut server = victim();
    let (mut http, mut resp) = (Http::connect(server.http), Client::connect(server.resp));
    assert_eq!(resp.ask("PING"), Reply::Simple("PONG".into()));
    survive("64 files and 300 connections", &mut server, |server| {
        let id = server.id().to_string();
        let limited = Command::new("prlimit").args(["--pid", &id, "--nofile=64:64"]).status();
        assert!(limited.expect("prlimit comes with the system").success());
        let doors = [server.http, server.grpc, server.resp];
        let mut crowd: Vec<TcpStream> =
            (0..300).map(|nth| TcpStream::connect(doors[nth % 3]).unwrap()).collect();
        let told = || (server.logged("cannot accept a connection") > 0).then_some(());
        wait_until(told).expect("it says so");
        for _ in 0..50 {
            http.send("POST", "/v1/check", &[], r#"{"rule":"open","key":"inside"}"#);
            assert_eq!(http.receive().status, 200);
            assert_eq!(resp.ask("TG.CHECK open inside").items()[0], Reply::Integer(1));
        }
        // The first are inside and the others in line before the newcomer.
        crowd.clear();
        let mut newcomer = Client::connect(server.resp);
        assert_eq!(newcomer.ask("PING"), Reply::Simple("PONG".into()));
        assert!(
            server.logged("cannot accept a connection") < 20,
            "it does not fill the disk with it"
        );
    });
}

/// Sends commands in large pieces and reads as many answers.
fn flood_with_keys(server: &Server, keys: std::ops::Range<u64>) {
    let mut client = Client::connect(server.resp);
    let mut writer = client.writer();
    let count = keys.end - keys.start;
    let asking = std::thread::spawn(move || {
        for piece in keys.collect::<Vec<_>>().chunks(1_000) {
            let ask = |key: &u64| command(&["TG.LIMIT", "5/36500d", &format!("key-{key}")]);
            writer.write_all(&piece.iter().flat_map(ask).collect::<Vec<u8>>()).unwrap();
        }
    });
    for _ in 0..count {
        assert!(matches!(client.receive(), Reply::Array(_)));
    }
    asking.join().unwrap();
}

#[test]
fn no_number_of_keys_takes_more_memory_than_the_table_may_have() {
    let _alone = Alone::wait();
    let server = victim();
    // The whole table is 256 MiB: filled in the long run alone.
    let keys = if std::env::var_os("TIDEGATE_LONG").is_some() { 10_000_000 } else { 400_000 };
    let memory = Memory::of(server.id());
    flood_with_keys(&server, 0..keys);
    let table = server.metric("tidegate_memory_bytes").expect("a figure") as u64 >> 10;
    let grown = memory.grown();
    print_figure(format_args!(
        "attack: {keys} keys of strangers: memory grew by {}, the table says {}",
        Mebibytes(grown),
        Mebibytes(table)
    ));
    assert!(table <= 256 << 10, "{table}");
    assert!(grown <= table + table / 10 + (16 << 10), "{grown} of {table}");
    let used = server.post("/v1/check", &json!({ "limit": "5/36500d", "key": "key-1", "cost": 5 }));
    assert_eq!(used.status, 429, "what was used first is not forgotten for the sake of the last");
}

#[test]
fn no_name_of_a_strangers_choosing_becomes_a_label() {
    let _alone = Alone::wait();
    let mut server = victim();
    let labels = |server: &Server| -> BTreeSet<String> {
        let text = server.get("/metrics").body;
        text.lines()
            .map(|line| line.rsplit_once(' ').map_or(line, |(name, _)| name).to_string())
            .collect()
    };
    let ask = |server: &Server, nth: usize| {
        let mut client = Client::connect(server.resp);
        let mut http = Http::connect(server.http);
        for nth in nth..nth + 1_000 {
            client.ask_words(&["TG.CHECK", &format!("rule-{nth}"), "k"]);
            client.ask_words(&["TG.LIMIT", &format!("{}/h", nth + 1), &format!("key-{nth}")]);
            client.ask_words(&["CL.THROTTLE", &format!("throttle-{nth}"), "5", "10", "60"]);
            client.ask_words(&[&format!("COMMAND-{nth}")]);
            let body = json!({ "rule": format!("http-{nth}"), "key": "k" }).to_string();
            http.send("POST", "/v1/check", &[], &body);
            assert_eq!(http.receive().status, 404);
            http.send("GET", &format!("/nowhere-{nth}"), &[], "");
            assert_eq!(http.receive().status, 404);
            // Nobody has the token, since there is none.
            http.send("PUT", &format!("/v1/rules/put-{nth}"), &[], r#"{"limits":["1/s"]}"#);
            assert_eq!(http.receive().status, 403);
        }
    };
    survive("12,000 names of strangers", &mut server, |server| {
        ask(server, 0);
        let few = labels(server);
        ask(server, 1_000);
        assert_eq!(
            few.symmetric_difference(&labels(server)).collect::<Vec<_>>(),
            <Vec<&String>>::new()
        );
        let strange = few.iter().find(|label| label.contains("-1") || label.contains("nowhere"));
        assert_eq!(strange, None);
    });
}
