//! Errors and warnings with their position.

use std::fmt;
use std::path::{Path, PathBuf};

use super::excerpt::{Excerpt, LineColumn};
use super::sources::{SourceFiles, SourceSpan, escaped};

/// An error in a policy, or a warning about it.
///
/// Prints as `file:line:column: message`, followed by the line with carets under the error. It
/// contains neither secrets nor values of variables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    place: Option<LineColumn>,
    field: String,
    message: String,
    excerpt: Option<Excerpt>,
}

impl Problem {
    /// The file, under the name it was loaded by; `None` for a rule that came with a request.
    pub fn file(&self) -> Option<&str> {
        self.place.as_ref().map(|place| &*place.file)
    }

    /// The line, counted from 1.
    pub fn line(&self) -> Option<usize> {
        self.place.as_ref().map(|place| place.line)
    }

    /// The column in characters, counted from 1.
    pub fn column(&self) -> Option<usize> {
        self.place.as_ref().map(|place| place.column)
    }

    /// The path of the field, such as `rules[0].limits[1]`; empty for the whole file or rule.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The error and its remedy.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The line with the error, and a second line with carets under it.
    pub fn excerpt(&self) -> Option<String> {
        let Excerpt { line, from, to } = self.excerpt.as_ref()?;
        Some(format!("{line}\n{}{}", " ".repeat(*from), "^".repeat(to - from)))
    }

    /// A problem without a position in a file.
    pub fn of_field(field: String, message: String) -> Self {
        Self { place: None, field, message, excerpt: None }
    }

    /// A problem with a whole file.
    pub fn of_file(file: &str, message: String) -> Self {
        let file = escaped(file);
        Self { message: format!("{file}: {message}"), ..Self::of_field(String::new(), message) }
    }

    fn new(found: Finding, sources: &SourceFiles) -> Self {
        let place = sources.place(found.span);
        let excerpt = sources.excerpt(found.span);
        Self { place, field: found.field, message: found.message, excerpt }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{place}: {}", self.message)?,
            None if self.field.is_empty() => f.write_str(&self.message)?,
            None => write!(f, "{}: {}", self.field, self.message)?,
        }
        if let Some(Excerpt { line, from, to }) = &self.excerpt {
            let (spaces, carets) = (" ".repeat(*from), "^".repeat(to - from));
            write!(f, "\n  {line}\n  {spaces}{carets}")?;
        }
        Ok(())
    }
}

/// All errors of a policy, in the order of the files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems {
    list: Vec<Problem>,
    more: usize,
    files: Vec<PathBuf>,
}

impl Problems {
    /// Upper bound of the problems that are listed; the rest is only counted.
    pub const MAX: usize = 100;

    /// The first problems, at most [`Problems::MAX`].
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Problem> {
        self.list.iter()
    }

    /// The number of problems, at least one.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// The files that were read, or could not be: a change in one of them may fix the problem.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }

    /// A single problem.
    pub fn of(problem: Problem) -> Self {
        Self { list: vec![problem], more: 0, files: Vec::new() }
    }

    /// Problems of rules or fields that did not come from a file.
    pub(crate) fn of_fields(list: Vec<Problem>) -> Self {
        let more = list.len().saturating_sub(Self::MAX);
        Self { list: list.into_iter().take(Self::MAX).collect(), more, files: Vec::new() }
    }

    /// Puts `first` before the problems.
    #[must_use]
    pub(crate) fn with_first(self, first: Vec<Problem>) -> Self {
        let (count, all) = (self.count() + first.len(), first.into_iter().chain(self.list));
        let list: Vec<Problem> = all.take(Self::MAX).collect();
        Self { more: count - list.len(), list, ..self }
    }

    #[must_use]
    pub(crate) fn with_files(self, files: Vec<PathBuf>) -> Self {
        Self { files, ..self }
    }

    pub(crate) fn new(found: Vec<Finding>, sources: &SourceFiles) -> Self {
        let found = in_order(found);
        let more = found.len().saturating_sub(Self::MAX);
        let first = found.into_iter().take(Self::MAX);
        let list = first.map(|one| Problem::new(one, sources)).collect();
        Self { list, more, files: Vec::new() }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.list.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for Problems {}

/// A problem as a byte range, before its line and column are computed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    pub(crate) span: SourceSpan,
    pub(crate) field: String,
    pub(crate) message: String,
}

impl Finding {
    pub(crate) fn new(span: SourceSpan, field: &str, message: impl Into<String>) -> Self {
        Self { span, field: field.into(), message: message.into() }
    }

    /// Whether it is about `field` or a field inside it.
    pub(crate) fn is_about(&self, field: &str) -> bool {
        self.field
            .strip_prefix(field)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

/// Sorts by position and removes duplicates: rules that inherit a wrong value report it once.
fn in_order(mut found: Vec<Finding>) -> Vec<Finding> {
    found.sort_by(|a, b| (a.span, &a.message).cmp(&(b.span, &b.message)));
    found.dedup_by(|a, b| a.span == b.span && a.message == b.message);
    found
}

/// The warnings in the order of the files, at most [`Problems::MAX`].
pub(crate) fn warnings(found: Vec<Finding>, sources: &SourceFiles) -> Vec<Problem> {
    let found = in_order(found).into_iter().take(Problems::MAX);
    let warning = |one: Finding| Finding { message: format!("warning: {}", one.message), ..one };
    found.map(|one| Problem::new(warning(one), sources)).collect()
}
