//! Problem details in JSON (RFC 9457) for denied requests. Imports no other module of this crate.

use std::fmt::Write;

use http::StatusCode;
use tidegate::{Decision, Source};

/// The media type of a problem body.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// The problem types that draft-ietf-httpapi-ratelimit-headers registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuotaProblem {
    /// A limit was reached.
    Exceeded,
    /// The fallback denied the request: the store is unavailable and the capacity is reduced.
    Reduced,
}

impl QuotaProblem {
    /// The problem type of a denial.
    pub fn of(decision: &Decision) -> Self {
        if decision.source == Source::Fallback { Self::Reduced } else { Self::Exceeded }
    }

    /// The URI of the problem type.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Exceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::Reduced => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
        }
    }

    /// The title that the draft registers for it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Exceeded => "Request cannot be satisfied as assigned quota has been exceeded",
            Self::Reduced => {
                "Request cannot be satisfied due to temporary server capacity constraints"
            }
        }
    }
}

/// A denial by the limits named in `violated`. Characters that would need escapes are left out;
/// rule names have none.
pub(crate) fn quota(quota: QuotaProblem, status: StatusCode, violated: &[&str]) -> String {
    let mut body = head(quota.kind(), quota.title(), status);
    for (i, name) in violated.iter().enumerate() {
        body.push_str(if i == 0 { ",\"violated-policies\":[\"" } else { ",\"" });
        body.extend(name.chars().filter(|c| !c.is_control() && !matches!(c, '"' | '\\')));
        body.push('"');
    }
    body.push_str(if violated.is_empty() { "}" } else { "]}" });
    body
}

/// A problem without a registered type. `detail` must not need escapes.
pub(crate) fn plain(status: StatusCode, detail: &'static str) -> String {
    let mut body = head("about:blank", status.canonical_reason().unwrap_or("Error"), status);
    // Writing to a string cannot fail.
    let _ = write!(body, ",\"detail\":\"{detail}\"}}");
    body
}

fn head(kind: &str, title: &str, status: StatusCode) -> String {
    format!("{{\"type\":\"{kind}\",\"title\":\"{title}\",\"status\":{}", status.as_u16())
}
