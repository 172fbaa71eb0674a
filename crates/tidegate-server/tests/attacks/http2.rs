//! HTTP/2 in frames that no client writes, on both doors that speak it.

use std::net::SocketAddr;
use std::time::Duration;

use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GET, HEADERS, LIMITS, MAX_FRAME, NO_WINDOW, PING,
    POST, PRIORITY, RST_STREAM, Raw, SETTINGS, WINDOW_UPDATE, field, frame, head,
};
use crate::life::print_figure;
use crate::support::{Server, pause};
use crate::witness::{Alone, survive, victim};

fn doors(server: &Server) -> [SocketAddr; 2] {
    [server.http, server.grpc]
}

#[test]
fn a_hundred_thousand_requests_that_are_taken_back_at_once_get_nowhere() {
    const PAIRS: u32 = 50_000;
    let _alone = Alone::wait();
    let mut server = victim();
    let connections =
        survive("http/2: 10^5 requests that are taken back at once", &mut server, |server| {
            let mut connections = 0;
            for door in doors(server) {
                let mut left = PAIRS;
                while left > 0 {
                    connections += 1;
                    let mut raw = Raw::open(door, &[]);
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
fn a_head_without_an_end_is_cut_off() {
    let _alone = Alone::wait();
    let mut server = victim();
    survive("http/2: heads that never end", &mut server, |server| {
        for door in doors(server) {
            let long = field(0, "x", &vec![b'a'; MAX_FRAME - 20]);
            for payload in [&long[..], &[]] {
                for _ in 0..20 {
                    let mut raw = Raw::open(door, &[]);
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
fn a_small_head_that_unpacks_to_a_large_one_is_refused() {
    let _alone = Alone::wait();
    let mut server = victim();
    survive("http/2: heads that unpack to 60 MiB", &mut server, |server| {
        for door in doors(server) {
            for _ in 0..20 {
                let mut raw = Raw::open(door, &[]);
                // It is remembered as 62, the first of those, and then named for 15,000 times.
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
fn answers_that_nobody_takes_are_not_piled_up() {
    let _alone = Alone::wait();
    let mut server = victim();
    survive("http/2: 20 connections of 1,000 requests without a window", &mut server, |server| {
        let ask = |nth: usize| {
            let mut raw = Raw::open(doors(server)[nth % 2], &NO_WINDOW);
            let path = ["/openapi.json", "/metrics"][nth / 2 % 2];
            for stream in (1..2_000).step_by(2) {
                raw.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &head(GET, path)));
            }
            raw
        };
        let held: Vec<Raw> = (0..20).map(ask).collect();
        pause(Duration::from_millis(500));
        drop(held);
    });
}

#[test]
fn bodies_that_never_end_are_not_piled_up() {
    let _alone = Alone::wait();
    let mut server = victim();
    survive("http/2: 4 connections of 1,000 unfinished bodies each", &mut server, |server| {
        let pour = |nth: usize| {
            let door = doors(server)[nth % 2];
            let (path, length) =
                if door == server.http { ("/v1/check", 60 << 10) } else { (LIMITS, 250 << 10) };
            let mut raw = Raw::open(door, &[]);
            // As long as a message may be, and not all of it comes.
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

#[test]
fn frames_that_ask_for_nothing_cost_nothing() {
    const TIMES: usize = 1_000;
    let _alone = Alone::wait();
    let mut server = victim();
    let empty = frame(DATA, 0, 1, &[]);
    let floods: [(&str, Vec<u8>); 6] = [
        ("settings", frame(SETTINGS, 0, 0, &NO_WINDOW)),
        ("pings", frame(PING, 0, 0, &[7; 8])),
        ("windows", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("priorities", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
        ("empty data", empty),
        ("frames of no known kind", frame(0xfe, 0, 0, &[0; 100])),
    ];
    for (name, flood) in floods {
        let name = format!("http/2: 10^5 {name}, and nobody reads");
        survive(&name, &mut server, |server| {
            for door in doors(server) {
                let mut raw = Raw::open(door, &[]);
                raw.send(&frame(HEADERS, END_HEADERS, 1, &head(POST, LIMITS)));
                raw.repeat(&flood.repeat(100), TIMES / 2);
            }
        });
    }
}

#[test]
fn what_breaks_the_protocol_ends_the_connection() {
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
        ("data for nobody", frame(DATA, 0, 0, b"x")),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, &[])),
        (
            "a head that is no head",
            [request, frame(HEADERS, END_HEADERS, 3, &[0xff; 100])].concat(),
        ),
    ];
    survive("http/2: broken frames", &mut server, |server| {
        for door in doors(server) {
            for (name, frames) in &broken {
                let mut raw = Raw::open(door, &[]);
                raw.send(frames);
                assert!(raw.is_closed(), "{name}");
            }
            // A frame that is longer than it may be, of which only the length comes.
            let mut raw = Raw::open(door, &[]);
            raw.send(&[0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1]);
            assert!(raw.is_closed(), "a frame of 16 MiB");
        }
    });
}
