//! `${NAME}` in text: the value of a variable.
//!
//! It is filled in after the file has been read: a value is always text and never structure.

use super::problem::Found;
use super::source::Span;
use super::surroundings::Surroundings;
use super::tree::{Kind, Node, Scalar, Shown};

/// The most bytes that variables may bring into one policy.
pub(super) const MAX_FILLED: usize = 1 << 20;

/// Fills in variables.
pub(super) struct Filler<'s> {
    surroundings: &'s dyn Surroundings,
    left: usize,
}

impl<'s> Filler<'s> {
    pub(super) fn new(surroundings: &'s dyn Surroundings) -> Self {
        Self { surroundings, left: MAX_FILLED }
    }

    /// Fills in all variables in the values of a tree. Names of fields stay as they are.
    pub(super) fn fill(&mut self, node: &mut Node, found: &mut Vec<Found>) {
        let span = node.span;
        match &mut node.kind {
            Kind::Nothing | Kind::Unknown => {}
            Kind::List(items) => items.iter_mut().for_each(|item| self.fill(item, found)),
            Kind::Map(entries) => {
                entries.iter_mut().for_each(|entry| self.fill(&mut entry.value, found));
            }
            Kind::Scalar(scalar) => {
                let before = found.len();
                if scalar.text.contains("${") {
                    self.fill_scalar(scalar, span, found);
                }
                if found.len() > before {
                    node.kind = Kind::Unknown;
                }
            }
        }
    }

    fn fill_scalar(&mut self, scalar: &mut Scalar, span: Span, found: &mut Vec<Found>) {
        let text = std::mem::take(&mut scalar.text);
        let mut filled = String::with_capacity(text.len());
        let mut rest = &*text;
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            if let Some(before) = before.strip_suffix('$') {
                filled.push_str(before);
                filled.push_str("${");
                rest = &from[2..];
                continue;
            }
            filled.push_str(before);
            let end = from.find('}').map_or(from.len(), |end| end + 1);
            let written = &from[..end];
            rest = &from[end..];
            match self.value(written) {
                Ok(value) => {
                    filled.push_str(&value);
                    scalar.shown = Shown::Filled;
                }
                Err(message) => {
                    let offset = text.len() - rest.len() - written.len();
                    let inner = scalar.letters.map(|start| Span {
                        start: start + offset,
                        end: start + offset + written.len(),
                        ..span
                    });
                    found.push(Found::new(inner.unwrap_or(span), "", message));
                }
            }
        }
        filled.push_str(rest);
        scalar.text = filled;
        scalar.letters = None;
    }

    fn value(&mut self, written: &str) -> Result<String, String> {
        let name = written.strip_prefix("${").and_then(|name| name.strip_suffix('}'));
        let Some(name) = name.filter(|name| is_variable(name)) else {
            return Err("a variable is ${NAME} in capitals, digits and _; write $${ for the text \
                        itself"
                .into());
        };
        let value = self.surroundings.variable(name);
        let value = value.ok_or_else(|| {
            format!("variable {name} is not set; set it, or write $${{{name}}} for the text itself")
        })?;
        let value = value.into_string().map_err(|_| format!("variable {name} is not UTF-8"))?;
        match self.left.checked_sub(value.len()) {
            Some(left) => self.left = left,
            None => return Err(format!("variables bring more than {MAX_FILLED} bytes; use fewer")),
        }
        Ok(value)
    }
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}
