//! Errors of traffic and its notation.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use tidegate_core::{Micros, Span, underline};

use super::bounds;

/// Why a text is not traffic: the error, its position, and a correction.
///
/// ```
/// use tidegate::simulate::Traffic;
/// let text = "stedy 120/s for 60s";
/// let error = text.parse::<Traffic>().unwrap_err();
/// assert_eq!(error.to_string(), r#"unknown pattern "stedy"; write steady 120/s for 60s"#);
/// assert_eq!(error.underline(text), "stedy 120/s for 60s\n^^^^^");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseTrafficError {
    position: Range<usize>,
    reason: String,
    advice: String,
    suggestion: Option<String>,
    invalid: Option<InvalidTraffic>,
}

/// Traffic that is valid by the grammar and outside the bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidTraffic {
    /// More requests than [`Traffic::MAX_REQUESTS`](super::Traffic::MAX_REQUESTS).
    Requests(u64),
    /// No key, or more than [`Traffic::MAX_KEYS`](super::Traffic::MAX_KEYS).
    Keys(u32),
    /// It ends after [`Traffic::MAX_SPAN`](super::Traffic::MAX_SPAN).
    Span(Micros),
    /// More parts than [`Traffic::MAX_PARTS`](super::Traffic::MAX_PARTS).
    Parts(usize),
    /// A part of zero length, since the others have ended when it starts.
    Late,
}

impl ParseTrafficError {
    /// The error, with the value as written. One line; control characters are escaped.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The byte range of the error. Empty if something is missing; never outside the text.
    pub fn position(&self) -> Range<usize> {
        self.position.clone()
    }

    /// A corrected text, if one was found. It parses.
    pub fn suggestion(&self) -> Option<&str> {
        self.suggestion.as_deref()
    }

    /// The violated bound, if the text follows the grammar.
    pub fn invalid(&self) -> Option<InvalidTraffic> {
        self.invalid
    }

    /// Two lines: `text`, which must be the parsed one, and carets under the position.
    pub fn underline(&self, text: &str) -> String {
        underline(text, &self.position)
    }

    pub(super) fn new(
        position: Range<usize>,
        reason: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let (reason, advice) = (reason.into(), advice.into());
        Self { position, reason, advice, suggestion: None, invalid: None }
    }

    pub(super) fn refused(position: Range<usize>, invalid: InvalidTraffic) -> Self {
        Self { invalid: Some(invalid), ..Self::new(position, invalid.to_string(), "") }
    }

    /// With the suggestion to write `text`.
    #[must_use]
    pub(super) fn or_write(mut self, text: Option<String>) -> Self {
        self.suggestion = text;
        self
    }

    pub(super) fn take_suggestion(&mut self) -> Option<String> {
        self.suggestion.take()
    }
}

impl fmt::Display for ParseTrafficError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        match &self.suggestion {
            Some(text) => write!(f, "; write {text}"),
            None if self.advice.is_empty() => Ok(()),
            None => write!(f, "; {}", self.advice),
        }
    }
}

impl Error for ParseTrafficError {}

impl fmt::Display for InvalidTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Requests(count) => {
                write!(
                    f,
                    "{count} requests are too many; at most {}: lower a rate or shorten a span",
                    bounds::MAX_REQUESTS
                )
            }
            Self::Keys(0) => f.write_str("keys 0 generates no traffic; use keys 1 or more"),
            Self::Keys(count) => {
                write!(f, "{count} keys are too many; at most {}", bounds::MAX_KEYS)
            }
            Self::Span(span) => {
                let (span, max) = (Span::Plain(span), Span::Plain(bounds::MAX_SPAN));
                write!(f, "{span} is too long; at most {max}")
            }
            Self::Parts(count) => {
                write!(f, "{count} parts are too many; at most {}", bounds::MAX_PARTS)
            }
            Self::Late => {
                f.write_str("this part starts after the others end; give it a length, like for 1m")
            }
        }
    }
}

impl Error for InvalidTraffic {}
