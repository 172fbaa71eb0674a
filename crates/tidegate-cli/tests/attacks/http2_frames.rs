//! HTTP/2 frames, encoded and decoded by hand.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::monitor::connect;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// `SETTINGS_INITIAL_WINDOW_SIZE` of zero: the server may send no response body.
pub(crate) const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];
/// Default maximum length of a frame.
pub(crate) const MAX_FRAME: usize = 16_384;

/// One connection.
pub(crate) struct Raw(TcpStream);

impl Raw {
    pub(crate) fn open(listener: SocketAddr, settings: &[u8]) -> Self {
        let mut raw = Self(connect(listener));
        let _ = raw.0.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat());
        raw
    }

    /// Sends frames. False if the listener has closed the connection or stopped reading.
    pub(crate) fn send(&mut self, frames: &[u8]) -> bool {
        self.0.write_all(frames).is_ok()
    }

    /// Sends the frames up to `times` times and returns how often it succeeded.
    pub(crate) fn repeat(&mut self, frames: &[u8], times: usize) -> usize {
        (0..times).take_while(|_| self.send(frames)).count()
    }

    /// Reads frames until the headers of the response to stream 1. False if none arrives.
    pub(crate) fn has_response(&mut self) -> bool {
        let mut start = [0; 9];
        while self.0.read_exact(&mut start).is_ok() {
            let [a, b, c, kind, _, stream @ ..] = start;
            let length = u32::from_be_bytes([0, a, b, c]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            if self.0.read_exact(&mut payload).is_err() {
                return false;
            }
            if kind == HEADERS && stream == [0, 0, 0, 1] {
                return true;
            }
        }
        false
    }

    /// Whether the server has closed the connection; the bytes that it has sent are dropped.
    pub(crate) fn was_closed(&mut self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let mut bytes = [0; 65_536];
        let closed = loop {
            match self.0.read(&mut bytes) {
                Ok(1..) => {}
                Ok(0) => break true,
                Err(error) => break error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        };
        self.0.set_nonblocking(false).unwrap();
        closed
    }

    /// Waits until the server closes the connection. False if it does not.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.0.read(&mut bytes) {
                Ok(1..) => {}
                Ok(0) => return true,
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Headers of a request: indexed fields, literal path and host.
pub(crate) fn head(method: &[u8], path: &str) -> Vec<u8> {
    head_to(method, path, "localhost")
}

pub(crate) fn head_to(method: &[u8], path: &str, host: &str) -> Vec<u8> {
    let mut block = method.to_vec();
    block.push(0x86);
    for (name, value) in [(4, path), (1, host)] {
        block.push(name);
        block.extend(integer(7, 0, value.len()));
        block.extend(value.as_bytes());
    }
    block
}

pub(crate) const GET: &[u8] = &[0x82];
pub(crate) const POST: &[u8] = &[0x83];

/// An HPACK integer with a prefix of this many bits.
pub(crate) fn integer(bits: u32, first: u8, value: usize) -> Vec<u8> {
    let most = (1 << bits) - 1;
    if value < most {
        return vec![first | u8::try_from(value).unwrap()];
    }
    let mut bytes = vec![first | u8::try_from(most).unwrap()];
    let mut rest = value - most;
    while rest >= 128 {
        bytes.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}

/// A literal field; `first` 0x40 adds it to the dynamic table.
pub(crate) fn field(first: u8, name: &str, value: &[u8]) -> Vec<u8> {
    let mut block = vec![first];
    for text in [name.as_bytes(), value] {
        block.extend(integer(7, 0, text.len()));
        block.extend(text);
    }
    block
}

/// Whether the listener responds to a gRPC message of this length whose bytes are never sent.
pub(crate) fn responds_to_announced_message(listener: SocketAddr, length: u32) -> bool {
    let mut raw = Raw::open(listener, &[]);
    let mut head = head(POST, LIMITS);
    head.extend(field(0, "content-type", b"application/grpc"));
    head.extend(field(0, "te", b"trailers"));
    let mut start = vec![0];
    start.extend(length.to_be_bytes());
    raw.send(&[frame(HEADERS, END_HEADERS, 1, &head), frame(DATA, 0, 1, &start)].concat());
    raw.has_response()
}

pub(crate) const LIMITS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
