//! The fields of a map.

use super::load::Notes;
use crate::config::source::Span;
use crate::config::tree::{Entry, Kind, Name, Node};

/// The fields of a map. One without a value is as good as none, as in envoyproxy/ratelimit.
pub(super) struct Fields<'n> {
    entries: &'n [Entry],
    /// Where the map stands in the file: `descriptors[0].rate_limit`.
    pub(super) around: String,
    /// What to point at if a field is not there.
    pub(super) start: Span,
}

/// A text and its place.
#[derive(Clone, Copy)]
pub(super) struct Text<'n> {
    pub(super) text: &'n str,
    pub(super) span: Span,
}

/// The fields that envoyproxy/ratelimit knows, and where they have an effect.
const THEIRS: [(&str, &str); 16] = [
    ("domain", "at the top of the file"),
    ("descriptors", "at the top of the file or in a descriptor"),
    ("key", "in a descriptor"),
    ("value", "in a descriptor"),
    ("rate_limit", "in a descriptor"),
    ("shadow_mode", "in a descriptor"),
    ("quota_mode", "in a descriptor"),
    ("detailed_metric", "in a descriptor"),
    ("value_to_metric", "in a descriptor"),
    ("share_threshold", "in a descriptor"),
    ("metadata", "in a descriptor"),
    ("unit", "in rate_limit"),
    ("requests_per_unit", "in rate_limit"),
    ("unlimited", "in rate_limit"),
    ("name", "in rate_limit or replaces"),
    ("replaces", "in rate_limit"),
];

impl<'n> Fields<'n> {
    /// The fields of a node; nothing if it is not a map, which is told.
    pub(super) fn of(node: &'n Node, around: String, notes: &mut Notes) -> Option<Self> {
        let Kind::Map(entries) = &node.kind else {
            let message = format!("{} must be a map of fields, not {}", last(&around), kind(node));
            notes.wrong(node.span, &around, message);
            return None;
        };
        let first = entries.first().map(|entry| entry.key_span);
        // What comes from an alias stands somewhere else.
        let start = first.filter(|first| first.is_within(&node.span)).unwrap_or(node.span);
        Some(Self { entries, around, start })
    }

    /// The path of a field from the top of the file.
    pub(super) fn path(&self, field: &str) -> String {
        if self.around.is_empty() { field.into() } else { format!("{}.{field}", self.around) }
    }

    /// Tells of fields that are not among these. Those that are only out of place are no mistake to
    /// envoyproxy/ratelimit, which does not look at them. Those that seem to be meant are answered,
    /// so that they are not said to be missing as well.
    pub(super) fn only<'k>(&self, known: &[&'k str], notes: &mut Notes) -> Vec<&'k str> {
        let mut meant_ones = Vec::new();
        for Entry { key, key_span, .. } in self.entries {
            if known.contains(&&**key) {
                continue;
            }
            let (path, name) = (self.path(key), Name(key));
            if let Some((_, place)) = THEIRS.iter().find(|(theirs, _)| theirs == key) {
                let message = format!("{key} has no effect here; it belongs {place}");
                notes.odd(*key_span, &path, message);
                continue;
            }
            let message = match tidegate::closest(key, known.iter().copied()) {
                Some(meant) => {
                    meant_ones.push(meant);
                    format!("unknown field {name}; did you mean {meant}?")
                }
                None => format!("unknown field {name}; use {}", listed(known)),
            };
            notes.wrong(*key_span, &path, message);
        }
        meant_ones
    }

    /// A field that has a value.
    pub(super) fn entry(&self, field: &str) -> Option<&'n Entry> {
        let entry = self.entries.iter().find(|entry| entry.key == field)?;
        (!matches!(entry.value.kind, Kind::Nothing | Kind::Unknown)).then_some(entry)
    }

    /// The name of a field, to point at, even if it has no value.
    pub(super) fn name_span(&self, field: &str) -> Option<Span> {
        self.entries.iter().find(|entry| entry.key == field).map(|entry| entry.key_span)
    }

    /// Text as it is written, whatever it looks like: 404 is the text 404.
    pub(super) fn text(&self, field: &str, notes: &mut Notes) -> Option<Text<'n>> {
        let value = &self.entry(field)?.value;
        match &value.kind {
            Kind::Scalar(scalar) => Some(Text { text: &scalar.text, span: value.span }),
            _ => {
                self.misfit(field, "text", value, notes);
                None
            }
        }
    }

    /// Yes or no, in all words that YAML 1.1 has for it.
    pub(super) fn flag(&self, field: &str, notes: &mut Notes) -> Option<bool> {
        let value = &self.entry(field)?.value;
        let word = match &value.kind {
            Kind::Scalar(scalar) if !scalar.quoted => &*scalar.text,
            _ => "",
        };
        let flag = match word {
            "true" | "True" | "TRUE" | "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
                true
            }
            "false" | "False" | "FALSE" | "n" | "N" | "no" | "No" | "NO" | "off" | "Off"
            | "OFF" => false,
            _ => {
                self.misfit(field, "true or false", value, notes);
                return None;
            }
        };
        Some(flag)
    }

    /// A whole number below 2^32; digits may be grouped with `_`.
    pub(super) fn number(&self, field: &str, notes: &mut Notes) -> Option<u32> {
        let value = &self.entry(field)?.value;
        let number = match &value.kind {
            Kind::Scalar(scalar) if !scalar.quoted => number(&scalar.text),
            _ => None,
        };
        if number.is_none() {
            self.misfit(field, "a whole number from 0 to 4294967295", value, notes);
        }
        number
    }

    /// The items of a list; none if there is no list.
    pub(super) fn list(&self, field: &str, notes: &mut Notes) -> &'n [Node] {
        let Some(entry) = self.entry(field) else { return &[] };
        match &entry.value.kind {
            Kind::List(items) => items,
            _ => {
                self.misfit(field, "a list", &entry.value, notes);
                &[]
            }
        }
    }

    pub(super) fn misfit(&self, field: &str, wanted: &str, value: &Node, notes: &mut Notes) {
        let message = format!("{field} must be {wanted}, not {}", kind(value));
        notes.wrong(value.span, &self.path(field), message);
    }
}

/// 010 is eight to YAML 1.1 and ten to everybody else, so it is no number here.
fn number(text: &str) -> Option<u32> {
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    let is_number = text.starts_with(|c: char| c.is_ascii_digit())
        && digits.bytes().all(|b| b.is_ascii_digit())
        && (digits.len() == 1 || !digits.starts_with('0'));
    if is_number { digits.parse().ok() } else { None }
}

pub(super) fn kind(node: &Node) -> String {
    match &node.kind {
        Kind::Nothing | Kind::Unknown => "nothing".into(),
        Kind::Scalar(scalar) => Name(&scalar.text).to_string(),
        Kind::List(_) => "a list".into(),
        Kind::Map(_) => "a map".into(),
    }
}

/// `a, b or c`.
pub(super) fn listed(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).into(),
        [all @ .., last] => format!("{} or {last}", all.join(", ")),
    }
}

/// The name that a map goes by in a message.
fn last(path: &str) -> &str {
    match path.rsplit('.').next().unwrap_or(path) {
        "" => "a file",
        name if name.starts_with("descriptors[") => "a descriptor",
        name if name.starts_with("replaces[") => "an entry of replaces",
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_and_fit_32_bits() {
        let good = [("0", 0), ("7", 7), ("1_000", 1_000), ("4294967295", u32::MAX)];
        for (text, value) in good {
            assert_eq!(number(text), Some(value), "{text}");
        }
        let bad = ["", "_", "_1", "-1", "+1", "010", "00", "0x10", "1.0", "1e3", "4294967296", "١"];
        for text in bad {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
