//! Argument reader.

use std::time::Duration;

use super::errors::{ErrorText, NOT_AN_INTEGER, SYNTAX};

/// The arguments that were not read yet.
pub(crate) struct CommandArgs<'a>(&'a [&'a [u8]]);

/// Largest integer: up to it, all integers are exact as a double.
const MAX_INTEGER: u64 = 1 << 53;
/// Digits of `MAX_INTEGER`.
const MAX_DIGITS: usize = 16;

impl<'a> CommandArgs<'a> {
    pub(crate) fn new(args: &'a [&'a [u8]]) -> Self {
        Self(args)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn word(&mut self) -> Result<&'a [u8], ErrorText> {
        self.optional().ok_or(SYNTAX.into())
    }

    /// The next argument, if there is one.
    pub(crate) fn optional(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The next argument as UTF-8.
    pub(crate) fn text(&mut self) -> Result<&'a str, ErrorText> {
        std::str::from_utf8(self.word()?).map_err(|_| "ERR names must be UTF-8".into())
    }

    /// The next argument as an integer from 0 to 2^53.
    pub(crate) fn integer(&mut self) -> Result<u64, ErrorText> {
        let word = self.word()?;
        // This many digits cannot overflow.
        if !(1..=MAX_DIGITS).contains(&word.len()) {
            return Err(NOT_AN_INTEGER.into());
        }
        let mut number = 0;
        for byte in word {
            if !byte.is_ascii_digit() {
                return Err(NOT_AN_INTEGER.into());
            }
            number = number * 10 + u64::from(byte - b'0');
        }
        if number <= MAX_INTEGER { Ok(number) } else { Err(NOT_AN_INTEGER.into()) }
    }

    /// The next argument as milliseconds.
    pub(crate) fn millis(&mut self) -> Result<Duration, ErrorText> {
        self.integer().map(Duration::from_millis)
    }

    /// Takes the next argument if it is `word`, in any case.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        let is_next = self.0.first().is_some_and(|next| next.eq_ignore_ascii_case(word.as_bytes()));
        if is_next {
            self.0 = &self.0[1..];
        }
        is_next
    }

    /// Refuses further arguments.
    pub(crate) fn end(&self) -> Result<(), ErrorText> {
        if self.0.is_empty() { Ok(()) } else { Err(SYNTAX.into()) }
    }
}
