//! A policy file as a tree in which everything knows its place.

use super::mask;
use super::source::Span;

/// A value and its place.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) kind: Kind,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Kind {
    /// Nothing, `~` or `null`.
    Nothing,
    /// A text with a variable that could not be filled in, which has been said already.
    Unknown,
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A text, a number, `true`..: which of them it is depends on who asks.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    /// In quotes or a block: certainly text.
    pub(crate) quoted: bool,
    /// Where the text stands in the file letter by letter, if it does.
    pub(crate) letters: Option<usize>,
    /// May it be printed?
    pub(crate) shown: Shown,
}

/// May a text be printed?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shown {
    Yes,
    /// It holds the value of a variable.
    Filled,
    /// It looks as if it had swallowed a secret, like after a quote that was not closed.
    Secret,
}

/// A field and its value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_span: Span,
    pub(crate) value: Node,
}

impl Node {
    /// Is there no value?
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self.kind, Kind::Nothing)
    }

    /// Is it neither a list nor a map?
    pub(crate) fn is_text(&self) -> bool {
        matches!(self.kind, Kind::Scalar(_))
    }

    /// The value of a field.
    pub(crate) fn get(&self, field: &str) -> Option<&Node> {
        self.entry(field).map(|entry| &entry.value)
    }

    /// A field with its name.
    pub(crate) fn entry(&self, field: &str) -> Option<&Entry> {
        let Kind::Map(entries) = &self.kind else { return None };
        entries.iter().find(|entry| entry.key == field)
    }

    /// The value at a path like `overrides[0].key`, or the nearest one around it.
    pub(crate) fn at(&self, path: &str) -> &Node {
        let steps = path.split(['.', '[']).map(|step| step.trim_end_matches(']'));
        let mut node = self;
        for step in steps.filter(|step| !step.is_empty()) {
            let next = match &node.kind {
                Kind::List(items) => step.parse().ok().and_then(|i: usize| items.get(i)),
                _ => node.get(step),
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node
    }
}

/// Text is printed unless it looks as if it held a secret.
pub(crate) fn shown(text: &str) -> Shown {
    if mask::in_line(text).is_empty() { Shown::Yes } else { Shown::Secret }
}

/// Text in an error, cut short, unless it looks as if it held a secret.
pub(crate) struct Name<'n>(pub(crate) &'n str);

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const MOST_CHARS: usize = 40;
        match self.0.char_indices().nth(MOST_CHARS) {
            _ if shown(self.0) != Shown::Yes => write!(f, "\"{}\"", mask::MASK),
            Some((end, _)) => write!(f, "{:?}..", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}
