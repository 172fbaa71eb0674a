//! The limit notation: one string for a limit, wherever limits are written.
//!
//! # Layout
//! - `parse` reads text into a draft, `print` writes the canonical text, `unit` knows the units.
//! - `error` is what the writer of a bad limit is told: `repair` has the words for text that is not
//!   a limit, `refusal` for a limit that is not a good one.
//! - `loose` finds out what was probably meant.

use alloc::string::String;
use core::ops::Range;
use core::str::FromStr;

use crate::{Limit, Span};

pub use error::{ParseLimitError, Quoted, underline};

mod error;
#[cfg(test)]
mod fuzz;
mod loose;
mod parse;
mod print;
mod refusal;
mod repair;
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
        parse::limit(text).map_err(|error| settled(error, parse::limit))
    }
}

/// Reads a span as it stands in a limit: `30s`, `5min`, `d`.
///
/// `1d`, `1w` and `1month` are pages of the calendar; `24h` and `7d` are lengths of time.
impl FromStr for Span {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        parse::span(text).map_err(|error| settled(error, parse::span))
    }
}

/// How many faults of one text are repaired before it is given up on.
const MOST_REPAIRS: usize = 12;

/// The error with a suggestion that is known to parse, or with none.
///
/// A repair mends one fault. The text may have more, so the mended text is read and mended again.
fn settled<T>(
    mut error: ParseLimitError,
    read: fn(&str) -> Result<T, ParseLimitError>,
) -> ParseLimitError {
    let mut candidate = error.take_suggestion();
    for _ in 0..MOST_REPAIRS {
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
    let mut mended = String::from(text);
    mended.replace_range(range, replacement);
    mended
}
