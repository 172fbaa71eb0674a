//! An error in one field, before its position is known.

use std::ops::Range;

/// An error in one field of a rule or of the settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FieldError {
    /// The path of the field from the rule or the settings: `limits[0]`.
    pub(crate) field: String,
    /// The bytes of its text that are wrong; `None` for all of it.
    pub(crate) part: Option<Range<usize>>,
    /// Kind of value, for messages that may not show the text.
    pub(crate) what: &'static str,
    pub(crate) message: String,
    /// Another field with which it conflicts.
    pub(crate) first: Option<String>,
}

impl FieldError {
    /// Upper bound of the errors that are collected for one rule.
    pub(crate) const MAX_PER_RULE: usize = 200;

    pub(crate) fn new(field: &str, what: &'static str, message: impl ToString) -> Self {
        Self { field: field.into(), part: None, what, message: message.to_string(), first: None }
    }

    #[must_use]
    pub(crate) fn with_first(self, field: &str) -> Self {
        Self { first: Some(field.into()), ..self }
    }
}
