//! Requests, read from bytes.
//!
//! A request is a flat array of bulk strings, which is what clients send, or a line of words, which
//! is what people type. The parser keeps its place in an unfinished request, so that a slow one is
//! not read again from its beginning with every byte, and it refuses what is too long as soon as it
//! is announced: before it waits for it and before anybody makes room for it.
//!
//! # Layout
//!
//! - `header`: the numbers in front. `inline`: lines of words, and what HTTP looks like. `error`:
//!   why it ends.
//!
//! # HTTP
//!
//! A browser can be made to send a request with a body of somebody else's choosing to any port. So
//! a line closes the connection without an answer ([`ProtocolError::Http`]) if
//!
//! - its first word is `POST`, `HEAD`, `PUT`, `OPTIONS`, `DELETE`, `PATCH`, `CONNECT` or `TRACE`,
//!   or it begins with `Host:` or `GET /`, in capitals or not, even before the line has ended;
//! - or it ends with a version of HTTP, as in `GET key HTTP/1.1` or `PRI * HTTP/2.0`.
//!
//! `GET key` is a command like any other. So is an array whose first element is `POST`: no browser
//! begins with an array.

mod error;
mod header;
mod inline;
#[cfg(test)]
mod tests;

use std::mem;

use smallvec::SmallVec;

pub use self::error::ProtocolError;
use self::header::{array_header, bulk_header};
use self::inline::{Line, begins_like_http, ends_like_http};

/// The most that is read of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caps {
    /// Bytes of one bulk string, or of one word of a line.
    pub bulk: usize,
    /// Elements of an array, or words of a line, with the name of the command.
    pub words: usize,
    /// Bytes of an array with everything in it, as it was sent.
    pub frame: usize,
    /// Bytes of a line with its end.
    pub line: usize,
}

impl Caps {
    /// For a client that may use the server.
    pub const AUTHENTICATED: Self =
        Self { bulk: 64 * 1_024, words: 64, frame: 128 * 1_024, line: 1_024 };
    /// For a client that has yet to say who it is: enough for `HELLO 3 AUTH user password SETNAME
    /// name`.
    pub const UNAUTHENTICATED: Self = Self { bulk: 1_024, words: 8, frame: 4_096, line: 1_024 };

    /// Bytes of the longest request. An unfinished one is shorter, so a buffer of this size always
    /// has room for more of it.
    pub fn longest(&self) -> usize {
        self.frame.max(self.line)
    }
}

/// A request: the name of a command and what it is to work on. It borrows from the buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command<'a> {
    /// As it was sent, in capitals or not. It may be empty.
    pub name: &'a [u8],
    /// What follows the name.
    pub arguments: SmallVec<[&'a [u8]; 8]>,
}

impl Command<'_> {
    /// The name of the command is `name`, in capitals or not.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// Finds the requests in the bytes of one connection.
///
/// ```
/// use tidegate_server::resp::frame::{Caps, Parser};
///
/// let mut buffer = b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\nPING\r\n*1\r\n$4\r\nPI".to_vec();
/// let mut parser = Parser::new(Caps::UNAUTHENTICATED);
/// let mut rest = buffer.as_mut_slice();
/// let mut names = Vec::new();
/// while let Some(command) = parser.parse(&mut rest)? {
///     names.push(command.name);
/// }
/// assert_eq!(names, [b"ECHO", b"PING"]);
/// assert_eq!(rest, b"*1\r\n$4\r\nPI");
/// # Ok::<(), tidegate_server::resp::frame::ProtocolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Parser {
    caps: Caps,
    error: Option<ProtocolError>,
    /// The elements or words read so far, as places in the frame.
    words: SmallVec<[Word; 8]>,
    /// The elements of the array that are still to be read. None only between frames.
    missing: usize,
    /// Where the next element begins. Zero only while the length of the array is unknown.
    at: usize,
    /// How much of a line is known to hold no end.
    searched: usize,
}

impl Parser {
    /// A parser at the beginning of a connection.
    pub fn new(caps: Caps) -> Self {
        let words = SmallVec::new();
        Self { caps, error: None, words, missing: 0, at: 0, searched: 0 }
    }

    /// Reads with `caps` from the next request on. Call it between two requests, as when a client
    /// has just said who it is.
    pub fn set_caps(&mut self, caps: Caps) {
        self.caps = caps;
    }

    /// Takes the next request off the front of `buffer`, or `None` if it is unfinished.
    ///
    /// Then read more, and call again with a buffer that begins where `buffer` now begins. Empty
    /// lines and empty arrays are taken off and skipped. The quotes of a line are undone in its
    /// place, which is why the buffer is borrowed mutably.
    ///
    /// # Errors
    ///
    /// What follows cannot be understood any more: send [`ProtocolError::reply`] if there is one,
    /// and close the connection. Every later call gives the same error.
    pub fn parse<'a>(
        &mut self,
        buffer: &mut &'a mut [u8],
    ) -> Result<Option<Command<'a>>, ProtocolError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        while let Some(first) = buffer.first() {
            let len = if *first == b'*' { self.array(buffer) } else { self.line(buffer) };
            let len = match len {
                Ok(Some(len)) => len,
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.error = Some(error);
                    return Err(error);
                }
            };
            let (frame, rest) = mem::take(buffer).split_at_mut(len);
            *buffer = rest;
            if let Some(command) = self.command(frame) {
                return Ok(Some(command));
            }
        }
        Ok(None)
    }

    /// The words in `frame`, and the parser is ready for the next one.
    fn command<'a>(&mut self, frame: &'a [u8]) -> Option<Command<'a>> {
        let mut words = self.words.iter().map(|word| word.of(frame));
        let command = words.next().map(|name| Command { name, arguments: words.collect() });
        self.words.clear();
        (self.missing, self.at, self.searched) = (0, 0, 0);
        command
    }

    /// The length of the array in front, once it is there.
    fn array(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        // What lies beyond the cap is never looked at, so that the answer to a request does not
        // depend on how much of it has arrived.
        let frame = &bytes[..bytes.len().min(self.caps.frame)];
        match self.elements(frame)? {
            None if bytes.len() >= self.caps.frame => Err(ProtocolError::FrameTooLong),
            len => Ok(len),
        }
    }

    fn elements(&mut self, frame: &[u8]) -> Result<Option<usize>, ProtocolError> {
        if self.at == 0 {
            let Some(header) = array_header(frame, self.caps.words)? else { return Ok(None) };
            (self.missing, self.at) = (header.number, header.end);
        }
        while self.missing > 0 {
            let Some(header) = bulk_header(frame, self.at, self.caps.bulk)? else {
                return Ok(None);
            };
            let word = Word { start: header.end, end: header.end.saturating_add(header.number) };
            if word.end.saturating_add(2) > self.caps.frame {
                return Err(ProtocolError::FrameTooLong);
            }
            match frame.get(word.end..) {
                Some([b'\r', b'\n', ..]) => (),
                None | Some([] | [b'\r']) => return Ok(None),
                Some(_) => return Err(ProtocolError::UnendedBulk),
            }
            self.words.push(word);
            self.at = word.end + 2;
            self.missing -= 1;
        }
        Ok(Some(self.at))
    }

    /// The length of the line in front, once it is there, with its words undone and moved together.
    fn line(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, ProtocolError> {
        let line = &bytes[..bytes.len().min(self.caps.line)];
        let fresh = line.get(self.searched..).unwrap_or_default();
        let Some(newline) = fresh.iter().position(|byte| *byte == b'\n') else {
            self.searched = line.len();
            return if begins_like_http(line) {
                Err(ProtocolError::Http)
            } else if bytes.len() >= self.caps.line {
                Err(ProtocolError::LineTooLong)
            } else {
                Ok(None)
            };
        };
        let len = self.searched + newline + 1;
        let line = &mut bytes[..len];
        if begins_like_http(line) || ends_like_http(line) {
            return Err(ProtocolError::Http);
        }
        let mut line = Line::new(line);
        while let Some(word) = line.next_word()? {
            if word.end - word.start > self.caps.bulk {
                return Err(ProtocolError::BulkTooLong);
            }
            if self.words.len() >= self.caps.words {
                return Err(ProtocolError::TooManyWords);
            }
            self.words.push(word);
        }
        Ok(Some(len))
    }
}

/// The place of a word in its frame.
#[derive(Clone, Copy, Debug)]
struct Word {
    start: usize,
    end: usize,
}

impl Word {
    fn of(self, frame: &[u8]) -> &[u8] {
        frame.get(self.start..self.end).unwrap_or_default()
    }
}
