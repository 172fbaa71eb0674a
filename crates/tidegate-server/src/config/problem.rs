//! What is wrong with a policy, and where.

use std::fmt;
use std::path::{Path, PathBuf};

use super::source::{Place, Sources, Span};

/// Something wrong with a policy, or a warning about it.
///
/// It prints as `file:line:column: message`, then the line with carets under what is meant. No
/// secret and no value of a variable is in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    place: Option<Place>,
    field: String,
    message: String,
    excerpt: Option<Excerpt>,
}

/// One line of a file, and the columns that are meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Excerpt {
    pub(crate) line: String,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Problem {
    /// The file, as it was named; nothing if the rule came with a call.
    pub fn file(&self) -> Option<&str> {
        self.place.as_ref().map(|place| &*place.file)
    }

    /// The line, from 1.
    pub fn line(&self) -> Option<usize> {
        self.place.as_ref().map(|place| place.line)
    }

    /// The column in characters, from 1.
    pub fn column(&self) -> Option<usize> {
        self.place.as_ref().map(|place| place.column)
    }

    /// The field that is meant: `rules[0].limits[1]`. Empty if it is the whole.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong and what to do.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The line that is meant, and below it carets under what is meant.
    pub fn excerpt(&self) -> Option<String> {
        let Excerpt { line, from, to } = self.excerpt.as_ref()?;
        Some(format!("{line}\n{}{}", " ".repeat(*from), "^".repeat(to - from)))
    }

    /// A problem that has no place in a file.
    pub(crate) fn of_field(field: String, message: String) -> Self {
        Self { place: None, field, message, excerpt: None }
    }

    /// A problem with a whole file.
    pub(crate) fn of_file(file: &str, message: String) -> Self {
        let file = super::source::escaped(file);
        Self { message: format!("{file}: {message}"), ..Self::of_field(String::new(), message) }
    }

    fn new(found: Found, sources: &Sources) -> Self {
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

/// Everything that is wrong with a policy, in the order of the files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems {
    list: Vec<Problem>,
    more: usize,
    files: Vec<PathBuf>,
}

impl Problems {
    /// The most problems that are told apart. The rest is counted.
    pub const MAX: usize = 100;

    /// The first of them, at most [`Problems::MAX`].
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Problem> {
        self.list.iter()
    }

    /// How many there are in all, at least one.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// The files that were read, or tried: a change in one of them may mend it.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }

    pub(crate) fn of(problem: Problem) -> Self {
        Self { list: vec![problem], more: 0, files: Vec::new() }
    }

    /// The problems of rules or fields that come from no file.
    pub(crate) fn of_fields(list: Vec<Problem>) -> Self {
        let more = list.len().saturating_sub(Self::MAX);
        Self { list: list.into_iter().take(Self::MAX).collect(), more, files: Vec::new() }
    }

    /// The same with these before them.
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

    pub(crate) fn new(found: Vec<Found>, sources: &Sources) -> Self {
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

/// A problem before its place is looked up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) span: Span,
    pub(crate) field: String,
    pub(crate) message: String,
}

impl Found {
    pub(crate) fn new(span: Span, field: &str, message: impl Into<String>) -> Self {
        Self { span, field: field.into(), message: message.into() }
    }

    /// Is it about this field, or about something inside it?
    pub(crate) fn is_about(&self, field: &str) -> bool {
        self.field
            .strip_prefix(field)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

/// As they stand in the files, each once: what several rules inherit is wrong in one place.
fn in_order(mut found: Vec<Found>) -> Vec<Found> {
    found.sort_by(|a, b| (a.span, &a.message).cmp(&(b.span, &b.message)));
    found.dedup_by(|a, b| a.span == b.span && a.message == b.message);
    found
}

/// Warnings in the order of the files.
pub(crate) fn warnings(found: Vec<Found>, sources: &Sources) -> Vec<Problem> {
    let found = in_order(found).into_iter().take(Problems::MAX);
    let warning = |one: Found| Found { message: format!("warning: {}", one.message), ..one };
    found.map(|one| Problem::new(warning(one), sources)).collect()
}
