//! What guards the doors besides tokens: how many come in, how long they may take, and our own mistakes.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/envoy.rs"]
mod envoy;
#[path = "support/in_process.rs"]
mod in_process;
#[path = "support/inside.rs"]
mod inside;
#[path = "doors/panics.rs"]
mod panics;
#[path = "support/resp.rs"]
mod resp;
#[path = "doors/room.rs"]
mod room;
#[path = "doors/strangers.rs"]
mod strangers;
#[allow(unreachable_pub, reason = "shared with other tests")]
mod support;
#[path = "doors/time.rs"]
mod time;

use std::io::{ErrorKind, Read};
use std::net::TcpStream;

use support::PATIENCE;

/// What still comes until the other side ends it.
fn rest_of(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut rest, mut buffer) = (Vec::new(), [0; 4_096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return rest,
            Ok(len) => rest.extend_from_slice(&buffer[..len]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                return rest;
            }
        }
    }
}
