//! A client of the Redis protocol, as plain as can be, and replies that read like a table.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::support::PATIENCE;

/// One connection.
pub(crate) struct Client(BufReader<TcpStream>);

/// A reply as it came, in either protocol.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
    /// RESP3 alone has maps.
    Map(Vec<(Reply, Reply)>),
    /// `$-1`, the null of RESP2.
    Nil,
    /// `_`, the null of RESP3.
    Null,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).expect("the door is open")
    }

    /// The same at a door that may be shut.
    pub(crate) fn try_connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// The reply to a command without spaces in its words.
    pub(crate) fn ask(&mut self, line: &str) -> Reply {
        self.ask_words(&line.split(' ').collect::<Vec<_>>())
    }

    pub(crate) fn ask_words(&mut self, words: &[&str]) -> Reply {
        self.write(&command(words));
        self.receive()
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the door takes bytes");
    }

    pub(crate) fn receive(&mut self) -> Reply {
        self.try_receive().expect("a whole reply, or the end").expect("the door answers")
    }

    /// The next reply, or `None` if the connection has ended in good order.
    pub(crate) fn try_receive(&mut self) -> io::Result<Option<Reply>> {
        if self.0.fill_buf()?.is_empty() {
            return Ok(None);
        }
        self.read().map(Some)
    }

    /// Says nothing more, and lists what still comes.
    pub(crate) fn finish(mut self) -> io::Result<Vec<Reply>> {
        self.0.get_ref().shutdown(Shutdown::Write)?;
        let mut replies = Vec::new();
        while let Some(reply) = self.try_receive()? {
            replies.push(reply);
        }
        Ok(replies)
    }

    /// The same connection, for a thread that writes while this one reads.
    pub(crate) fn writer(&self) -> TcpStream {
        self.0.get_ref().try_clone().expect("a second handle")
    }

    fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("no reply: {line:?}"));
        let text = line.strip_suffix("\r\n").ok_or_else(bad)?;
        let (kind, text) = text.split_at_checked(1).ok_or_else(bad)?;
        let number = || text.parse::<i64>().map_err(|_| bad());
        let count = || text.parse::<usize>().map_err(|_| bad());
        Ok(match kind {
            "+" => Reply::Simple(text.into()),
            "-" => Reply::Error(text.into()),
            ":" => Reply::Integer(number()?),
            "_" if text.is_empty() => Reply::Null,
            "$" if text == "-1" => Reply::Nil,
            "$" => {
                let mut bytes = vec![0; count()? + 2];
                self.0.read_exact(&mut bytes)?;
                if bytes.split_off(bytes.len() - 2) != b"\r\n" {
                    return Err(bad());
                }
                Reply::Bulk(bytes)
            }
            "*" => Reply::Array((0..count()?).map(|_| self.read()).collect::<Result<_, _>>()?),
            "%" => {
                let mut pair = || Ok((self.read()?, self.read()?));
                Reply::Map((0..count()?).map(|_| pair()).collect::<io::Result<_>>()?)
            }
            _ => return Err(bad()),
        })
    }
}

/// The bytes of a command.
pub(crate) fn command(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Reply {
    pub(crate) fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            other => panic!("an array was expected, not {other}"),
        }
    }

    pub(crate) fn integer(&self) -> i64 {
        match self {
            Self::Integer(integer) => *integer,
            other => panic!("an integer was expected, not {other}"),
        }
    }

    /// The text of a bulk string.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Bulk(bytes) => String::from_utf8(bytes.clone()).expect("text"),
            other => panic!("a bulk string was expected, not {other}"),
        }
    }

    /// Is it written like this? `~9000` stands for 9000 or up to [`SLACK`] less: time goes on.
    pub(crate) fn is(&self, written: &str) -> bool {
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

/// Milliseconds that a test may fall behind.
const SLACK: i64 = 20_000;

fn is_about(shown: &str, written: &str) -> bool {
    let Some(about) = written.strip_prefix('~') else { return false };
    match (shown.parse::<i64>(), about.parse::<i64>()) {
        (Ok(shown), Ok(about)) => (about - SLACK..=about).contains(&shown),
        _ => false,
    }
}

/// `+OK`, `-ERR no`, `42`, `text`, `nil`, `null`, `[1, [2], text]`, `{a: 1, b: 2}`.
impl fmt::Display for Reply {
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

/// xorshift64*: every run is the same.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From 0 to one less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 32) % end
    }

    /// Any byte, and those that mean something more often.
    pub(crate) fn byte(&mut self) -> u8 {
        if self.below(2) == 0 { self.pick(b"*$+-:\r\n0123456789 \"'\\") } else { self.next() as u8 }
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}
