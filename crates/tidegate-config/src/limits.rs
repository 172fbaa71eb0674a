//! Limits in the notation of the library.

use tidegate::{InvalidRule, Limit, Rule};

use crate::errors::field_error::FieldError;

/// Parses limits. `field` is the path of the list.
pub(crate) fn read(texts: &[String], field: &str, faults: &mut Vec<FieldError>) -> Vec<Limit> {
    let mut limits = Vec::with_capacity(texts.len().min(Rule::MAX_LIMITS));
    // Limits above the maximum are reported by their number only, elsewhere.
    for (i, text) in texts.iter().enumerate().take(Rule::MAX_LIMITS) {
        let field = || format!("{field}[{i}]");
        let fault = match text.parse::<Limit>() {
            Err(error) => FieldError {
                part: Some(error.position()),
                ..FieldError::new(&field(), "limit", error)
            },
            Ok(limit) => match unknown_zone(&limit) {
                None => {
                    limits.push(limit);
                    continue;
                }
                Some((zone, error)) => FieldError {
                    part: text.rfind(&*zone).map(|at| at..at + zone.len()),
                    ..FieldError::new(&field(), "limit", error)
                },
            },
        };
        if faults.len() < FieldError::MAX_PER_RULE {
            faults.push(fault);
        }
    }
    limits
}

/// The time zone of a limit, if it is unknown.
fn unknown_zone(limit: &Limit) -> Option<(Box<str>, InvalidRule)> {
    limit.calendar()?.1?;
    match Rule::new("zone", [limit.clone()]) {
        Err(InvalidRule::Zone(zone)) => Some((zone.clone(), InvalidRule::Zone(zone))),
        _ => None,
    }
}
