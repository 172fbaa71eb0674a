//! A file as a tree of values with positions.

use tidegate_core::Quoted;

use crate::errors::redact;
use crate::errors::sources::SourceSpan;

/// A value and its position.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct YamlNode {
    pub(crate) span: SourceSpan,
    pub(crate) kind: NodeKind,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum NodeKind {
    /// Empty, `~` or `null`.
    Nothing,
    /// A text whose variable could not be substituted; the error is reported already.
    Unknown,
    Scalar(Scalar),
    List(Vec<YamlNode>),
    Map(Vec<MapEntry>),
}

/// A string, number or boolean: the expected type decides which.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    /// In quotes or a block, and thus a string.
    pub(crate) quoted: bool,
    /// Offset of the text in the file, if the file has it unescaped.
    pub(crate) letters: Option<usize>,
    pub(crate) shown: Visibility,
}

/// Whether a message may contain a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Visibility {
    Yes,
    /// No: it contains the value of a variable.
    Filled,
    /// No: it looks like it contains a secret, for example after an unclosed quote.
    Secret,
}

/// A field and its value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MapEntry {
    pub(crate) key: String,
    pub(crate) key_span: SourceSpan,
    pub(crate) value: YamlNode,
}

impl YamlNode {
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self.kind, NodeKind::Nothing)
    }

    pub(crate) fn get(&self, field: &str) -> Option<&YamlNode> {
        self.entry(field).map(|entry| &entry.value)
    }

    /// A field with its name and its position.
    pub(crate) fn entry(&self, field: &str) -> Option<&MapEntry> {
        let NodeKind::Map(entries) = &self.kind else { return None };
        entries.iter().find(|entry| entry.key == field)
    }

    /// The value at a path like `overrides[0].key`, or its nearest ancestor.
    pub(crate) fn at(&self, path: &str) -> &YamlNode {
        let steps = path.split(['.', '[']).map(|step| step.trim_end_matches(']'));
        let mut node = self;
        for step in steps.filter(|step| !step.is_empty()) {
            let next = match &node.kind {
                NodeKind::List(items) => step.parse().ok().and_then(|i: usize| items.get(i)),
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

/// Whether a message may contain `text`: not if it looks like it contains a secret.
pub(crate) fn shown(text: &str) -> Visibility {
    if redact::in_line(text).is_empty() { Visibility::Yes } else { Visibility::Secret }
}

/// Text in an error: quoted, truncated, and redacted if it looks like it contains a secret.
pub(crate) struct QuotedText<'n>(pub(crate) &'n str);

impl std::fmt::Display for QuotedText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match shown(self.0) {
            Visibility::Yes => Quoted(self.0).fmt(f),
            _ => write!(f, "\"{}\"", redact::MASK),
        }
    }
}
