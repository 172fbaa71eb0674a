//! HTTP/2 frames that no client writes, on both listeners that serve HTTP/2.

use std::net::SocketAddr;
use std::time::Duration;

use crate::http2_frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GET, HEADERS, LIMITS, MAX_FRAME, NO_WINDOW, PING,
    POST, PRIORITY, RST_STREAM, Raw, SETTINGS, WINDOW_UPDATE, field, frame, head,
};
use crate::monitor::{Alone, MeasuringClient, survive, victim};
use testkit::envoy::{EnvoyClient, descriptor, request};
use testkit::process::{millis, print_figure};
use testkit::server::{ServerProcess, pause};
use testkit::timing::compare_with_goal;
use tonic::transport::Endpoint;

fn listeners(server: &ServerProcess) -> [SocketAddr; 2] {
    [server.http, server.grpc]
}

#[test]
fn a_hundred_thousand_requests_reset_at_once_have_no_effect() {
    const PAIRS: u32 = 50_000;
    let _alone = Alone::wait();
    let mut server = victim();
    let connections =
        survive("http/2: 10^5 requests that are taken back at once", &mut server, |server| {
            let mut connections = 0;
            for listener in listeners(server) {
                let mut left = PAIRS;
                while left > 0 {
                    connections += 1;
                    let mut raw = Raw::open(listener, &[]);
                    let mut stream = 1;
                    let open = head(POST, LIMITS);
                    while left > 0 {
                        let mut pairs = Vec::new();
                        for _ in 0..100.min(left) {
                            pairs.extend(frame(HEADERS, END_HEADERS, stream, &open));
                            pairs.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
                            stream += 2;
                        }
                        left -= 100.min(left);
                        if !raw.send(&pairs) {
                            break;
                        }
                    }
                }
            }
            connections
        });
    print_figure(format_args!("attack: http/2: they needed {connections} connections"));
    assert!(connections > 2, "who does so is thrown out: {connections}");
}

#[test]
fn an_endless_header_block_closes_the_connection() {
    let _alone = Alone::wait();
    let mut server = victim();
    survive("http/2: heads that never end", &mut server, |server| {
        for listener in listeners(server) {
            let long = field(0, "x", &vec![b'a'; MAX_FRAME - 20]);
            for payload in [&long[..], &[]] {
                for _ in 0..20 {
                    let mut raw = Raw::open(listener, &[]);
                    raw.send(&frame(HEADERS, 0, 1, &head(POST, LIMITS)));
                    let more = frame(CONTINUATION, 0, 1, payload);
                    let times = if payload.is_empty() { 100_000 } else { 10_000 };
                    let sent = raw.repeat(&more, times);
                    assert!(
                        sent < times,
                        "{sent} continuations of {} bytes were taken",
                        payload.len()
                    );
                }
            }
        }
    });
}

#[test]
fn a_header_block_that_decompresses_to_a_large_one_is_refused() {
    let _alone = Alone::wait();
    let mut server = victim();
    survive("http/2: heads that unpack to 60 MiB", &mut server, |server| {
        for listener in listeners(server) {
            for _ in 0..20 {
                let mut raw = Raw::open(listener, &[]);
                // The field gets index 62, the first dynamic one, and is then referenced 15,000
                // times.
                let mut block = head(POST, LIMITS);
                block.extend(field(0x40, "x", &[b'a'; 4_000]));
                block.extend([0x80 | 62; 10_000]);
                raw.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block));
                for stream in (3..200).step_by(2) {
                    let again = [0x80 | 62; 15_000];
                    raw.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &again));
                }
            }
        }
    });
}

#[test]
fn unread_responses_do_not_accumulate() {
    let _alone = Alone::wait();
    let mut server = victim();
    survive("http/2: 20 connections of 1,000 requests without a window", &mut server, |server| {
        let open = |nth: usize| {
            let mut raw = Raw::open(listeners(server)[nth % 2], &NO_WINDOW);
            let path = ["/openapi.json", "/metrics"][nth / 2 % 2];
            for stream in (1..2_000).step_by(2) {
                raw.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &head(GET, path)));
            }
            raw
        };
        let held: Vec<Raw> = (0..20).map(open).collect();
        pause(Duration::from_millis(500));
        drop(held);
    });
}

#[test]
fn endless_bodies_do_not_accumulate() {
    let _alone = Alone::wait();
    let mut server = victim();
    survive("http/2: 4 connections of 1,000 unfinished bodies each", &mut server, |server| {
        let pour = |nth: usize| {
            let listener = listeners(server)[nth % 2];
            let (path, length) =
                if listener == server.http { ("/v1/check", 60 << 10) } else { (LIMITS, 250 << 10) };
            let mut raw = Raw::open(listener, &[]);
            // A message of the maximum length that is never completed.
            let mut body = vec![0, 0, 4, 0, 0];
            body.resize(length, 0);
            for stream in (1..2_000).step_by(2) {
                raw.send(&frame(HEADERS, END_HEADERS, stream, &head(POST, path)));
            }
            for piece in body.chunks(MAX_FRAME / 2) {
                for stream in (1..2_000).step_by(2) {
                    if !raw.send(&frame(DATA, 0, stream, piece)) {
                        return raw;
                    }
                }
            }
            raw
        };
        let held: Vec<Raw> = (0..4).map(pour).collect();
        pause(Duration::from_millis(300));
        drop(held);
    });
}

fn floods() -> [(&'static str, Vec<u8>); 6] {
    [
        ("settings", frame(SETTINGS, 0, 0, &NO_WINDOW)),
        ("pings", frame(PING, 0, 0, &[7; 8])),
        ("windows", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("priorities", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
        ("empty data", frame(DATA, 0, 1, &[])),
        ("frames of no known kind", frame(0xfe, 0, 0, &[0; 100])),
    ]
}

/// M21 of the reliability goals: eight connections of each kind, which read what they are sent.
#[test]
fn control_frame_floods_are_closed_within_a_second() {
    const CONNECTIONS: usize = 8;
    let _alone = Alone::wait();
    let server = victim();
    let mut client = MeasuringClient::of(&server);
    for (name, flood) in floods() {
        for (kind, listener) in [("http", server.http), ("grpc", server.grpc)] {
            let metric = format!(
                "tidegate_connections_refused_total{{listener=\"{kind}\",reason=\"control_frames\"}}"
            );
            let before = server.metric(&metric).unwrap();
            let flood = &flood.repeat(100);
            let (took, median) = std::thread::scope(|scope| {
                let attack = |_| {
                    scope.spawn(move || {
                        let mut raw = Raw::open(listener, &[]);
                        raw.send(&frame(HEADERS, END_HEADERS, 1, &head(POST, LIMITS)));
                        let (took, closed) = millis(|| {
                            while raw.send(flood) && !raw.was_closed() {}
                            raw.is_closed()
                        });
                        assert!(closed, "{kind}: {name}");
                        took
                    })
                };
                let attacks: Vec<_> = (0..CONNECTIONS).map(attack).collect();
                let median = client.median_http();
                let took = attacks.into_iter().map(|attack| attack.join().unwrap());
                (took.max().unwrap(), median)
            });
            print_figure(format_args!(
                "attack: http/2 {kind}: {name} on {CONNECTIONS} connections closed after {took} ms, \
                 p50 of others meanwhile {median} us"
            ));
            // After its response, data of the request is a protocol error too.
            let expected = if name == "empty data" { 0 } else { CONNECTIONS };
            let counted = server.metric(&metric).unwrap() - before;
            assert!(counted >= expected as f64, "{kind}: {name}: {counted} for this reason");
            compare_with_goal("flood closed", Duration::from_millis(took), Duration::from_secs(1));
            let goal = Duration::from_micros(1_200);
            compare_with_goal("p50 in a flood", Duration::from_micros(median), goal);
        }
    }
}

#[test]
fn a_keepalive_every_ten_seconds_and_a_large_upload_stay_connected() {
    let _alone = Alone::wait();
    let server = victim();
    let metrics = server.metric(REFUSED).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // A hundred times as often as every ten seconds.
        let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
        let endpoint = endpoint.http2_keep_alive_interval(Duration::from_millis(100));
        let endpoint = endpoint.keep_alive_while_idle(true);
        let client = EnvoyClient::on(endpoint.connect().await.unwrap());
        let value = "v".repeat(200 << 10);
        for _ in 0..50 {
            let upload = request("d", &[descriptor(&[("key", &value)])]);
            client.should_rate_limit(&upload).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        client.should_rate_limit(&request("d", &[descriptor(&[("k", "v")])])).await.unwrap();
    });
    assert_eq!(server.metric(REFUSED), Some(metrics), "no connection was closed");
}

const REFUSED: &str =
    r#"tidegate_connections_refused_total{listener="grpc",reason="control_frames"}"#;

#[test]
fn empty_frames_cost_nothing() {
    const TIMES: usize = 1_000;
    let _alone = Alone::wait();
    let mut server = victim();
    for (name, flood) in floods() {
        let name = format!("http/2: 10^5 {name}, never read");
        survive(&name, &mut server, |server| {
            for listener in listeners(server) {
                let mut raw = Raw::open(listener, &[]);
                raw.send(&frame(HEADERS, END_HEADERS, 1, &head(POST, LIMITS)));
                raw.repeat(&flood.repeat(100), TIMES / 2);
            }
        });
    }
}

#[test]
fn a_protocol_violation_closes_the_connection() {
    let _alone = Alone::wait();
    let mut server = victim();
    let request = frame(HEADERS, END_HEADERS, 1, &head(POST, LIMITS));
    let broken: [(&str, Vec<u8>); 9] = [
        (
            "a window beyond all bounds",
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]).repeat(2),
        ),
        ("a window of nothing", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("a setting that is too large", frame(SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff])),
        ("half a setting", frame(SETTINGS, 0, 0, &[0; 5])),
        ("a ping that is too long", frame(PING, 0, 0, &[0; 9])),
        ("an even stream", frame(HEADERS, END_HEADERS, 2, &head(POST, LIMITS))),
        ("data without a stream", frame(DATA, 0, 0, b"x")),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, &[])),
        (
            "a head that is no head",
            [request, frame(HEADERS, END_HEADERS, 3, &[0xff; 100])].concat(),
        ),
    ];
    survive("http/2: broken frames", &mut server, |server| {
        for listener in listeners(server) {
            for (name, frames) in &broken {
                let mut raw = Raw::open(listener, &[]);
                raw.send(frames);
                assert!(raw.is_closed(), "{name}");
            }
            // Only the length of a frame that is too long.
            let mut raw = Raw::open(listener, &[]);
            raw.send(&[0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1]);
            assert!(raw.is_closed(), "a frame of 16 MiB");
        }
    });
}
