//! The arguments of a command, one after the other.

use std::time::Duration;

use super::{Error, NOT_AN_INTEGER, SYNTAX};

/// Arguments that are still to be read.
pub(super) struct Words<'a>(&'a [&'a [u8]]);

/// The largest number that is taken: all of them are exact everywhere.
const MAX_INTEGER: u64 = 1 << 53;
/// As many as it has.
const MAX_DIGITS: usize = 16;

impl<'a> Words<'a> {
    pub(super) fn new(words: &'a [&'a [u8]]) -> Self {
        Self(words)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The next word.
    pub(super) fn word(&mut self) -> Result<&'a [u8], Error> {
        self.optional().ok_or(SYNTAX)
    }

    /// The next word, if there is one.
    pub(super) fn optional(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The next word as text. What is no text is nobody's name.
    pub(super) fn text(&mut self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.word()?).map_err(|_| "ERR a name must be UTF-8")
    }

    /// The next word as a whole number.
    pub(super) fn integer(&mut self) -> Result<u64, Error> {
        let word = self.word()?;
        // So few digits cannot overflow.
        if !(1..=MAX_DIGITS).contains(&word.len()) {
            return Err(NOT_AN_INTEGER);
        }
        let mut number = 0;
        for byte in word {
            if !byte.is_ascii_digit() {
                return Err(NOT_AN_INTEGER);
            }
            number = number * 10 + u64::from(byte - b'0');
        }
        if number <= MAX_INTEGER { Ok(number) } else { Err(NOT_AN_INTEGER) }
    }

    /// The next word as milliseconds.
    pub(super) fn millis(&mut self) -> Result<Duration, Error> {
        self.integer().map(Duration::from_millis)
    }

    /// Takes the next word if it is this one, in any case.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let is_next = self.0.first().is_some_and(|next| next.eq_ignore_ascii_case(word.as_bytes()));
        if is_next {
            self.0 = &self.0[1..];
        }
        is_next
    }

    /// Refuses words that nobody has read.
    pub(super) fn end(&self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(SYNTAX) }
    }
}
