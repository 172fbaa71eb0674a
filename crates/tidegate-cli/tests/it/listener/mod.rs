//! Guards of the listeners besides tokens: connection limits, timeouts and panics.

mod connection_limit;
mod grpc;
mod health;
mod panics;
mod timeouts;
mod unauthenticated;

use std::io::{ErrorKind, Read};
use std::net::TcpStream;

use testkit::server::TEST_TIMEOUT;

/// Reads until the server closes the connection.
fn rest_of(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
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
