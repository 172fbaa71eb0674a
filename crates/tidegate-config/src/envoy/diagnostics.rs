//! Errors and warnings that are collected while files are loaded.

use crate::errors::problem::Finding;
use crate::errors::sources::SourceSpan;

/// Errors and warnings of the files.
#[derive(Default, Debug)]
pub(crate) struct Diagnostics {
    pub(crate) errors: Vec<Finding>,
    pub(crate) warnings: Vec<Finding>,
}

/// Descriptors after so many errors are not checked.
const MAX_ERRORS: usize = 10_000;
/// Upper bound of the warnings that are collected.
const MAX_WARNINGS: usize = 1_000;

impl Diagnostics {
    pub(crate) fn error(&mut self, span: SourceSpan, field: &str, message: impl Into<String>) {
        self.errors.push(Finding::new(span, field, message));
    }

    pub(crate) fn warn(&mut self, span: SourceSpan, field: &str, message: impl Into<String>) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(Finding::new(span, field, message));
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.errors.len() >= MAX_ERRORS
    }
}
