//! Errors as `application/problem+json`, and rate limit headers.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use tidegate::{Refusal, SystemClock};
use tidegate_tower::headers::RateLimitHeaders;
use tidegate_tower::problem::{self, QuotaProblem};

use crate::check::{CheckDecision, CheckError};

/// An error response: `application/problem+json` (RFC 9457).
#[derive(Clone, Debug)]
pub(crate) struct HttpProblem(Box<ProblemBody>);

/// Problem details (RFC 9457).
#[derive(Clone, Serialize, JsonSchema, Debug)]
pub(crate) struct ProblemBody {
    /// Problem type; `about:blank` means the status says it all.
    #[serde(rename = "type")]
    kind: String,
    /// Reason phrase of the status.
    title: String,
    /// Status code.
    status: u16,
    /// What happened and how to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// Field that is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// Limits that denied the request.
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<String>,
}

impl HttpProblem {
    /// Media type of the body.
    pub(crate) const CONTENT_TYPE: &'static str = problem::CONTENT_TYPE;

    /// A problem with this status and detail.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self(Box::new(ProblemBody {
            kind: "about:blank".into(),
            title: status.canonical_reason().unwrap_or("Error").into(),
            status: status.as_u16(),
            detail: Some(detail.into()),
            field: None,
            violated_policies: Vec::new(),
        }))
    }

    /// An invalid field, with status 400.
    pub(crate) fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail).with_field(Some(field.into()))
    }

    fn with_field(mut self, field: Option<String>) -> Self {
        self.0.field = field;
        self
    }

    /// The body as it is serialised.
    pub(crate) fn body(&self) -> &ProblemBody {
        &self.0
    }

    /// A denied request, with the limits that denied it, or the part of the key that is missing.
    pub(crate) fn denied(checked: &CheckDecision, status: StatusCode) -> Self {
        if let Some(missing) = &checked.missing_key {
            return Self::new(status, missing.to_string());
        }
        let quota = QuotaProblem::of(&checked.decision);
        let violated = checked.named_verdicts().filter(|(_, _, verdict)| !verdict.allowed);
        Self(Box::new(ProblemBody {
            kind: quota.kind().into(),
            title: quota.title().into(),
            status: status.as_u16(),
            detail: None,
            field: None,
            violated_policies: violated.map(|(name, ..)| name.into_owned()).collect(),
        }))
    }

    /// Status and detail; the title if there is no detail.
    pub(crate) fn into_parts(self) -> (StatusCode, String) {
        (self.status(), self.0.detail.unwrap_or(self.0.title))
    }

    /// The invalid field, if the problem is about one.
    pub(crate) fn wrong_field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for HttpProblem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(self.body()).unwrap_or_default();
        let content_type = (CONTENT_TYPE, HeaderValue::from_static(Self::CONTENT_TYPE));
        let mut response = (self.status(), [content_type], body).into_response();
        if self.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<CheckError> for HttpProblem {
    fn from(error: CheckError) -> Self {
        let field_of = |error: &CheckError| match error {
            CheckError::Limit(_) => Some("limit"),
            CheckError::Refused(refusal) => match refusal {
                Refusal::UnknownRule { .. } | Refusal::ConcurrencyNeedsHold => Some("rule"),
                Refusal::UnknownPlan(_) => Some("plan"),
                Refusal::KeyTooLong => Some("key"),
                Refusal::Cost(_) | Refusal::EmptyHold | Refusal::DifferentCosts(_) => Some("cost"),
                Refusal::NotHeld(_) | Refusal::CostOfSeveral(_) | Refusal::QueueExtended(_) => {
                    Some("costs")
                }
                Refusal::NothingToHold => Some("rule"),
                Refusal::IdLength(_) | Refusal::IdReused => Some("id"),
                Refusal::UnknownHold | Refusal::AlreadySettled | Refusal::HoldExpired => {
                    Some("reservation")
                }
                Refusal::MinCost => Some("min"),
                Refusal::HoldLength => Some("ttl_ms"),
                Refusal::UnknownZone(_) => Some("limit"),
                Refusal::ChargeCount(_) => Some("checks"),
                _ => None,
            },
            CheckError::AdhocDisabled => Some("limit"),
            CheckError::MissingKey => Some("key"),
            CheckError::MissingModel(_) | CheckError::UnknownModel(_) => Some("model"),
            CheckError::Store(_) | CheckError::Throttle => None,
        };
        let status = match &error {
            CheckError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
            CheckError::AdhocDisabled => StatusCode::FORBIDDEN,
            CheckError::Refused(
                Refusal::UnknownRule { .. } | Refusal::UnknownPlan(_) | Refusal::UnknownHold,
            ) => StatusCode::NOT_FOUND,
            CheckError::Refused(
                Refusal::IdReused | Refusal::AlreadySettled | Refusal::HoldExpired,
            ) => StatusCode::CONFLICT,
            CheckError::Refused(_)
            | CheckError::Limit(_)
            | CheckError::Throttle
            | CheckError::MissingKey
            | CheckError::MissingModel(_)
            | CheckError::UnknownModel(_) => StatusCode::BAD_REQUEST,
        };
        let field = field_of(&error).map(String::from);
        Self::new(status, error.to_string()).with_field(field)
    }
}

/// Rate limit headers of a decision; none if no limit applies.
pub(crate) fn limit_headers(checked: &CheckDecision) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    headers_of(checked).write(&mut headers);
    headers
}

/// The same without `Retry-After`, for calls that are never denied.
pub(crate) fn standing_headers(checked: &CheckDecision) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    headers_of(checked).write_limits(&mut headers);
    headers
}

fn headers_of(checked: &CheckDecision) -> RateLimitHeaders {
    let CheckDecision { decision, limits, headers, .. } = checked;
    RateLimitHeaders::in_style(*headers, &SystemClock, decision, limits)
}
