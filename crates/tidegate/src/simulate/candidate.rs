//! Candidates: one limit, or several that are decided in one step.

use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use tidegate_core::{Limit, ParseLimitError, underline};

use crate::{InvalidRule, Rule};

/// One limit, or several that are decided in one step: charged all, or none.
///
/// ```
/// use tidegate::simulate::Candidate;
/// let both: Candidate = "20/1s + fixed-window 1000/d".parse()?;
/// assert_eq!(both.to_string(), "20/s + fixed-window 1000/d");
/// assert_eq!(both.limits().count(), 2);
/// # Ok::<(), tidegate::simulate::ParseCandidateError>(())
/// ```
#[derive(Clone)]
pub struct Candidate {
    rule: Rule,
}

impl Candidate {
    /// A candidate of these limits.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, InvalidRule> {
        Ok(Self { rule: Rule::new("candidate", limits)? })
    }

    /// The limits in order.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.rule.limits().iter().map(|limit| limit.limit())
    }

    pub(super) fn rule(&self) -> &Rule {
        &self.rule
    }
}

/// The notation.
impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Candidate({self})")
    }
}

/// The limits, joined with ` + `.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, limit) in self.limits().enumerate() {
            write!(f, "{}{limit}", if index == 0 { "" } else { " + " })?;
        }
        Ok(())
    }
}

/// Parses limits joined with ` + `.
impl FromStr for Candidate {
    type Err = ParseCandidateError;

    fn from_str(text: &str) -> Result<Self, ParseCandidateError> {
        let (mut limits, mut start) = (Vec::new(), 0);
        for written in text.split(" + ") {
            let invalid = |error| ParseCandidateError::Limit { start, error };
            limits.push(written.parse::<Limit>().map_err(invalid)?);
            start += written.len() + " + ".len();
        }
        Self::new(limits).map_err(|error| ParseCandidateError::Rule { length: text.len(), error })
    }
}

/// Why a text is not a candidate.
#[derive(Clone, Debug)]
pub enum ParseCandidateError {
    /// One of the limits is invalid.
    Limit {
        /// Start of the limit in the text, in bytes.
        start: usize,
        /// The error; its positions count from `start`.
        error: ParseLimitError,
    },
    /// Too many limits, or an unknown time zone.
    Rule {
        /// Length of the text in bytes.
        length: usize,
        /// The error.
        error: InvalidRule,
    },
}

impl ParseCandidateError {
    /// The byte range of the error.
    pub fn position(&self) -> Range<usize> {
        match self {
            Self::Limit { start, error } => {
                let position = error.position();
                start + position.start..start + position.end
            }
            Self::Rule { length, .. } => 0..*length,
        }
    }

    /// Two lines: `text`, which must be the parsed one, and carets under the position.
    pub fn underline(&self, text: &str) -> String {
        underline(text, &self.position())
    }
}

impl fmt::Display for ParseCandidateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit { error, .. } => error.fmt(f),
            Self::Rule { error, .. } => error.fmt(f),
        }
    }
}

impl Error for ParseCandidateError {}
