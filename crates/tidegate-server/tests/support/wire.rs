//! HTTP byte by byte, for what no client would send.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::support::{PATIENCE, Response};

/// Sends these bytes and takes what comes back until the other side is done. It may be done before
/// it has taken everything.
pub fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    talk(TcpStream::connect(address).expect("the door is open"), bytes)
}

/// The same from another address of this machine.
pub fn exchange_from(from: Ipv4Addr, address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let connect = async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        socket.connect(address).await?.into_std()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let stream = runtime.expect("a runtime").block_on(connect).expect("the door is open");
    stream.set_nonblocking(false).expect("a stream that waits");
    talk(stream, bytes)
}

fn talk(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..length]);
    }
    answer
}

/// The first answer in what came back. A body that is shorter than its length says was none.
pub fn answer(bytes: &[u8]) -> Option<Response> {
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
    Some(Response { status, headers, body: String::from_utf8(body.to_vec()).ok()? })
}
