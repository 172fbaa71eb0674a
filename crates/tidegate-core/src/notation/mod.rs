//! The limit notation: a limit as one string. Imports the rest of core.
//!
//! - `parse` reads text into a builder, `print` writes the canonical text, `unit` has the units of
//!   time.
//! - `error` is the error type. `syntax_error` has the messages for text that does not parse,
//!   `invalid` those for limits that parse and are invalid.
//! - `lenient` reads other spellings, for suggestions.

use alloc::string::String;
use core::ops::Range;
use core::str::FromStr;

use crate::{Limit, Span};

pub use error::{ParseLimitError, Quoted, underline};

mod error;
mod invalid;
mod lenient;
mod parse;
mod print;
#[cfg(test)]
mod random_tests;
mod syntax_error;
#[cfg(test)]
mod tests;
mod unit;

/// Reads the limit notation, the reverse of its `Display`.
///
/// ```
/// use tidegate_core::Limit;
/// let limit: Limit = "token-bucket 60/60s burst 20".parse()?;
/// assert_eq!(limit.to_string(), "60/m burst 20");
///
/// let error = "5.5/s".parse::<Limit>().unwrap_err();
/// assert_eq!(error.suggestion(), Some("11/2s"));
/// # Ok::<(), tidegate_core::ParseLimitError>(())
/// ```
impl FromStr for Limit {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        parse::limit(text).map_err(|error| with_valid_suggestion(error, parse::limit))
    }
}

/// As [`str::parse`], for functions that take anything that converts into a limit.
impl TryFrom<&str> for Limit {
    type Error = ParseLimitError;

    fn try_from(text: &str) -> Result<Self, ParseLimitError> {
        text.parse()
    }
}

/// Reads a span of the notation: `30s`, `5min`, `d`.
///
/// `1d`, `1w` and `1month` are calendar units; `24h` and `7d` are lengths of time.
impl FromStr for Span {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        parse::span(text).map_err(|error| with_valid_suggestion(error, parse::span))
    }
}

/// How many errors of one text are repaired before no suggestion is made.
const MAX_REPAIRS: usize = 12;

/// The error with a suggestion that parses, or with none.
///
/// A suggestion fixes one error. The text may have more, so the suggestion is parsed and fixed
/// again.
fn with_valid_suggestion<T>(
    mut error: ParseLimitError,
    read: fn(&str) -> Result<T, ParseLimitError>,
) -> ParseLimitError {
    let mut candidate = error.take_suggestion();
    for _ in 0..MAX_REPAIRS {
        let Some(text) = candidate else { return error };
        match read(&text) {
            Ok(_) => return error.or_write(Some(text)),
            Err(mut next) => candidate = next.take_suggestion(),
        }
    }
    error
}

/// `text` with the bytes of `range` replaced.
fn spliced(text: &str, range: Range<usize>, replacement: &str) -> String {
    let mut result = String::from(text);
    result.replace_range(range, replacement);
    result
}
