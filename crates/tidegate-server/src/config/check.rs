//! Does a tree have the shape of a policy? All that does not is told, and what does is kept.

use serde_json::{Map, Number, Value};

use super::problem::Found;
use super::shape::{Field, Grain, Shape, listed};
use super::source::Span;
use super::tree::{Entry, Kind, Name, Node, Scalar, Shown};

/// What is known about a tree after a look at its shape.
#[derive(Default, Debug)]
pub(super) struct Checked {
    pub(super) found: Vec<Found>,
    /// Fields that were left out for a reason that has been told.
    pub(super) broken: Vec<String>,
    /// Values that look like a secret under a wrong name.
    pub(super) secrets: Vec<Span>,
}

impl Checked {
    /// Has something been said about this field, or about something inside it?
    pub(super) fn is_broken(&self, field: &str) -> bool {
        let inside = |broken: &String| {
            let rest = broken.strip_prefix(field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.broken.iter().any(inside) || self.found.iter().any(|found| found.is_about(field))
    }

    /// The value in the shape, without what does not fit.
    pub(super) fn value(&mut self, node: &Node, shape: &Shape, field: &str) -> Value {
        self.fitting(node, shape, field, node.span).unwrap_or_else(|| placeholder(shape))
    }

    /// `around` is what to point at if the value is not there.
    fn fitting(&mut self, node: &Node, shape: &Shape, field: &str, around: Span) -> Option<Value> {
        match (&node.kind, shape) {
            (Kind::Unknown, _) => {
                self.broken.push(field.into());
                None
            }
            (Kind::Nothing, _) => {
                let name = last(field);
                let message = format!("{name} has no value; write one or leave it out");
                self.found.push(Found::new(around, field, message));
                None
            }
            (Kind::List(items), Shape::List(shape)) => Some(Value::Array(
                (0..).zip(items).map(|(i, item)| self.item(item, shape, field, i)).collect(),
            )),
            (Kind::Map(entries), Shape::Map(shape)) => {
                Some(Value::Object(self.entries(entries, shape, field)))
            }
            (Kind::Map(entries), Shape::Fields(fields)) => {
                Some(Value::Object(self.fields(node.span, entries, fields, field)))
            }
            (_, Shape::Either(shapes)) => self.either(node, shapes, field, around),
            (Kind::Scalar(scalar), shape) if fits(scalar, shape) => of_scalar(scalar, shape),
            _ => {
                self.found.push(Found::new(node.span, field, misfit(node, shape, field)));
                None
            }
        }
    }

    fn item(&mut self, item: &Node, shape: &Shape, field: &str, i: usize) -> Value {
        self.value(item, shape, &format!("{field}[{i}]"))
    }

    fn either(
        &mut self,
        node: &Node,
        shapes: &[Shape],
        field: &str,
        around: Span,
    ) -> Option<Value> {
        let like = |shape: &&Shape| match &node.kind {
            Kind::List(_) => matches!(shape, Shape::List(_)),
            Kind::Map(_) => matches!(shape, Shape::Map(_) | Shape::Fields(_)),
            Kind::Scalar(scalar) => fits(scalar, shape),
            Kind::Nothing | Kind::Unknown => true,
        };
        match shapes.iter().find(like) {
            Some(shape) => self.fitting(node, shape, field, around),
            None => {
                let message = misfit(node, &Shape::Either(shapes.to_vec()), field);
                self.found.push(Found::new(node.span, field, message));
                None
            }
        }
    }

    fn entries(&mut self, entries: &[Entry], shape: &Shape, field: &str) -> Map<String, Value> {
        let mut map = Map::new();
        for Entry { key, key_span, value } in entries {
            let name = format!("{field}.{key}");
            if let Some(value) = self.fitting(value, shape, &name, *key_span) {
                map.insert(key.clone(), value);
            }
        }
        map
    }

    fn fields(
        &mut self,
        whole: Span,
        entries: &[Entry],
        fields: &[Field],
        around: &str,
    ) -> Map<String, Value> {
        let mut map = Map::new();
        for Entry { key, key_span, value } in entries {
            let name = join(around, key);
            let Some(known) = fields.iter().find(|field| field.name == *key) else {
                let message = self.unknown(key, value, fields, around);
                self.found.push(Found::new(*key_span, &name, message));
                continue;
            };
            if let Some(value) = self.fitting(value, &known.shape, &name, *key_span) {
                map.insert(key.clone(), value);
            }
        }
        for field in fields.iter().filter(|field| field.needed) {
            if entries.iter().all(|entry| entry.key != field.name) {
                let name = join(around, &field.name);
                if self.broken.contains(&name) {
                    continue;
                }
                let message = format!("{} is missing; add it", field.name);
                self.found.push(Found::new(start(whole, entries), &name, message));
            }
        }
        map
    }

    fn unknown(&mut self, key: &str, value: &Node, fields: &[Field], around: &str) -> String {
        let name = Name(key);
        match tidegate::closest(key, fields.iter().map(|field| &*field.name)) {
            Some(meant) => {
                // So that it is not said to be missing as well.
                self.broken.push(join(around, meant));
                if super::mask::is_secret(meant) || meant == "store" {
                    self.secrets.push(value.span);
                }
                format!("unknown field {name}; did you mean {meant}?")
            }
            None => {
                let all: Vec<String> = fields.iter().map(|field| field.name.clone()).collect();
                format!("unknown field {name}; use {}", listed(&all))
            }
        }
    }
}

/// Where a map begins: at its first field.
fn start(whole: Span, entries: &[Entry]) -> Span {
    match entries.first() {
        Some(entry) if entry.key_span.is_within(&whole) => entry.key_span,
        _ => whole,
    }
}

fn join(around: &str, field: &str) -> String {
    if around.is_empty() { field.into() } else { format!("{around}.{field}") }
}

/// The name that a value goes by in a message: `limits` for `rules[0].limits`.
fn last(field: &str) -> &str {
    let name = field.rsplit('.').next().unwrap_or(field);
    match name {
        "" => "this",
        _ if name.ends_with(']') => "an entry",
        _ => name,
    }
}

fn fits(scalar: &Scalar, shape: &Shape) -> bool {
    of_scalar(scalar, shape).is_some()
}

fn of_scalar(scalar: &Scalar, shape: &Shape) -> Option<Value> {
    let text = &*scalar.text;
    match shape {
        // Whoever writes 007 where a text belongs means these three characters.
        Shape::Text => Some(Value::String(text.into())),
        Shape::Word(words) => {
            words.iter().find(|word| **word == *text).map(|word| Value::String(word.clone()))
        }
        _ if scalar.quoted => None,
        Shape::Bool => match text {
            "true" | "True" | "TRUE" => Some(Value::Bool(true)),
            "false" | "False" | "FALSE" => Some(Value::Bool(false)),
            _ => None,
        },
        Shape::Number(Grain::Whole) => {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let number: Option<u32> = if digits { text.parse().ok() } else { None };
            number.map(|number| Value::Number(number.into()))
        }
        Shape::Number(Grain::Any) => {
            let numeric = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
            let number: Option<f64> = if numeric { text.parse().ok() } else { None };
            number.and_then(Number::from_f64).map(Value::Number)
        }
        Shape::List(_) | Shape::Map(_) | Shape::Fields(_) | Shape::Either(_) => None,
    }
}

fn misfit(node: &Node, shape: &Shape, field: &str) -> String {
    let (name, wanted) = (last(field), shape.words());
    let given = match &node.kind {
        Kind::List(_) => "a list".into(),
        Kind::Map(_) => "a map".into(),
        Kind::Scalar(scalar) if scalar.shown == Shown::Filled => "what the variable holds".into(),
        Kind::Scalar(_) if super::mask::is_secret(field) || field == "store" => "a string".into(),
        Kind::Scalar(scalar) => Name(&scalar.text).to_string(),
        Kind::Nothing | Kind::Unknown => "nothing".into(),
    };
    let message = format!("{name} must be {wanted}, not {given}");
    match (&node.kind, shape) {
        (Kind::Scalar(_), Shape::List(item)) if matches!(**item, Shape::Text) => {
            format!("{message}; put it in brackets")
        }
        (Kind::Scalar(scalar), shape) if scalar.shown == Shown::Yes => {
            match meant_word(scalar, shape) {
                Some(meant) => format!("{message}; did you mean {meant}?"),
                None => message,
            }
        }
        _ => message,
    }
}

fn meant_word<'s>(scalar: &Scalar, shape: &'s Shape) -> Option<&'s str> {
    match shape {
        Shape::Word(words) => tidegate::closest(&scalar.text, words.iter().map(|word| &**word)),
        Shape::Bool => match &*scalar.text.to_ascii_lowercase() {
            "yes" | "on" | "y" | "1" | "true" => Some("true"),
            "no" | "off" | "n" | "0" | "false" => Some("false"),
            _ => None,
        },
        Shape::Either(shapes) => shapes.iter().find_map(|shape| meant_word(scalar, shape)),
        _ => None,
    }
}

/// Keeps the place of what did not fit, so that what follows keeps its number.
fn placeholder(shape: &Shape) -> Value {
    match shape {
        Shape::Text | Shape::Word(_) | Shape::Either(_) => Value::String(String::new()),
        Shape::Bool => Value::Bool(false),
        Shape::Number(_) => Value::Number(0.into()),
        Shape::List(_) => Value::Array(Vec::new()),
        Shape::Map(_) | Shape::Fields(_) => Value::Object(Map::new()),
    }
}
