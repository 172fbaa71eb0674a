//! Inline commands, and detection of HTTP.

use super::error::ProtocolError;

/// Range of a word in its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArgRange {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl ArgRange {
    pub(crate) fn slice(self, frame: &[u8]) -> &[u8] {
        frame.get(self.start..self.end).unwrap_or_default()
    }
}

/// Splits a line into words, and unquotes them in place. The write position never passes the read
/// position, because unquoting only shortens a word.
pub(crate) struct InlineSplitter<'a> {
    bytes: &'a mut [u8],
    read: usize,
    written: usize,
}

impl<'a> InlineSplitter<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, read: 0, written: 0 }
    }

    /// The next word, unquoted. A quote may begin within a word, and ends it.
    pub(crate) fn next_word(&mut self) -> Result<Option<ArgRange>, ProtocolError> {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.read += 1;
        }
        if self.peek().is_none() {
            return Ok(None);
        }
        let start = self.written;
        while let Some(byte) = self.take() {
            match byte {
                b'"' | b'\'' => {
                    self.quoted(byte)?;
                    break;
                }
                byte if byte.is_ascii_whitespace() => break,
                byte => self.write(byte),
            }
        }
        Ok(Some(ArgRange { start, end: self.written }))
    }

    /// Consumes a quoted part up to and including the closing quote.
    fn quoted(&mut self, quote: u8) -> Result<(), ProtocolError> {
        loop {
            match self.take().ok_or(ProtocolError::UnbalancedQuotes)? {
                byte if byte == quote => break,
                b'\\' if quote == b'"' => {
                    let byte = self.escaped().ok_or(ProtocolError::UnbalancedQuotes)?;
                    self.write(byte);
                }
                b'\\' if self.peek() == Some(quote) => {
                    self.read += 1;
                    self.write(quote);
                }
                byte => self.write(byte),
            }
        }
        match self.peek() {
            Some(byte) if !byte.is_ascii_whitespace() => Err(ProtocolError::UnbalancedQuotes),
            _ => Ok(()),
        }
    }

    /// The byte of an escape sequence, after the backslash.
    fn escaped(&mut self) -> Option<u8> {
        Some(match self.take()? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 0x08,
            b'a' => 0x07,
            b'x' => match self.bytes.get(self.read..self.read + 2).and_then(hex) {
                Some(byte) => {
                    self.read += 2;
                    byte
                }
                None => b'x',
            },
            byte => byte,
        })
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.read).copied()
    }

    fn take(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.read += 1;
        Some(byte)
    }

    fn write(&mut self, byte: u8) {
        self.bytes[self.written] = byte;
        self.written += 1;
    }
}

/// Decodes two hexadecimal digits.
fn hex(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

/// Whether a partial or whole line can only be the start of an HTTP request, or its `Host` header.
pub(crate) fn begins_like_http(line: &[u8]) -> bool {
    const VERBS: [&[u8]; 8] =
        [b"POST", b"HEAD", b"PUT", b"OPTIONS", b"DELETE", b"PATCH", b"CONNECT", b"TRACE"];
    const BEGINNINGS: [&[u8]; 2] = [b"Host:", b"GET /"];
    let line = line.trim_ascii_start();
    let begins_with = |text: &[u8]| {
        line.split_at_checked(text.len()).is_some_and(|(begin, _)| begin.eq_ignore_ascii_case(text))
    };
    let ends_at = |len: usize| line.get(len).is_some_and(u8::is_ascii_whitespace);
    BEGINNINGS.into_iter().any(begins_with)
        || VERBS.into_iter().any(|verb| ends_at(verb.len()) && begins_with(verb))
}

/// Whether the last word of the line is a version of HTTP.
pub(crate) fn ends_like_http(line: &[u8]) -> bool {
    let (version, before) = match line.trim_ascii_end() {
        [before @ .., b'/', major, b'.', minor] => ([major, minor], before),
        _ => return false,
    };
    let name = before.rsplit(u8::is_ascii_whitespace).next().unwrap_or_default();
    version.into_iter().all(u8::is_ascii_digit) && name.eq_ignore_ascii_case(b"HTTP")
}
