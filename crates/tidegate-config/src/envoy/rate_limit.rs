//! The limits of a descriptor: `rate_limit` as in envoyproxy/ratelimit, or `limit` and `limits` in
//! the notation of the library.

use tidegate::{Limit, Rule};

use super::diagnostics::Diagnostics;
use super::fields::{EnvoyFields, FieldLevel, LocatedFields};
use super::unit::{EnvoyUnit, EnvoyWindows};
use crate::errors::sources::{SourceFiles, SourceSpan};
use crate::limits as notation;
use crate::parse::expected::listed;
use crate::parse::locate;
use crate::parse::tree::QuotedText;

/// The limits of a descriptor.
#[derive(Default, Debug)]
pub(crate) struct ParsedLimit {
    /// Empty if the descriptor is `unlimited`.
    pub(crate) limits: Vec<Limit>,
    pub(crate) current_limit: Option<(u32, EnvoyUnit)>,
    pub(crate) name: Option<Box<str>>,
    /// The names of the limits that it replaces, and their positions.
    pub(crate) replaces: Vec<(Box<str>, SourceSpan)>,
}

/// The fields of which a descriptor has at most one.
const LIMIT_FORMS: [&str; 3] = ["rate_limit", "limit", "limits"];

/// Parses the limits of a descriptor; `None` if it has none. After an error they are incomplete.
pub(crate) fn read(
    fields: &LocatedFields<'_>,
    windows: EnvoyWindows,
    sources: &SourceFiles,
    diagnostics: &mut Diagnostics,
) -> Option<ParsedLimit> {
    let given: Vec<&str> =
        LIMIT_FORMS.into_iter().filter(|way| fields.entry(way).is_some()).collect();
    if let [first, second, ..] = *given {
        let span = fields.name_span(second);
        let message = format!("{second} and {first} exclude each other; use one");
        diagnostics.error(span, &fields.path(second), message);
    }
    match *given.first()? {
        "rate_limit" => parse_rate_limit(fields, windows, diagnostics),
        way => Some(parse_notation(way, fields, sources, diagnostics)),
    }
}

fn parse_rate_limit(
    fields: &LocatedFields<'_>,
    windows: EnvoyWindows,
    diagnostics: &mut Diagnostics,
) -> Option<ParsedLimit> {
    let entry = fields.entry("rate_limit")?;
    let path = fields.path("rate_limit");
    let inner = LocatedFields::of(&entry.value, path, FieldLevel::RateLimit, diagnostics)?;
    let EnvoyFields { unit, requests_per_unit: requests, unlimited, .. } = &inner.values;
    let mut limited = named(&inner, diagnostics);
    let span = inner.value_span("unit").filter(|_| !unit.is_empty());
    let known = EnvoyUnit::from_name(unit);
    match (span, known) {
        (Some(span), None) => {
            let names = EnvoyUnit::ALL.map(EnvoyUnit::name);
            let advice = match tidegate::did_you_mean(&unit.to_lowercase(), names.into_iter()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("use {}", listed(&names.map(String::from))),
            };
            let message = format!("unknown unit {}; {advice}", QuotedText(unit));
            diagnostics.error(span, &inner.path("unit"), message);
        }
        (Some(span), Some(_)) if *unlimited => {
            let message = "unit and unlimited exclude each other; remove one";
            diagnostics.error(span, &inner.path("unit"), message);
        }
        (None, _) if !unlimited && !inner.is_broken("unit") => {
            let message = format!(
                "missing unit; use one of {}",
                EnvoyUnit::ALL.map(EnvoyUnit::name).join(", ")
            );
            diagnostics.error(inner.start, &inner.path("unit"), message);
        }
        _ => {}
    }
    if *unlimited {
        if requests.is_some() {
            let span = inner.name_span("requests_per_unit");
            let message = "requests_per_unit and unlimited exclude each other; remove one";
            diagnostics.warn(span, &inner.path("requests_per_unit"), message);
        }
        return Some(limited);
    }
    if inner.entry("requests_per_unit").is_none() {
        let message =
            "requests_per_unit is missing and counts as 0, which denies everything; set it";
        diagnostics.warn(inner.start, &inner.path("requests_per_unit"), message);
    }
    let current = (requests.unwrap_or(0), known?);
    match windows.limit(current.1, current.0) {
        Ok(limit) => limited.limits.push(limit),
        Err(error) => diagnostics.error(inner.start, &fields.path("rate_limit"), error.to_string()),
    }
    limited.current_limit = Some(current);
    Some(limited)
}

fn parse_notation(
    way: &str,
    fields: &LocatedFields<'_>,
    sources: &SourceFiles,
    diagnostics: &mut Diagnostics,
) -> ParsedLimit {
    let mut faults = Vec::new();
    let mut limits = match &fields.values.limit {
        Some(limit) if way == "limit" => {
            notation::read(std::slice::from_ref(limit), "limit", &mut faults)
        }
        _ => notation::read(counted(fields, diagnostics), "limits", &mut faults),
    };
    faults.retain(|fault| !fields.is_broken(&fault.field));
    for mut fault in faults {
        if way == "limit" {
            fault.field = "limit".into();
        }
        diagnostics.errors.push(locate::found(fault, fields.node, &fields.around, sources));
    }
    let span = fields.name_span(way);
    if limits.iter().any(Limit::is_queue) {
        let message = "Envoy cannot delay requests: a queue admits at once what fits";
        diagnostics.warn(span, &fields.path(way), message);
    }
    if limits.iter().any(|limit| limit.lease().is_some()) {
        let message =
            "concurrency limits are not supported for Envoy: the end of a request is unknown";
        diagnostics.warn(span, &fields.path(way), message);
        limits.retain(|limit| limit.lease().is_none());
    }
    ParsedLimit { limits, ..named(fields, diagnostics) }
}

/// The limits of `limits`, if their number is valid.
fn counted<'f>(fields: &'f LocatedFields<'_>, diagnostics: &mut Diagnostics) -> &'f [String] {
    let limits = &*fields.values.limits;
    if (1..=Rule::MAX_LIMITS).contains(&limits.len()) {
        return limits;
    }
    if !fields.is_broken("limits") {
        let message = format!("{} limits; use 1 to {}", limits.len(), Rule::MAX_LIMITS);
        diagnostics.error(fields.name_span("limits"), &fields.path("limits"), message);
    }
    &[]
}

/// The name of a limit, and the names of the limits that it replaces.
fn named(fields: &LocatedFields<'_>, diagnostics: &mut Diagnostics) -> ParsedLimit {
    let name = Some(&*fields.values.name).filter(|name| !name.is_empty());
    let mut limited = ParsedLimit { name: name.map(Box::from), ..ParsedLimit::default() };
    for (i, item) in fields.items("replaces").iter().enumerate() {
        let path = format!("{}[{i}]", fields.path("replaces"));
        let Some(inner) = LocatedFields::of(item, path, FieldLevel::Replaces, diagnostics) else {
            continue;
        };
        let other = &*inner.values.name;
        let Some(span) = inner.value_span("name").filter(|_| !other.is_empty()) else {
            if !inner.is_broken("name") {
                diagnostics.error(inner.start, &inner.path("name"), "replaces needs a name");
            }
            continue;
        };
        if name == Some(other) {
            let message = "a limit cannot replace itself; name another one";
            diagnostics.error(span, &inner.path("name"), message);
        }
        limited.replaces.push((other.into(), span));
    }
    limited
}
