//! Problems in JSON (RFC 9457): what a client is told that did not pass.

use std::fmt::Write;

use http::StatusCode;
use tidegate::{Decision, Source};

/// The media type.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// The kinds of problems that draft-ietf-httpapi-ratelimit-headers registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quota {
    /// A limit was reached.
    Exceeded,
    /// There is less than usual for everybody: the store does not answer.
    Reduced,
}

impl Quota {
    /// What it is about a denial.
    pub fn of(decision: &Decision) -> Self {
        if decision.source == Source::Fallback { Self::Reduced } else { Self::Exceeded }
    }

    /// The address that stands for it.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Exceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::Reduced => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
        }
    }

    /// What it is in words.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Exceeded => "Request cannot be satisfied as assigned quota has been exceeded",
            Self::Reduced => {
                "Request cannot be satisfied due to temporary server capacity constraints"
            }
        }
    }
}

/// A limit was reached: these denied it. Their names need no escaping: those of rules are plain.
pub(crate) fn quota(quota: Quota, status: StatusCode, violated: &[&str]) -> String {
    let mut body = head(quota.kind(), quota.title(), status);
    for (i, name) in violated.iter().enumerate() {
        body.push_str(if i == 0 { ",\"violated-policies\":[\"" } else { ",\"" });
        body.extend(name.chars().filter(|c| !c.is_control() && !matches!(c, '"' | '\\')));
        body.push('"');
    }
    body.push_str(if violated.is_empty() { "}" } else { "]}" });
    body
}

/// Another problem, in words that need no escaping.
pub(crate) fn plain(status: StatusCode, detail: &'static str) -> String {
    let mut body = head("about:blank", status.canonical_reason().unwrap_or("Error"), status);
    // Writing to a string cannot fail.
    let _ = write!(body, ",\"detail\":\"{detail}\"}}");
    body
}

fn head(kind: &str, title: &str, status: StatusCode) -> String {
    format!("{{\"type\":\"{kind}\",\"title\":\"{title}\",\"status\":{}", status.as_u16())
}
