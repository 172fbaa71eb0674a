//! The files that were read, positions in them, and excerpts for messages.

use std::ops::Range;

use super::excerpt::{Excerpt, LineColumn};
use super::redact::{self, MASK};

/// A byte range in one of the files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct SourceSpan {
    pub(crate) source: SourceId,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Index of a file in [`SourceFiles`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct SourceId(usize);

impl SourceSpan {
    /// The position of a value that did not come from a file.
    pub(crate) const NOWHERE: Self = Self { source: SourceId(usize::MAX), start: 0, end: 0 };

    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.source == other.source && self.start >= other.start && self.end <= other.end
    }
}

/// All files of one policy.
#[derive(Default, Debug)]
pub(crate) struct SourceFiles(Vec<SourceFile>);

#[derive(Debug)]
struct SourceFile {
    name: String,
    text: String,
    /// Byte offsets of the line starts.
    lines: Vec<usize>,
    /// Byte ranges that excerpts do not show.
    secrets: Vec<Range<usize>>,
}

impl SourceFiles {
    pub(crate) fn add(&mut self, name: &str, text: String) -> SourceId {
        let lines = line_starts(&text);
        self.0.push(SourceFile { name: name.into(), text, lines, secrets: Vec::new() });
        SourceId(self.0.len() - 1)
    }

    pub(crate) fn text(&self, id: SourceId) -> &str {
        self.0.get(id.0).map_or("", |source| &source.text)
    }

    /// Excludes the bytes from excerpts.
    pub(crate) fn hide(&mut self, span: SourceSpan) {
        if let Some(source) = self.0.get_mut(span.source.0) {
            source.secrets.push(span.start..span.end);
        }
    }

    /// Line and column of the start of a span; `None` if it is not in a file.
    pub(crate) fn place(&self, span: SourceSpan) -> Option<LineColumn> {
        let source = self.0.get(span.source.0)?;
        let (line, start) = source.line_of(span.start);
        let column = source.text.get(start..span.start).map_or(0, |text| text.chars().count());
        Some(LineColumn { file: escaped(&source.name), line: line + 1, column: column + 1 })
    }

    /// The line in which a span starts, with secrets redacted.
    pub(crate) fn excerpt(&self, span: SourceSpan) -> Option<Excerpt> {
        let source = self.0.get(span.source.0)?;
        let (number, start) = source.line_of(span.start);
        let line = source.line(number);
        let end = start + line.len();
        let mut hidden = redact::in_line(line);
        if source.continues_a_secret(number) {
            hidden.push(line.len() - line.trim_start().len()..line.len());
        }
        let within = |secret: &Range<usize>| {
            (secret.start.max(start) < secret.end.min(end))
                .then(|| secret.start.max(start) - start..secret.end.min(end) - start)
        };
        hidden.extend(source.secrets.iter().filter_map(within));
        let first = span.start.min(end);
        let marked = first - start..span.end.clamp(first, end) - start;
        Some(draw(line, marked, &merged(hidden)))
    }
}

impl SourceFile {
    /// The number of the line at `offset`, counted from 0, and its start.
    fn line_of(&self, offset: usize) -> (usize, usize) {
        let number = self.lines.partition_point(|&start| start <= offset).saturating_sub(1);
        (number, self.lines.get(number).copied().unwrap_or(0))
    }

    fn line(&self, number: usize) -> &str {
        let start = self.lines.get(number).copied().unwrap_or(0);
        let end = self.lines.get(number + 1).copied().unwrap_or(self.text.len());
        self.text.get(start..end).unwrap_or("").trim_end_matches(['\n', '\r'])
    }

    /// Whether the line continues a field above it that holds a secret.
    fn continues_a_secret(&self, number: usize) -> bool {
        let begins_field = |line: &str| line.starts_with(|c: char| !c.is_whitespace() && c != '#');
        if begins_field(self.line(number)) {
            return false;
        }
        // Bounds the search; a secret does not span 1,000 lines.
        let above = (number.saturating_sub(1_000)..number).rev().map(|n| self.line(n));
        let field = above.into_iter().find(|line| begins_field(line)).unwrap_or("");
        redact::is_secret(field.split(':').next().unwrap_or(""))
    }
}

fn line_starts(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let ends = bytes
        .iter()
        .enumerate()
        .filter(|&(i, &b)| b == b'\n' || (b == b'\r' && bytes.get(i + 1) != Some(&b'\n')));
    std::iter::once(0).chain(ends.map(|(i, _)| i + 1)).collect()
}

/// The ranges sorted, with touching ranges merged.
fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Upper bound of the columns of an excerpt.
const MAX_COLUMNS: usize = 120;
/// Columns shown before the marked part of a longer line.
const COLUMNS_BEFORE: usize = 40;

/// Bytes of a line that are rendered before and after the start of the marked part.
const BYTES_AROUND: usize = 1_000;

fn draw(line: &str, marked: Range<usize>, hidden: &[Range<usize>]) -> Excerpt {
    let mut shown = Vec::new();
    let (mut from, mut to) = (None, None);
    let mut at = boundary(line, marked.start.saturating_sub(BYTES_AROUND));
    let end = boundary(line, marked.start + BYTES_AROUND);
    let near = |range: &&Range<usize>| range.start < end && range.end > at;
    let hidden: Vec<&Range<usize>> = hidden.iter().filter(near).collect();
    while at < end {
        let (piece, next) = match hidden.iter().find(|range| range.contains(&at)) {
            Some(range) => (MASK.to_string(), boundary(line, range.end)),
            None => {
                let c = line[at..].chars().next().unwrap_or(' ');
                (visible(c), at + c.len_utf8())
            }
        };
        if from.is_none() && next > marked.start {
            from = Some(shown.len());
        }
        shown.extend(piece.chars());
        if to.is_none() && next >= marked.end {
            to = Some(shown.len());
        }
        at = next;
    }
    let from = from.unwrap_or(shown.len());
    let to = to.unwrap_or(shown.len()).max(from + 1);
    window(&shown, from, to)
}

/// The first character boundary at or after `at`.
fn boundary(line: &str, at: usize) -> usize {
    (at..line.len()).find(|&i| line.is_char_boundary(i)).unwrap_or(line.len())
}

/// Cuts a long line to the columns around the marked part.
fn window(shown: &[char], from: usize, to: usize) -> Excerpt {
    const DOTS: &str = "...";
    if shown.len() <= MAX_COLUMNS {
        let line: String = shown.iter().collect();
        return Excerpt { line: line.trim_end().into(), from, to };
    }
    let first = from.saturating_sub(COLUMNS_BEFORE).min(shown.len() - MAX_COLUMNS);
    let last = first + MAX_COLUMNS;
    let (before, after) = (first > 0, last < shown.len());
    let left = if before { DOTS } else { "" };
    let right = if after { DOTS } else { "" };
    let middle: String = shown[first..last].iter().collect();
    let moved = |column: usize| column.clamp(first, last) - first + left.len();
    Excerpt {
        line: format!("{left}{middle}{right}").trim_end().into(),
        from: moved(from),
        to: moved(to).max(moved(from) + 1),
    }
}

/// Escapes control characters, so that a file name cannot move the terminal's cursor.
pub(crate) fn escaped(text: &str) -> String {
    text.chars().map(visible).collect()
}

/// The character, escaped if it is not printable.
fn visible(c: char) -> String {
    match c {
        '\t' => " ".into(),
        '"' | '\'' | '\\' => c.into(),
        _ => c.escape_debug().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt(text: &str, marked: Range<usize>, secret: Option<Range<usize>>) -> String {
        let mut sources = SourceFiles::default();
        let source = sources.add("f", text.into());
        if let Some(Range { start, end }) = secret {
            sources.hide(SourceSpan { source, start, end });
        }
        let span = SourceSpan { source, start: marked.start, end: marked.end };
        let Excerpt { line, from, to } = sources.excerpt(span).unwrap();
        format!("{line}\n{}{}", " ".repeat(from), "^".repeat(to - from))
    }

    #[test]
    fn carets_are_under_the_marked_bytes() {
        assert_eq!(excerpt("abc\r\ndef\n", 6..8, None), "def\n ^^");
        assert_eq!(excerpt("a\rb", 2..3, None), "b\n^");
        assert_eq!(excerpt("é\u{202e}b", 5..6, None), "é\\u{202e}b\n         ^");
        assert_eq!(excerpt("ab", 2..2, None), "ab\n  ^");
        assert_eq!(excerpt("", 0..0, None), "\n^");
        assert_eq!(excerpt("abcd\nef", 2..7, None), "abcd\n  ^^", "to the end of the line");
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(excerpt("k: hunter2 x", 3..10, Some(3..10)), "k: *** x\n   ^^^");
        assert_eq!(excerpt("k: hunter2 x", 5..6, Some(3..10)), "k: *** x\n   ^^^");
        assert_eq!(excerpt("k: hunter2 x", 11..12, Some(3..10)), "k: *** x\n       ^");
        assert_eq!(excerpt("secret: |\n  hunter2\n", 12..19, None), "  ***\n  ^^^");
    }

    #[test]
    fn a_long_line_is_cut_around_the_marked_bytes() {
        let line = "x".repeat(1_000);
        for at in [0, 39, 41, 500, 961, 999] {
            let drawn = excerpt(&line, at..at + 1, None);
            let (shown, carets) = drawn.split_once('\n').unwrap();
            assert!(shown.len() <= MAX_COLUMNS + 6);
            assert_eq!(shown.as_bytes()[carets.len() - 1], b'x', "{drawn}");
        }
    }
}
