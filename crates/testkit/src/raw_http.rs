//! HTTP as raw bytes, for requests that no client sends.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::server::{ServerResponse, TEST_TIMEOUT};

/// Sends these bytes and reads until the server closes the connection. The server may close before
/// it has read everything.
pub fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    write_and_read(TcpStream::connect(address).expect("the listener accepts"), bytes)
}

/// As [`exchange`], from another address of this machine.
pub fn exchange_from(from: Ipv4Addr, address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let connect = async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        socket.connect(address).await?.into_std()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let stream = runtime.expect("a runtime").block_on(connect).expect("the listener accepts");
    stream.set_nonblocking(false).expect("a blocking stream");
    write_and_read(stream, bytes)
}

fn write_and_read(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    stream.set_write_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    let _ = stream.write_all(bytes);
    let mut response = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        response.extend_from_slice(&buffer[..length]);
    }
    response
}

/// Parses the first response. A body shorter than its `content-length` counts as empty.
pub fn parse_response(bytes: &[u8]) -> Option<ServerResponse> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_string()))
    };
    let headers: Vec<_> = lines.filter_map(field).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let body = bytes[end + 4..].get(..length).unwrap_or_default();
    Some(ServerResponse { status, headers, body: String::from_utf8(body.to_vec()).ok()? })
}
