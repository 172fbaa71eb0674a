//! The error for text that is not a valid limit.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::ops::Range;

use crate::InvalidLimit;

/// Why a text is not a limit or not a span: what is wrong, where, and what to write instead.
///
/// ```
/// use tidegate_core::Limit;
/// let error = "100/sec0nds".parse::<Limit>().unwrap_err();
/// assert_eq!(error.to_string(), r#"unknown unit "sec0nds"; write 100/s"#);
/// assert_eq!(error.position(), 4..11);
/// assert_eq!(error.underline("100/sec0nds"), "100/sec0nds\n    ^^^^^^^");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseLimitError {
    position: Range<usize>,
    reason: Box<str>,
    advice: &'static str,
    suggestion: Option<Box<str>>,
    invalid: Option<InvalidLimit>,
}

impl ParseLimitError {
    /// What is wrong, quoting the value. One line; control characters are escaped.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The byte range of the error. Empty where something is missing; never outside the text.
    pub fn position(&self) -> Range<usize> {
        self.position.clone()
    }

    /// A whole text to write instead, if there is one. It parses.
    pub fn suggestion(&self) -> Option<&str> {
        self.suggestion.as_deref()
    }

    /// Why the limit is invalid, if it follows the grammar.
    pub fn invalid(&self) -> Option<InvalidLimit> {
        self.invalid
    }

    /// Two lines: `text`, which must be the parsed one, and carets under the position.
    ///
    /// Characters other than printable ASCII are escaped, so that the carets are aligned.
    pub fn underline(&self, text: &str) -> String {
        underline(text, &self.position)
    }

    pub(super) fn new(
        position: Range<usize>,
        reason: impl Into<String>,
        advice: &'static str,
    ) -> Self {
        let reason = reason.into().into_boxed_str();
        Self { position, reason, advice, suggestion: None, invalid: None }
    }

    /// A limit that follows the grammar and is invalid; `written` is the text of the field.
    pub(super) fn refused(position: Range<usize>, written: &str, invalid: InvalidLimit) -> Self {
        let error = match invalid {
            // These messages contain the value already.
            InvalidLimit::TooLarge { .. } | InvalidLimit::ZeroSize { .. } => {
                Self::new(position, invalid.to_string(), "")
            }
            _ => Self::new(position, format!("in {}: {invalid}", Quoted(written)), ""),
        };
        Self { invalid: Some(invalid), ..error }
    }

    /// The same error, suggesting `text`.
    #[must_use]
    pub(super) fn or_write(mut self, text: Option<String>) -> Self {
        self.suggestion = text.map(String::into_boxed_str);
        self
    }

    pub(super) fn take_suggestion(&mut self) -> Option<String> {
        self.suggestion.take().map(Into::into)
    }
}

impl fmt::Display for ParseLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        match &self.suggestion {
            Some(text) => write!(f, "; write {text}"),
            None if self.advice.is_empty() => Ok(()),
            None => write!(f, "; {}", self.advice),
        }
    }
}

impl core::error::Error for ParseLimitError {}

/// Two lines: `text`, and carets under the bytes of `position`. Characters other than printable
/// ASCII are escaped; the text is cut after 256 bytes.
pub fn underline(text: &str, position: &Range<usize>) -> String {
    let end = char_boundary(text, MAX_BYTES.min(text.len()));
    let cut = |at: usize| text.get(..at.min(end)).unwrap_or(text);
    let before = columns(cut(position.start));
    let marked = columns(cut(position.end)).saturating_sub(before);
    let rest = if end < text.len() { "..." } else { "" };
    let marked = if position.end > end { marked + rest.len() } else { marked };
    let (spaces, carets) = (" ".repeat(before), "^".repeat(marked.max(1)));
    let shown: String = text[..end].chars().flat_map(shown).collect();
    format!("{shown}{rest}\n{spaces}{carets}")
}

/// Longer text is not parsed.
pub(super) const MAX_BYTES: usize = 256;

/// Text in an error: quoted, escaped, and cut if it is long.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_CHARS: usize = 40;
        match self.0.char_indices().nth(MAX_CHARS) {
            Some((end, _)) => write!(f, "{:?}...", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}

/// The last character boundary up to `at`.
pub(super) fn char_boundary(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0)
}

fn columns(text: &str) -> usize {
    text.chars().flat_map(shown).count()
}

/// The character, or its escape. Quotes are not escaped, because nothing is quoted here.
fn shown(c: char) -> impl Iterator<Item = char> {
    let plain = (c == ' ' || c.is_ascii_graphic()).then_some(c);
    plain.into_iter().chain(c.escape_default().filter(move |_| plain.is_none()))
}
