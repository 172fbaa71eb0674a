//! A minimal RESP client, and replies in a readable text form.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::server::TEST_TIMEOUT;

pub struct RespConnection(BufReader<TcpStream>);

/// A reply in RESP2 or RESP3.
#[derive(Clone, PartialEq, Debug)]
pub enum RespReply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Array(Vec<RespReply>),
    /// RESP3 only.
    Map(Vec<(RespReply, RespReply)>),
    /// `$-1`, the null of RESP2.
    Nil,
    /// `_`, the null of RESP3.
    Null,
}

impl RespConnection {
    pub fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).expect("the listener accepts")
    }

    /// As [`RespConnection::connect`], for a listener that may be closed.
    pub fn try_connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        stream.set_write_timeout(Some(TEST_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a command whose arguments contain no spaces.
    pub fn send(&mut self, line: &str) -> RespReply {
        self.send_args(&line.split(' ').collect::<Vec<_>>())
    }

    pub fn send_args(&mut self, words: &[&str]) -> RespReply {
        self.write(&command(words));
        self.receive()
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the listener reads");
    }

    pub fn receive(&mut self) -> RespReply {
        self.try_receive()
            .expect("a whole reply, or the end of the connection")
            .expect("the listener replies")
    }

    /// The next reply; `None` at the end of the connection.
    pub fn try_receive(&mut self) -> io::Result<Option<RespReply>> {
        if self.0.fill_buf()?.is_empty() {
            return Ok(None);
        }
        self.read().map(Some)
    }

    /// Closes the write half and returns the remaining replies.
    pub fn finish(mut self) -> io::Result<Vec<RespReply>> {
        self.0.get_ref().shutdown(Shutdown::Write)?;
        let mut replies = Vec::new();
        while let Some(reply) = self.try_receive()? {
            replies.push(reply);
        }
        Ok(replies)
    }

    /// A second handle, for a thread that writes while this one reads.
    pub fn writer(&self) -> TcpStream {
        self.0.get_ref().try_clone().expect("a second handle")
    }

    fn read(&mut self) -> io::Result<RespReply> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("no reply: {line:?}"));
        let text = line.strip_suffix("\r\n").ok_or_else(bad)?;
        let (kind, text) = text.split_at_checked(1).ok_or_else(bad)?;
        let number = || text.parse::<i64>().map_err(|_| bad());
        let count = || text.parse::<usize>().map_err(|_| bad());
        Ok(match kind {
            "+" => RespReply::Simple(text.into()),
            "-" => RespReply::Error(text.into()),
            ":" => RespReply::Integer(number()?),
            "_" if text.is_empty() => RespReply::Null,
            "$" if text == "-1" => RespReply::Nil,
            "$" => {
                let mut bytes = vec![0; count()? + 2];
                self.0.read_exact(&mut bytes)?;
                if bytes.split_off(bytes.len() - 2) != b"\r\n" {
                    return Err(bad());
                }
                RespReply::Bulk(bytes)
            }
            "*" => RespReply::Array((0..count()?).map(|_| self.read()).collect::<Result<_, _>>()?),
            "%" => {
                let mut pair = || Ok((self.read()?, self.read()?));
                RespReply::Map((0..count()?).map(|_| pair()).collect::<io::Result<_>>()?)
            }
            _ => return Err(bad()),
        })
    }
}

/// The bytes of a command.
pub fn command(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl RespReply {
    pub fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            other => panic!("an array was expected, not {other}"),
        }
    }

    pub fn integer(&self) -> i64 {
        match self {
            Self::Integer(integer) => *integer,
            other => panic!("an integer was expected, not {other}"),
        }
    }

    /// The text of a bulk string.
    pub fn text(&self) -> String {
        match self {
            Self::Bulk(bytes) => String::from_utf8(bytes.clone()).expect("text"),
            other => panic!("a bulk string was expected, not {other}"),
        }
    }

    /// Compares with the text form. `~9000` matches 9000 and up to `SLACK` less, for time that
    /// passes.
    pub fn is(&self, written: &str) -> bool {
        let shown = self.to_string();
        let (mut left, mut right) = (shown.split(", "), written.split(", "));
        loop {
            match (left.next(), right.next()) {
                (None, None) => return true,
                (Some(left), Some(right)) if left == right || is_about(left, right) => {}
                _ => return false,
            }
        }
    }
}

/// Milliseconds that a test may be late.
const SLACK: i64 = 20_000;

fn is_about(shown: &str, written: &str) -> bool {
    let Some(about) = written.strip_prefix('~') else { return false };
    match (shown.parse::<i64>(), about.parse::<i64>()) {
        (Ok(shown), Ok(about)) => (about - SLACK..=about).contains(&shown),
        _ => false,
    }
}

/// `+OK`, `-ERR no`, `42`, `text`, `nil`, `null`, `[1, [2], text]`, `{a: 1, b: 2}`.
impl fmt::Display for RespReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Integer(integer) => integer.fmt(f),
            Self::Bulk(bytes) => bytes.escape_ascii().fmt(f),
            Self::Nil => f.write_str("nil"),
            Self::Null => f.write_str("null"),
            Self::Array(items) => {
                let items: Vec<String> = items.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
            Self::Map(pairs) => {
                let pairs: Vec<String> =
                    pairs.iter().map(|(key, value)| format!("{key}: {value}")).collect();
                write!(f, "{{{}}}", pairs.join(", "))
            }
        }
    }
}

/// xorshift64*: deterministic.
pub struct FuzzRng(u64);

impl FuzzRng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from 0 to `end - 1`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next_u64() >> 32) % end
    }

    /// A random byte; every second one is a byte with a meaning in RESP.
    pub fn byte(&mut self) -> u8 {
        if self.below(2) == 0 {
            self.pick(b"*$+-:\r\n0123456789 \"'\\")
        } else {
            self.next_u64() as u8
        }
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}
