//! A log line by line, in bounded memory.

use std::io::{self, Read};

use memchr::memchr;

/// Splits what it reads into lines.
pub(super) struct Lines<R> {
    from: R,
    buffer: Vec<u8>,
    /// What has not been given out yet.
    start: usize,
    end: usize,
    /// The end of a line that was too long is still to come.
    skips: bool,
    at_end: bool,
    /// Why reading has failed, to be told when what came before it has been given out.
    failed: Option<io::Error>,
    number: u64,
}

/// A line without its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    /// The beginning of one that is longer than [`Lines::MAX_LEN`].
    TooLong(&'a [u8]),
}

impl<R: Read> Lines<R> {
    /// The longest line in bytes.
    pub(super) const MAX_LEN: usize = 64 << 10;
    const BUFFER: usize = 4 * Self::MAX_LEN;

    pub(super) fn new(from: R) -> Self {
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

    /// The number of the line that was given out last; the first is 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The beginning of what is to come: as much as there is, up to a buffer.
    pub(super) fn peek(&mut self) -> io::Result<&[u8]> {
        while !self.at_end && self.failed.is_none() && self.end < self.buffer.len() {
            match self.read() {
                Err(error) if self.end > self.start => self.failed = Some(error),
                read => read?,
            }
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// The next line; `None` at the end. The last one need not end.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
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

    fn line(&mut self, from: usize, to: usize) -> Line<'_> {
        self.number += 1;
        let bytes = &self.buffer[from..to];
        if bytes.len() > Self::MAX_LEN {
            return Line::TooLong(&bytes[..Self::MAX_LEN]);
        }
        Line::Whole(bytes.strip_suffix(b"\r").unwrap_or(bytes))
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
        let mut lines = Lines::new(Trickle(text, step));
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push(match line {
                Line::Whole(line) => (line.to_vec(), true),
                Line::TooLong(start) => (start.to_vec(), false),
            });
        }
        assert_eq!(lines.number(), all.len() as u64);
        all
    }

    #[test]
    fn lines_come_whole_whatever_the_reads_bring() {
        let text = b"one\r\ntwo\n\nfour\nlast";
        let expected: Vec<_> =
            [&b"one"[..], b"two", b"", b"four", b"last"].map(|line| (line.to_vec(), true)).to_vec();
        for step in [1, 2, 3, 7, 100] {
            assert_eq!(read(text, step), expected, "{step} bytes at a time");
        }
        assert_eq!(read(b"", 1), []);
    }

    #[test]
    fn a_line_that_is_too_long_is_told_once_and_the_next_is_whole() {
        let max = Lines::<&[u8]>::MAX_LEN;
        let longest = vec![b'a'; max];
        for (long, step) in [(max + 1, 1_000), (3 * max, 100_000), (20 * max, 1 << 20)] {
            let text = [&longest[..], b"\n", &vec![b'b'; long], b"\nnext\n"].concat();
            let expected =
                [(longest.clone(), true), (vec![b'b'; max], false), (b"next".to_vec(), true)];
            assert_eq!(read(&text, step), expected, "{long}");
            assert_eq!(read(&vec![b'b'; long], step).len(), 1, "{long} without an end");
        }
    }

    /// Reads a text, and then fails.
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
    fn what_came_before_a_failure_is_given_out_first() {
        let mut lines = Lines::new(Broken(b"one\ntwo\nhal"));
        assert_eq!(lines.peek().unwrap(), b"one\ntwo\nhal");
        assert_eq!(lines.next().unwrap(), Some(Line::Whole(b"one")));
        assert_eq!(lines.next().unwrap(), Some(Line::Whole(b"two")));
        assert_eq!(lines.next().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(Lines::new(Broken(b"")).peek().is_err());
    }
}
