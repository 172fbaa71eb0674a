//! Line reader with bounded memory.

use std::io::{self, Read};

use memchr::memchr;

pub(crate) struct LineReader<R> {
    from: R,
    buffer: Vec<u8>,
    /// Start and end of the bytes that are not returned yet.
    start: usize,
    end: usize,
    /// Skip the rest of a line that was too long.
    skips: bool,
    at_end: bool,
    /// A read error, returned after the lines before it.
    failed: Option<io::Error>,
    number: u64,
}

/// A line without its line end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RawLine<'a> {
    Whole(&'a [u8]),
    /// Start of a line longer than [`LineReader::MAX_LEN`].
    TooLong(&'a [u8]),
}

impl<R: Read> LineReader<R> {
    /// In bytes.
    pub(crate) const MAX_LEN: usize = 64 << 10;
    const BUFFER: usize = 4 * Self::MAX_LEN;

    pub(crate) fn new(from: R) -> Self {
        let buffer = vec![0; Self::BUFFER];
        Self {
            from,
            buffer,
            start: 0,
            end: 0,
            skips: false,
            at_end: false,
            failed: None,
            number: 0,
        }
    }

    /// Number of the last returned line; the first is 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Start of the input without consuming it, at most one buffer.
    pub(crate) fn peek(&mut self) -> io::Result<&[u8]> {
        while !self.at_end && self.failed.is_none() && self.end < self.buffer.len() {
            match self.read() {
                Err(error) if self.end > self.start => self.failed = Some(error),
                read => read?,
            }
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// The next line; `None` at the end. The last line needs no line end.
    pub(crate) fn next(&mut self) -> io::Result<Option<RawLine<'_>>> {
        let mut searched = self.start;
        loop {
            if let Some(found) = memchr(b'\n', &self.buffer[searched..self.end]) {
                let (from, to) = (self.start, searched + found);
                self.start = to + 1;
                if std::mem::take(&mut self.skips) {
                    searched = self.start;
                    continue;
                }
                return Ok(Some(self.line(from, to)));
            }
            searched = self.end;
            if self.end - self.start > Self::MAX_LEN {
                let from = self.start;
                self.start = self.end;
                if !std::mem::replace(&mut self.skips, true) {
                    return Ok(Some(self.line(from, self.end)));
                }
            }
            if self.at_end {
                let (from, to) = (self.start, self.end);
                self.start = self.end;
                let is_line = from < to && !self.skips;
                return Ok(if is_line { Some(self.line(from, to)) } else { None });
            }
            if self.start > 0 && self.end == self.buffer.len() {
                self.buffer.copy_within(self.start..self.end, 0);
                searched -= self.start;
                self.end -= self.start;
                self.start = 0;
            }
            self.read()?;
        }
    }

    fn line(&mut self, from: usize, to: usize) -> RawLine<'_> {
        self.number += 1;
        let bytes = &self.buffer[from..to];
        if bytes.len() > Self::MAX_LEN {
            return RawLine::TooLong(&bytes[..Self::MAX_LEN]);
        }
        RawLine::Whole(bytes.strip_suffix(b"\r").unwrap_or(bytes))
    }

    fn read(&mut self) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        loop {
            match self.from.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.at_end = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a few bytes at a time.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(into.len());
            self.0.read(&mut into[..count])
        }
    }

    fn read(text: &[u8], step: usize) -> Vec<(Vec<u8>, bool)> {
        let mut lines = LineReader::new(Trickle(text, step));
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push(match line {
                RawLine::Whole(line) => (line.to_vec(), true),
                RawLine::TooLong(start) => (start.to_vec(), false),
            });
        }
        assert_eq!(lines.number(), all.len() as u64);
        all
    }

    #[test]
    fn lines_are_whole_however_reads_split_them() {
        let text = b"one\r\ntwo\n\nfour\nlast";
        let expected: Vec<_> =
            [&b"one"[..], b"two", b"", b"four", b"last"].map(|line| (line.to_vec(), true)).to_vec();
        for step in [1, 2, 3, 7, 100] {
            assert_eq!(read(text, step), expected, "{step} bytes at a time");
        }
        assert_eq!(read(b"", 1), []);
    }

    #[test]
    fn a_line_that_is_too_long_is_returned_once_and_the_next_is_whole() {
        let max = LineReader::<&[u8]>::MAX_LEN;
        let longest = vec![b'a'; max];
        for (long, step) in [(max + 1, 1_000), (3 * max, 100_000), (20 * max, 1 << 20)] {
            let text = [&longest[..], b"\n", &vec![b'b'; long], b"\nnext\n"].concat();
            let expected =
                [(longest.clone(), true), (vec![b'b'; max], false), (b"next".to_vec(), true)];
            assert_eq!(read(&text, step), expected, "{long}");
            assert_eq!(read(&vec![b'b'; long], step).len(), 1, "{long} without an end");
        }
    }

    /// Returns the text, then fails.
    struct Broken<'a>(&'a [u8]);

    impl Read for Broken<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                Err(io::ErrorKind::UnexpectedEof.into())
            } else {
                self.0.read(into)
            }
        }
    }

    #[test]
    fn lines_before_a_read_error_are_returned_first() {
        let mut lines = LineReader::new(Broken(b"one\ntwo\nhal"));
        assert_eq!(lines.peek().unwrap(), b"one\ntwo\nhal");
        assert_eq!(lines.next().unwrap(), Some(RawLine::Whole(b"one")));
        assert_eq!(lines.next().unwrap(), Some(RawLine::Whole(b"two")));
        assert_eq!(lines.next().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(LineReader::new(Broken(b"")).peek().is_err());
    }
}
