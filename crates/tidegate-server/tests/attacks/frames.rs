//! Frames of HTTP/2, written and read by hand.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::witness::connect;

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

/// `SETTINGS_INITIAL_WINDOW_SIZE` of zero: no answer may be sent.
pub(crate) const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];
/// The longest frame that a server takes unless it says otherwise.
pub(crate) const MAX_FRAME: usize = 16_384;

/// One connection.
pub(crate) struct Raw(TcpStream);

impl Raw {
    pub(crate) fn open(door: SocketAddr, settings: &[u8]) -> Self {
        let mut raw = Self(connect(door));
        let _ = raw.0.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat());
        raw
    }

    /// Sends it. False if the door has had enough, or does not take any more.
    pub(crate) fn send(&mut self, frames: &[u8]) -> bool {
        self.0.write_all(frames).is_ok()
    }

    /// Sends the same again and again, and tells how often it could.
    pub(crate) fn repeat(&mut self, frames: &[u8], times: usize) -> usize {
        (0..times).take_while(|_| self.send(frames)).count()
    }

    /// Reads frames until one is the head of an answer to stream 1. False if none comes.
    pub(crate) fn has_answer(&mut self) -> bool {
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

    /// Until the other side has closed. False if it never does.
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

/// The head of a request: indexed fields, and the path and the host as they are.
pub(crate) fn head(method: &[u8], path: &str) -> Vec<u8> {
    let mut block = method.to_vec();
    block.push(0x86);
    for (name, value) in [(4, path), (1, "attack")] {
        block.push(name);
        block.extend(integer(7, 0, value.len()));
        block.extend(value.as_bytes());
    }
    block
}

pub(crate) const GET: &[u8] = &[0x82];
pub(crate) const POST: &[u8] = &[0x83];

/// An integer of HPACK, in so many bits of the first byte.
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

/// A field of a name and a value of our own; with `first` 0x40 the other side is to remember it.
pub(crate) fn field(first: u8, name: &str, value: &[u8]) -> Vec<u8> {
    let mut block = vec![first];
    for text in [name.as_bytes(), value] {
        block.extend(integer(7, 0, text.len()));
        block.extend(text);
    }
    block
}

/// Is somebody answered who announces a message of gRPC of this length, and sends none of it?
pub(crate) fn answers_the_beginning_of_a_message(door: SocketAddr, length: u32) -> bool {
    let mut raw = Raw::open(door, &[]);
    let mut head = head(POST, LIMITS);
    head.extend(field(0, "content-type", b"application/grpc"));
    head.extend(field(0, "te", b"trailers"));
    let mut start = vec![0];
    start.extend(length.to_be_bytes());
    raw.send(&[frame(HEADERS, END_HEADERS, 1, &head), frame(DATA, 0, 1, &start)].concat());
    raw.has_answer()
}

pub(crate) const LIMITS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
