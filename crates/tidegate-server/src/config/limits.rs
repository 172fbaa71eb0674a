//! Limits in a policy file, and what is wrong with them.

use std::ops::Range;

use tidegate::{InvalidRule, Limit, Rule};

/// Something wrong with one field of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// The field, from the rule on: `limits[0]`.
    pub(crate) field: String,
    /// The bytes of its text that are at fault; all of it if nothing is said.
    pub(crate) part: Option<Range<usize>>,
    /// What the field holds, for the case that its text cannot be shown.
    pub(crate) what: &'static str,
    pub(crate) message: String,
    /// Another field that it clashes with.
    pub(crate) first: Option<String>,
}

impl Fault {
    /// The most faults that are looked for in one rule.
    pub(crate) const MOST: usize = 200;

    pub(crate) fn new(field: &str, what: &'static str, message: impl ToString) -> Self {
        Self { field: field.into(), part: None, what, message: message.to_string(), first: None }
    }

    #[must_use]
    pub(crate) fn with_first(self, field: &str) -> Self {
        Self { first: Some(field.into()), ..self }
    }
}

/// Reads limits; faults go by `field`.
pub(crate) fn read(texts: &[String], field: &str, faults: &mut Vec<Fault>) -> Vec<Limit> {
    let mut limits = Vec::with_capacity(texts.len().min(Rule::MAX_LIMITS));
    // More than a rule may have are told by their number.
    for (i, text) in texts.iter().enumerate().take(Rule::MAX_LIMITS) {
        let field = || format!("{field}[{i}]");
        let fault = match text.parse::<Limit>() {
            Err(error) => {
                Fault { part: Some(error.position()), ..Fault::new(&field(), "limit", error) }
            }
            Ok(limit) => match unknown_zone(&limit) {
                None => {
                    limits.push(limit);
                    continue;
                }
                Some((zone, error)) => Fault {
                    part: text.rfind(&*zone).map(|at| at..at + zone.len()),
                    ..Fault::new(&field(), "limit", error)
                },
            },
        };
        if faults.len() < Fault::MOST {
            faults.push(fault);
        }
    }
    limits
}

/// The zone of a limit, if there is no such zone.
fn unknown_zone(limit: &Limit) -> Option<(Box<str>, InvalidRule)> {
    limit.calendar()?.1?;
    match Rule::new("zone", [limit.clone()]) {
        Err(InvalidRule::Zone(zone)) => Some((zone.clone(), InvalidRule::Zone(zone))),
        _ => None,
    }
}
