//! Incremental parser of requests.

use std::mem;

use smallvec::SmallVec;

use super::error::ProtocolError;
use super::header::{array_header, bulk_header};
use super::inline::{ArgRange, InlineSplitter, begins_like_http, ends_like_http};

/// Size caps of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caps {
    /// Bytes of a bulk string, or of a word of a line.
    pub bulk: usize,
    /// Elements of an array, or words of a line, including the command name.
    pub words: usize,
    /// Bytes of a whole array, as sent.
    pub frame: usize,
    /// Bytes of a line, including its end.
    pub line: usize,
}

impl Caps {
    /// For an authenticated client.
    pub const AUTHENTICATED: Self =
        Self { bulk: 64 * 1_024, words: 64, frame: 128 * 1_024, line: 1_024 };
    /// For a client before authentication: enough for `HELLO 3 AUTH user password SETNAME name`.
    pub const UNAUTHENTICATED: Self = Self { bulk: 1_024, words: 8, frame: 4_096, line: 1_024 };

    /// Bytes of the longest request. A partial request is shorter, so that a buffer of this size
    /// always has room for more.
    pub fn longest(&self) -> usize {
        self.frame.max(self.line)
    }
}

/// A request: command name and arguments. It borrows from the buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command<'a> {
    /// As sent, in any case. May be empty.
    pub name: &'a [u8],
    /// The words after the name.
    pub arguments: SmallVec<[&'a [u8]; 8]>,
}

impl Command<'_> {
    /// Whether the command is `name`, in any case.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// Parses the requests in the bytes of one connection.
///
/// ```
/// use tidegate_server::internal::transport::resp::frame::{Caps, Parser};
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
/// # Ok::<(), tidegate_server::internal::transport::resp::frame::ProtocolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Parser {
    caps: Caps,
    error: Option<ProtocolError>,
    /// The elements or words parsed so far, as ranges of the frame.
    words: SmallVec<[ArgRange; 8]>,
    /// Elements of the array that are missing. Zero only between frames.
    missing: usize,
    /// Start of the next element. Zero only while the length of the array is unknown.
    at: usize,
    /// Length of the part of a line that contains no newline.
    searched: usize,
}

impl Parser {
    /// A parser at the start of a connection.
    pub fn new(caps: Caps) -> Self {
        let words = SmallVec::new();
        Self { caps, error: None, words, missing: 0, at: 0, searched: 0 }
    }

    /// Sets the caps of the next request. Call it between two requests, for example after
    /// authentication.
    pub fn set_caps(&mut self, caps: Caps) {
        self.caps = caps;
    }

    /// Takes the next request off the front of `buffer`; `None` if it is incomplete.
    ///
    /// Then read more, and call again with a buffer that begins where `buffer` now begins. Empty
    /// lines and empty arrays are skipped. Lines are unquoted in place, which is why the buffer is
    /// borrowed mutably.
    ///
    /// # Errors
    ///
    /// The rest of the stream cannot be parsed: send [`ProtocolError::reply`] if there is one, and
    /// close the connection. Every later call returns the same error.
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

    /// The words in `frame`. Resets the parser for the next one.
    fn command<'a>(&mut self, frame: &'a [u8]) -> Option<Command<'a>> {
        let mut words = self.words.iter().map(|word| word.slice(frame));
        let command = words.next().map(|name| Command { name, arguments: words.collect() });
        self.words.clear();
        (self.missing, self.at, self.searched) = (0, 0, 0);
        command
    }

    /// The length of the array at the front, once it is complete.
    fn array(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        // Bytes beyond the cap are ignored, so that the result does not depend on how many of them
        // have arrived.
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
            let word =
                ArgRange { start: header.end, end: header.end.saturating_add(header.number) };
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

    /// The length of the line at the front, once it is complete, with its words unquoted in place.
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
        let mut line = InlineSplitter::new(line);
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
