//! What a descriptor is limited to: `rate_limit` as theirs, `limit` or `limits` as ours.

use tidegate::{Limit, Rule};

use super::Unit;
use super::fields::{Fields, listed};
use super::load::Notes;
use crate::config::source::{Sources, Span};
use crate::config::tree::{Kind, Name, Node};
use crate::config::{limits as notation, place};

/// What a descriptor is limited to.
#[derive(Default, Debug)]
pub(super) struct Limited {
    /// None if it is unlimited.
    pub(super) limits: Vec<Limit>,
    pub(super) current_limit: Option<(u32, Unit)>,
    pub(super) name: Option<Box<str>>,
    /// The names of those that it replaces, and where they stand.
    pub(super) replaces: Vec<(Box<str>, Span)>,
}

/// The fields of which a descriptor has at most one.
const WAYS: [&str; 3] = ["rate_limit", "limit", "limits"];

/// The limits of a descriptor, if it has any. They are nothing worth if something was wrong.
pub(super) fn read(
    fields: &Fields<'_>,
    node: &Node,
    sources: &Sources,
    notes: &mut Notes,
) -> Option<Limited> {
    let given: Vec<&str> = WAYS.into_iter().filter(|way| fields.entry(way).is_some()).collect();
    if let [first, second, ..] = *given {
        let span = fields.name_span(second).unwrap_or(fields.start);
        let message = format!("{second} beside {first}; use one of them");
        notes.wrong(span, &fields.path(second), message);
    }
    match *given.first()? {
        "rate_limit" => theirs(fields, notes),
        way => Some(ours(way, fields, node, sources, notes)),
    }
}

fn theirs(fields: &Fields<'_>, notes: &mut Notes) -> Option<Limited> {
    let entry = fields.entry("rate_limit")?;
    let inner = Fields::of(&entry.value, fields.path("rate_limit"), notes)?;
    let meant = inner.only(&["unit", "requests_per_unit", "unlimited", "name", "replaces"], notes);
    let unlimited = inner.flag("unlimited", notes).unwrap_or(false);
    let requests = inner.number("requests_per_unit", notes);
    let mut limited = named(&inner, notes);
    let unit = inner.text("unit", notes).filter(|unit| !unit.text.is_empty());
    let known = unit.and_then(|unit| Unit::from_name(unit.text));
    match (unit, known) {
        (Some(unit), None) => {
            let names = Unit::ALL.map(Unit::name);
            let advice = match tidegate::closest(&unit.text.to_lowercase(), names.into_iter()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("use {}", listed(&names)),
            };
            let message = format!("unknown unit {}; {advice}", Name(unit.text));
            notes.wrong(unit.span, &inner.path("unit"), message);
        }
        (Some(unit), Some(_)) if unlimited => {
            let message = "a unit beside unlimited; remove one of them";
            notes.wrong(unit.span, &inner.path("unit"), message);
        }
        (None, _) if unlimited || meant.contains(&"unit") => {}
        (None, _) if inner.entry("unit").is_none_or(|unit| unit.value.is_text()) => {
            let message =
                format!("unit is missing; add one of {}", Unit::ALL.map(Unit::name).join(", "));
            notes.wrong(inner.start, &inner.path("unit"), message);
        }
        _ => {}
    }
    if unlimited {
        if let Some(span) = requests.and_then(|_| inner.name_span("requests_per_unit")) {
            let message = "requests_per_unit has no effect beside unlimited; remove one of them";
            notes.odd(span, &inner.path("requests_per_unit"), message);
        }
        return Some(limited);
    }
    if inner.entry("requests_per_unit").is_none() {
        let message = "without requests_per_unit nothing passes; add it, or write 0";
        notes.odd(inner.start, &inner.path("requests_per_unit"), message);
    }
    let current = (requests.unwrap_or(0), known?);
    match current.1.limit(current.0) {
        Ok(limit) => limited.limits.push(limit),
        Err(error) => notes.wrong(inner.start, &fields.path("rate_limit"), error.to_string()),
    }
    limited.current_limit = Some(current);
    Some(limited)
}

fn ours(
    way: &str,
    fields: &Fields<'_>,
    node: &Node,
    sources: &Sources,
    notes: &mut Notes,
) -> Limited {
    let mut faults = Vec::new();
    let mut limits = match way {
        "limit" => {
            let text = fields.text("limit", notes);
            notation::read(&Vec::from_iter(text.map(|text| text.text.into())), "limit", &mut faults)
        }
        _ => notation::read(&texts(fields, notes), "limits", &mut faults),
    };
    for mut fault in faults {
        if way == "limit" {
            fault.field = "limit".into();
        }
        notes.add(place::found(fault, node, &fields.around, sources));
    }
    let span = fields.name_span(way).unwrap_or(fields.start);
    if limits.iter().any(Limit::is_queue) {
        let message = "Envoy does not wait: a queue lets pass at once what fits into it";
        notes.odd(span, &fields.path(way), message);
    }
    if limits.iter().any(|limit| limit.lease().is_some()) {
        let message =
            "concurrency is left out: nobody can tell when a request of Envoy's has ended";
        notes.odd(span, &fields.path(way), message);
        limits.retain(|limit| limit.lease().is_none());
    }
    Limited { limits, ..named(fields, notes) }
}

fn texts(fields: &Fields<'_>, notes: &mut Notes) -> Vec<String> {
    let before = notes.wrong_count();
    let items = fields.list("limits", notes);
    if notes.wrong_count() > before {
        return Vec::new();
    }
    if items.is_empty() || items.len() > Rule::MAX_LIMITS {
        let span = fields.name_span("limits").unwrap_or(fields.start);
        let message = format!("{} limits; use 1 to {}", items.len(), Rule::MAX_LIMITS);
        notes.wrong(span, &fields.path("limits"), message);
        return Vec::new();
    }
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        match &item.kind {
            Kind::Scalar(scalar) => texts.push(scalar.text.clone()),
            _ => {
                fields.misfit("limits", "a list of text", item, notes);
                // The others keep their numbers.
                texts.push("1/s".into());
            }
        }
    }
    texts
}

/// The name of a limit, and those that it replaces.
fn named(fields: &Fields<'_>, notes: &mut Notes) -> Limited {
    let name = fields.text("name", notes).map(|name| name.text).filter(|name| !name.is_empty());
    let mut limited = Limited { name: name.map(Box::from), ..Limited::default() };
    for (i, item) in fields.list("replaces", notes).iter().enumerate() {
        let path = format!("{}[{i}]", fields.path("replaces"));
        let Some(inner) = Fields::of(item, path, notes) else { continue };
        inner.only(&["name"], notes);
        let Some(other) = inner.text("name", notes).filter(|other| !other.text.is_empty()) else {
            notes.wrong(inner.start, &inner.path("name"), "which one? replaces needs a name");
            continue;
        };
        if name == Some(other.text) {
            let message = "a limit cannot replace itself; name another one";
            notes.wrong(other.span, &inner.path("name"), message);
        }
        limited.replaces.push((other.text.into(), other.span));
    }
    limited
}
