//! What guards the doors besides tokens: how many come in, how long they may take, and our own mistakes.

mod grpc;
mod panics;
mod room;
mod strangers;
mod time;

use std::io::{ErrorKind, Read};
use std::net::TcpStream;

use crate::support::PATIENCE;

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
