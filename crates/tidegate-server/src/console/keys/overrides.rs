//! The form of a temporary override.

use tidegate::simulate::{Candidate, ParseCandidateError};
use tidegate::{Micros, Span};
use tidegate_config::{OneOrMany, OverrideFile};

use crate::policy::OverrideEnd;

/// Upper bound of the duration.
const MAX_DURATION: Micros = Micros::from_secs(31 * 86_400);

/// Parses the form: limits joined with ` + `, and a duration.
pub(super) fn read(
    key: &[String],
    limits: &str,
    duration: &str,
) -> Result<(OverrideFile, OverrideEnd), String> {
    let invalid =
        |error: ParseCandidateError| format!("{error}\n{}", error.underline(limits.trim()));
    let candidate: Candidate = limits.trim().parse().map_err(invalid)?;
    let span: Span = duration.trim().parse().map_err(|error| format!("duration: {error}"))?;
    let span = span.length().filter(|span| *span > Micros::ZERO && *span <= MAX_DURATION);
    let span = span.ok_or("duration: use 1us to 31d")?;
    let one = OverrideFile {
        key: OneOrMany::Many(key.to_vec()),
        limits: candidate.limits().map(ToString::to_string).collect(),
        until: None,
    };
    Ok((one, OverrideEnd::After(span)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_has_limits_and_a_duration() {
        let (one, end) = read(&["k".into()], "7/1s + 100/h", "1h").unwrap();
        assert_eq!(one.limits, ["7/s", "100/h"]);
        assert_eq!(end, OverrideEnd::After(Micros::from_secs(3_600)));
    }

    #[test]
    fn an_invalid_override_is_refused_with_a_reason() {
        for (limits, duration, message) in [
            ("5/parsec", "1h", "unknown unit"),
            ("5/s", "", "duration"),
            ("5/s", "32d", "use 1us to 31d"),
            ("5/s", "1month", "duration"),
            ("", "1h", "write a limit like 100/s"),
        ] {
            let error = read(&["k".into()], limits, duration).unwrap_err();
            assert!(error.contains(message), "{limits} {duration}: {error}");
        }
    }
}
