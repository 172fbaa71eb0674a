//! A table with a header row. Every record is one line.

use std::borrow::Cow;

use super::entry::{Entry, Fault};
use super::field::{Field, Named};

/// What the columns mean.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    separator: u8,
    columns: Vec<(Field, String)>,
}

/// The most columns.
const MAX_COLUMNS: usize = 256;

impl Columns {
    /// What a header row says; else what it lacks.
    pub(super) fn new(header: &[u8]) -> Result<Self, Fault> {
        let header = header.strip_prefix(b"\xef\xbb\xbf").unwrap_or(header);
        let separator = b",;\t"
            .iter()
            .copied()
            .max_by_key(|&b| (header.iter().filter(|&&other| other == b).count(), b == b','));
        let separator = separator.unwrap_or(b',');
        let mut columns: Vec<(Field, String)> = Vec::new();
        let names = Cells { rest: Some(header), separator };
        for name in names.take(MAX_COLUMNS) {
            let name = name.ok_or("the header row cannot be read")?;
            let name = name.trim();
            let is_header = name.starts_with("header:");
            let field = if is_header { Field::Header } else { Field::of(name) };
            columns.push((field, Field::header_name(name).into_owned()));
        }
        let has = |field: Field| columns.iter().any(|(known, _)| *known == field);
        match (has(Field::Time), has(Field::Target)) {
            (true, true) => Ok(Self { separator, columns }),
            (false, _) => Err("the header row has no column named time or timestamp"),
            (_, false) => Err("the header row has no column named path or uri"),
        }
    }

    pub(super) fn parse<'a>(&'a self, line: &'a [u8]) -> Result<Entry<'a>, Fault> {
        let mut entry = Entry::default();
        let mut named = Named::default();
        let mut cells = Cells { rest: Some(line), separator: self.separator };
        for (field, name) in &self.columns {
            let cell = cells.next().ok_or("fewer columns than the header row")?;
            let value = cell.ok_or("a quoted column does not end, or is no UTF-8")?;
            let value = match value {
                Cow::Borrowed(value) => Cow::Borrowed(value.trim()),
                Cow::Owned(value) => Cow::Owned(value),
            };
            named.put(*field, Cow::Borrowed(name), value, &mut entry)?;
        }
        if self.columns.len() < MAX_COLUMNS && cells.next().is_some() {
            return Err("more columns than the header row");
        }
        named.finish(&mut entry)?;
        Ok(entry)
    }
}

/// The cells of a line; `None` for one that cannot be read.
struct Cells<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> Iterator for Cells<'a> {
    type Item = Option<Cow<'a, str>>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.rest?;
        if let Some(inside) = line.strip_prefix(b"\"") {
            let cell = self.quoted(inside);
            if cell.is_none() {
                self.rest = None;
            }
            return Some(cell);
        }
        let end = memchr::memchr(self.separator, line);
        let (cell, rest) = line.split_at(end.unwrap_or(line.len()));
        self.rest = end.map(|_| &rest[1..]);
        Some(std::str::from_utf8(cell).ok().map(Cow::Borrowed))
    }
}

impl<'a> Cells<'a> {
    /// A cell behind its first quote. Two quotes in a row stand for one.
    fn quoted(&mut self, inside: &'a [u8]) -> Option<Cow<'a, str>> {
        let mut at = 0;
        let mut is_doubled = false;
        loop {
            at += memchr::memchr(b'"', inside.get(at..)?)?;
            match inside.get(at + 1) {
                Some(b'"') => {
                    is_doubled = true;
                    at += 2;
                }
                Some(&byte) if byte != self.separator => return None,
                next => {
                    self.rest = next.map(|_| &inside[at + 2..]);
                    break;
                }
            }
        }
        let text = std::str::from_utf8(&inside[..at]).ok()?;
        Some(if is_doubled { text.replace("\"\"", "\"").into() } else { text.into() })
    }
}
