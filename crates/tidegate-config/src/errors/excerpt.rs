//! A position in a file and the line that is shown for it.

use std::fmt;

/// A position, both numbers from 1. Columns count characters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LineColumn {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl fmt::Display for LineColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// One line of a file, and the columns from `from` up to `to` that are marked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Excerpt {
    pub(crate) line: String,
    pub(crate) from: usize,
    pub(crate) to: usize,
}
