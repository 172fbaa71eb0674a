//! The end with a warning, while everybody asks on every door: whoever had asked is answered, and nobody is charged for
//! nothing.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tidegate::{Clock, SystemClock};
use tokio::runtime::Runtime;
use tokio_rustls::rustls::ClientConfig;

use crate::certificates::{Authority, Certificate};
use crate::envoy::{self, descriptor, hitting, request};
use crate::life::print_figure;
use crate::life::redis_server::Server as Redis;
use crate::resp::{Client, Reply, command};
use crate::secure;
use crate::support::{Folder, Http, Server, pause, wait_until};
use crate::witness::Alone;

const DOORS: [&str; 3] = ["http", "resp", "grpc"];
const CLIENTS_EACH: usize = 4;
/// More than anybody asks for: whoever is denied got no answer of Redis in time, and may have been charged.
const LIMIT: u64 = 1_000_000_000;

/// What became of the questions of one client.
#[derive(Default, Debug)]
struct Asked {
    allowed: u64,
    unsure: u64,
    /// Sent before the signal and never answered.
    dropped: u64,
}

/// When a question was on its way for certain, where that is known, and whether it was allowed.
struct Told {
    sent: Option<u64>,
    allowed: Option<bool>,
}

/// Asks until a question has no answer.
fn ask_until_the_end(signalled: &AtomicU64, mut ask: impl FnMut() -> Told) -> Asked {
    let mut asked = Asked::default();
    loop {
        let told = ask();
        match told.allowed {
            Some(true) => asked.allowed += 1,
            Some(false) => asked.unsure += 1,
            None => {
                let signal = signalled.load(Ordering::SeqCst);
                let in_time = told.sent.is_some_and(|sent| signal == 0 || sent < signal);
                asked.dropped += u64::from(in_time);
                return asked;
            }
        }
    }
}

fn now() -> u64 {
    SystemClock.elapsed().get()
}

fn over_http(server: &Server, signalled: &AtomicU64) -> Asked {
    let mut http = Http::connect(server.http);
    let body = json!({ "rule": "http", "key": "k" }).to_string();
    let ask = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    ask_until_the_end(signalled, || {
        let sent = http.try_write(ask.as_bytes()).ok().map(|()| now());
        Told { sent, allowed: http.try_receive().map(|answer| answer.status == 200) }
    })
}

fn over_resp(server: &Server, signalled: &AtomicU64) -> Asked {
    let mut client = Client::connect(server.resp);
    let (mut writer, ask) = (client.writer(), command(&["TG.CHECK", "resp", "k"]));
    ask_until_the_end(signalled, || {
        let sent = writer.write_all(&ask).ok().map(|()| now());
        let reply = client.try_receive().ok().flatten();
        Told { sent, allowed: reply.map(|reply| reply.items()[0] == Reply::Integer(1)) }
    })
}

/// When the bytes of a question go out, only the client's library knows.
fn over_grpc(server: &Server, signalled: &AtomicU64) -> Asked {
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(envoy::Client::connect(server.grpc));
    let question = request("edge", &[descriptor(&[("k", "v")])]);
    ask_until_the_end(signalled, || {
        let answer = runtime.block_on(client.ask(&question)).ok();
        let is_within = |status: i32| status == i32::from(tidegate_server::envoy::proto::Code::Ok);
        Told { sent: None, allowed: answer.map(|answer| is_within(answer.overall_code)) }
    })
}

/// Each question over a connection of its own with TLS: the end of its handshake and the question arrive together.
fn over_tls(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    question: &str,
    signalled: &AtomicU64,
) -> Asked {
    ask_until_the_end(signalled, || {
        let Ok(mut stream) = secure::connect(address, config) else {
            return Told { sent: None, allowed: None };
        };
        let sent = stream.write_all(question.as_bytes()).ok().map(|()| now());
        let answered = stream.read(&mut [0; 1]).is_ok_and(|read| read > 0);
        Told { sent, allowed: answered.then_some(true) }
    })
}

/// What Redis has counted for each door.
fn charged(server: &Server) -> [u64; 3] {
    let mut client = Client::connect(server.resp);
    let mut left = |rule: &str| {
        wait_until(|| {
            let reply = client.ask(&format!("TG.PEEK {rule} k"));
            let Reply::Array(items) = &reply else { return None };
            (items[7].text() == "redis").then(|| u64::try_from(items[2].integer()).unwrap())
        })
        .expect("redis answers")
    };
    let (http, resp) = (left("http"), left("resp"));
    let runtime = Runtime::new().unwrap();
    let grpc = runtime.block_on(envoy::Client::connect(server.grpc));
    let probe = request("edge", &[hitting(&[("k", "v")], 0)]);
    let grpc = runtime.block_on(grpc.ask(&probe)).unwrap().statuses[0].limit_remaining;
    [http, resp, grpc.into()].map(|left| LIMIT - left)
}

#[test]
fn whoever_asked_as_soon_as_tls_was_agreed_on_is_answered() {
    let _alone = Alone::wait();
    let authority = Authority::new();
    let Certificate { cert, key } = authority.certify("127.0.0.1");
    let config = secure::config(&authority, None, &[]);
    let mut answered = 0;
    for _ in 0..5 {
        let mut server = Server::start(&["--tls-cert", &cert, "--tls-key", &key], &[]);
        let signalled = AtomicU64::new(0);
        let doors =
            [(server.http, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"), (server.resp, "PING\r\n")];
        let told: Vec<Asked> = std::thread::scope(|scope| {
            let (config, signalled) = (&config, &signalled);
            let client = |nth: usize| {
                let (address, question) = doors[nth % 2];
                scope.spawn(move || over_tls(address, config, question, signalled))
            };
            let clients: Vec<_> = (0..2 * CLIENTS_EACH).map(client).collect();
            pause(Duration::from_millis(300));
            signalled.store(now(), Ordering::SeqCst);
            server.signal("TERM");
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert_eq!(server.wait().and_then(|status| status.code()), Some(0));
        for asked in told {
            assert_eq!(asked.dropped, 0, "{asked:?}");
            answered += asked.allowed;
        }
    }
    assert!(answered > 0);
    print_figure(format_args!(
        "drained 5 times while clients agreed on TLS: {answered} answered, 0 dropped"
    ));
}

#[test]
fn whoever_asked_before_the_end_is_answered_on_every_door() {
    let _alone = Alone::wait();
    let redis = Redis::start();
    let folder = Folder::new();
    let limit = format!("fixed-window {LIMIT}/36500d first-hit");
    let rules =
        ["http", "resp"].map(|name| format!("  - {{ name: {name}, limits: [\"{limit}\"] }}\n"));
    let file = folder.write(
        "policy.yaml",
        &format!("on_store_failure: deny\nstore_deadline: 10s\nrules:\n{}", rules.concat()),
    );
    std::fs::create_dir_all(folder.path("envoy")).unwrap();
    folder.write(
        "envoy/edge.yaml",
        &format!("domain: edge\ndescriptors: [{{ key: k, limit: \"{limit}\" }}]\n"),
    );
    let envoy = folder.path("envoy");
    let arguments = [
        "--config",
        file.to_str().unwrap(),
        "--store",
        &redis.url(),
        "--envoy-config",
        envoy.to_str().unwrap(),
    ];
    let (mut allowed, mut unsure) = ([0; 3], [0; 3]);
    for _ in 0..3 {
        let mut server = Server::start(&arguments, &[]);
        charged(&server);
        let signalled = AtomicU64::new(0);
        let doors: [fn(&Server, &AtomicU64) -> Asked; 3] = [over_http, over_resp, over_grpc];
        let told: Vec<(usize, Asked)> = std::thread::scope(|scope| {
            let (server, signalled) = (&server, &signalled);
            let client =
                |nth: usize| scope.spawn(move || (nth % 3, doors[nth % 3](server, signalled)));
            let clients: Vec<_> = (0..3 * CLIENTS_EACH).map(client).collect();
            pause(Duration::from_millis(300));
            // Noted first: whatever was sent before was sent before the signal.
            signalled.store(now(), Ordering::SeqCst);
            server.signal("TERM");
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert_eq!(server.wait().and_then(|status| status.code()), Some(0));
        for (door, asked) in told {
            assert!(asked.allowed > 0 && asked.dropped == 0, "{}: {asked:?}", DOORS[door]);
            allowed[door] += asked.allowed;
            unsure[door] += asked.unsure;
        }
    }
    let charged = charged(&Server::start(&arguments, &[]));
    for door in 0..3 {
        let (name, allowed, unsure, charged) =
            (DOORS[door], allowed[door], unsure[door], charged[door]);
        print_figure(format_args!(
            "drained 3 times under load: {name}: {allowed} allowed, {unsure} without an answer of Redis, {charged} charged, 0 dropped"
        ));
        assert!(
            (allowed..=allowed + unsure).contains(&charged),
            "{name}: {allowed} {unsure} {charged}"
        );
    }
}
