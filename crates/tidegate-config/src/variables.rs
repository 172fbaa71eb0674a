//! Substitution of `${NAME}` by environment variables.
//!
//! It runs after the file has been parsed, so a value cannot add fields.

use crate::environment::Environment;
use crate::errors::problem::Finding;
use crate::errors::sources::SourceSpan;
use crate::parse::tree::{NodeKind, Scalar, Visibility, YamlNode};

/// Upper bound of the bytes that variables add to one policy.
const MAX_FILLED: usize = 1 << 20;

/// Substitutes variables in the files of one policy.
pub(crate) struct Substitution<'s> {
    environment: &'s dyn Environment,
    /// Bytes that variables may still add.
    remaining: usize,
}

impl<'s> Substitution<'s> {
    pub(crate) fn new(environment: &'s dyn Environment) -> Self {
        Self { environment, remaining: MAX_FILLED }
    }

    /// Substitutes the variables in all values of a tree, but not in field names.
    pub(crate) fn fill(&mut self, node: &mut YamlNode, found: &mut Vec<Finding>) {
        let span = node.span;
        match &mut node.kind {
            NodeKind::Nothing | NodeKind::Unknown => {}
            NodeKind::List(items) => items.iter_mut().for_each(|item| self.fill(item, found)),
            NodeKind::Map(entries) => {
                entries.iter_mut().for_each(|entry| self.fill(&mut entry.value, found));
            }
            NodeKind::Scalar(scalar) => {
                let before = found.len();
                if scalar.text.contains("${") {
                    self.fill_scalar(scalar, span, found);
                }
                if found.len() > before {
                    node.kind = NodeKind::Unknown;
                }
            }
        }
    }

    fn fill_scalar(&mut self, scalar: &mut Scalar, span: SourceSpan, found: &mut Vec<Finding>) {
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
                    scalar.shown = Visibility::Filled;
                }
                Err(message) => {
                    let offset = text.len() - rest.len() - written.len();
                    let inner = scalar.letters.map(|start| SourceSpan {
                        start: start + offset,
                        end: start + offset + written.len(),
                        ..span
                    });
                    found.push(Finding::new(inner.unwrap_or(span), "", message));
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
            return Err(
                "variables are ${NAME} with capitals, digits and _; write $${ for a literal \
                        ${"
                .into(),
            );
        };
        let value = self.environment.variable(name);
        let value = value.ok_or_else(|| {
            format!("variable {name} is not set; write $${{{name}}} for the literal text")
        })?;
        let value = value.into_string().map_err(|_| format!("variable {name} is not UTF-8"))?;
        match self.remaining.checked_sub(value.len()) {
            Some(remaining) => self.remaining = remaining,
            None => return Err(format!("variables add more than {MAX_FILLED} bytes")),
        }
        Ok(value)
    }
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}
