//! SIGTERM under load on every listener: every request sent before the signal gets its response,
//! and no request is charged without one.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tidegate::{Clock, SystemClock};
use tokio::runtime::Runtime;
use tokio_rustls::rustls::ClientConfig;

use crate::monitor::Alone;
use testkit::certificates::{TestCa, TestCertificate};
use testkit::envoy::{descriptor, descriptor_with_hits, request};
use testkit::process::print_figure;
use testkit::redis::RedisServer;
use testkit::resp::{RespConnection, RespReply, command};
use testkit::server::{RawHttpConnection, ServerProcess, TempFolder, pause, wait_until};

const LISTENERS: [&str; 3] = ["http", "resp", "grpc"];
const CLIENTS_EACH: usize = 4;
/// Never reached: a denial means that Redis did not reply in time, and may have charged.
const LIMIT: u64 = 1_000_000_000;

/// Results of one client.
#[derive(Default, Debug)]
struct ClientResults {
    allowed: u64,
    unsure: u64,
    /// Sent before the signal, without a response.
    dropped: u64,
}

/// When a request was certainly sent, where that is known, and whether it was allowed.
struct RequestResult {
    sent: Option<u64>,
    allowed: Option<bool>,
}

/// Sends requests until one gets no response.
fn send_until_the_end(
    signalled: &AtomicU64,
    mut send: impl FnMut() -> RequestResult,
) -> ClientResults {
    let mut results = ClientResults::default();
    loop {
        let result = send();
        match result.allowed {
            Some(true) => results.allowed += 1,
            Some(false) => results.unsure += 1,
            None => {
                let signal = signalled.load(Ordering::SeqCst);
                let in_time = result.sent.is_some_and(|sent| signal == 0 || sent < signal);
                results.dropped += u64::from(in_time);
                return results;
            }
        }
    }
}

fn now() -> u64 {
    SystemClock.elapsed().get()
}

fn over_http(server: &ServerProcess, signalled: &AtomicU64) -> ClientResults {
    let mut http = RawHttpConnection::connect(server.http);
    let body = json!({ "rule": "http", "key": "k" }).to_string();
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    send_until_the_end(signalled, || {
        let sent = http.try_write(request.as_bytes()).ok().map(|()| now());
        RequestResult { sent, allowed: http.try_receive().map(|response| response.status == 200) }
    })
}

fn over_resp(server: &ServerProcess, signalled: &AtomicU64) -> ClientResults {
    let mut client = RespConnection::connect(server.resp);
    let (mut writer, check) = (client.writer(), command(&["TG.CHECK", "resp", "k"]));
    send_until_the_end(signalled, || {
        let sent = writer.write_all(&check).ok().map(|()| now());
        let reply = client.try_receive().ok().flatten();
        RequestResult {
            sent,
            allowed: reply.map(|reply| reply.items()[0] == RespReply::Integer(1)),
        }
    })
}

/// Only the client library knows when the bytes of a request are sent.
fn over_grpc(server: &ServerProcess, signalled: &AtomicU64) -> ClientResults {
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(testkit::envoy::EnvoyClient::connect(server.grpc));
    let check = request("edge", &[descriptor(&[("k", "v")])]);
    send_until_the_end(signalled, || {
        let response = runtime.block_on(client.should_rate_limit(&check)).ok();
        let is_within = |status: i32| {
            status == i32::from(tidegate_server::internal::transport::envoy::proto::Code::Ok)
        };
        RequestResult {
            sent: None,
            allowed: response.map(|response| is_within(response.overall_code)),
        }
    })
}

/// One TLS connection per request: the end of the handshake and the request arrive together.
fn over_tls(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    request: &str,
    signalled: &AtomicU64,
) -> ClientResults {
    send_until_the_end(signalled, || {
        let Ok(mut stream) = testkit::tls_client::connect(address, config) else {
            return RequestResult { sent: None, allowed: None };
        };
        let sent = stream.write_all(request.as_bytes()).ok().map(|()| now());
        let responded = stream.read(&mut [0; 1]).is_ok_and(|read| read > 0);
        RequestResult { sent, allowed: responded.then_some(true) }
    })
}

/// Permits charged in Redis for each listener.
fn charged(server: &ServerProcess) -> [u64; 3] {
    let mut client = RespConnection::connect(server.resp);
    let mut left = |rule: &str| {
        wait_until(|| {
            let reply = client.send(&format!("TG.PEEK {rule} k"));
            let RespReply::Array(items) = &reply else { return None };
            (items[7].text() == "redis").then(|| u64::try_from(items[2].integer()).unwrap())
        })
        .expect("redis decides")
    };
    let (http, resp) = (left("http"), left("resp"));
    let runtime = Runtime::new().unwrap();
    let grpc = runtime.block_on(testkit::envoy::EnvoyClient::connect(server.grpc));
    let probe = request("edge", &[descriptor_with_hits(&[("k", "v")], 0)]);
    let grpc =
        runtime.block_on(grpc.should_rate_limit(&probe)).unwrap().statuses[0].limit_remaining;
    [http, resp, grpc.into()].map(|left| LIMIT - left)
}

#[test]
fn a_request_sent_right_after_the_tls_handshake_gets_its_response() {
    let _alone = Alone::wait();
    let authority = TestCa::new();
    let TestCertificate { cert, key } = authority.issue("127.0.0.1");
    let config = testkit::tls_client::config(&authority, None, &[]);
    let mut responses = 0;
    for _ in 0..5 {
        let mut server = ServerProcess::start(&["--tls-cert", &cert, "--tls-key", &key], &[]);
        let signalled = AtomicU64::new(0);
        let listeners = [
            (server.http, "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"),
            (server.resp, "PING\r\n"),
        ];
        let all: Vec<ClientResults> = std::thread::scope(|scope| {
            let (config, signalled) = (&config, &signalled);
            let client = |nth: usize| {
                let (address, request) = listeners[nth % 2];
                scope.spawn(move || over_tls(address, config, request, signalled))
            };
            let clients: Vec<_> = (0..2 * CLIENTS_EACH).map(client).collect();
            pause(Duration::from_millis(300));
            signalled.store(now(), Ordering::SeqCst);
            server.signal("TERM");
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert_eq!(server.wait().and_then(|status| status.code()), Some(0));
        for results in all {
            assert_eq!(results.dropped, 0, "{results:?}");
            responses += results.allowed;
        }
    }
    assert!(responses > 0);
    print_figure(format_args!(
        "drained 5 times during TLS handshakes: {responses} responses, 0 dropped"
    ));
}

#[test]
fn every_listener_responds_to_every_request_sent_before_the_signal() {
    let _alone = Alone::wait();
    let redis = RedisServer::start();
    let folder = TempFolder::new();
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
        let mut server = ServerProcess::start(&arguments, &[]);
        charged(&server);
        let signalled = AtomicU64::new(0);
        let clients: [fn(&ServerProcess, &AtomicU64) -> ClientResults; 3] =
            [over_http, over_resp, over_grpc];
        let all: Vec<(usize, ClientResults)> = std::thread::scope(|scope| {
            let (server, signalled) = (&server, &signalled);
            let client =
                |nth: usize| scope.spawn(move || (nth % 3, clients[nth % 3](server, signalled)));
            let clients: Vec<_> = (0..3 * CLIENTS_EACH).map(client).collect();
            pause(Duration::from_millis(300));
            // Stored first: a request sent before this instant was sent before the signal.
            signalled.store(now(), Ordering::SeqCst);
            server.signal("TERM");
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert_eq!(server.wait().and_then(|status| status.code()), Some(0));
        for (listener, results) in all {
            let name = LISTENERS[listener];
            assert!(results.allowed > 0 && results.dropped == 0, "{name}: {results:?}");
            allowed[listener] += results.allowed;
            unsure[listener] += results.unsure;
        }
    }
    let charged = charged(&ServerProcess::start(&arguments, &[]));
    for listener in 0..3 {
        let (name, allowed, unsure, charged) =
            (LISTENERS[listener], allowed[listener], unsure[listener], charged[listener]);
        print_figure(format_args!(
            "drained 3 times under load: {name}: {allowed} allowed, {unsure} without a reply of Redis, {charged} charged, 0 dropped"
        ));
        assert!(
            (allowed..=allowed + unsure).contains(&charged),
            "{name}: {allowed} {unsure} {charged}"
        );
    }
}
