//! What went wrong, as `application/problem+json`.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use tidegate::Refusal;
use tidegate_tower::headers::RateLimitHeaders;
use tidegate_tower::problem::{self, Quota};

use crate::service::{Answer, Failure};

/// An answer that is no decision.
#[derive(Clone, Debug)]
pub struct Problem(Box<ProblemBody>);

/// What is told about a problem.
#[derive(Clone, Serialize, JsonSchema, Debug)]
pub struct ProblemBody {
    /// What kind of problem it is; `about:blank` says no more than the status.
    #[serde(rename = "type")]
    kind: String,
    /// The status in words.
    title: String,
    /// The status.
    status: u16,
    /// What happened, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// The field that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The policies that denied it.
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<String>,
}

impl Problem {
    /// The media type.
    pub const CONTENT_TYPE: &'static str = problem::CONTENT_TYPE;

    /// A problem of this status.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self(Box::new(ProblemBody {
            kind: "about:blank".into(),
            title: status.canonical_reason().unwrap_or("Error").into(),
            status: status.as_u16(),
            detail: Some(detail.into()),
            field: None,
            violated_policies: Vec::new(),
        }))
    }

    /// A field that is wrong.
    pub fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail).about(Some(field.into()))
    }

    fn about(mut self, field: Option<String>) -> Self {
        self.0.field = field;
        self
    }

    /// What is told.
    pub fn body(&self) -> &ProblemBody {
        &self.0
    }

    /// A request that was denied.
    pub fn denied(answer: &Answer, status: StatusCode) -> Self {
        let decision = &answer.decision;
        let quota = Quota::of(decision);
        let violated = answer.verdicts().filter(|(_, verdict)| !verdict.allowed);
        Self(Box::new(ProblemBody {
            kind: quota.kind().into(),
            title: quota.title().into(),
            status: status.as_u16(),
            detail: None,
            field: None,
            violated_policies: violated.map(|(limit, _)| limit.policy().to_string()).collect(),
        }))
    }

    /// Its status, and what happened: the detail, or else the title.
    pub(crate) fn told(self) -> (StatusCode, String) {
        (self.status(), self.0.detail.unwrap_or(self.0.title))
    }

    /// The field that is wrong.
    pub(crate) fn wrong_field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for Problem {
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

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let field_of = |failure: &Failure| match failure {
            Failure::Limit(_) => Some("limit"),
            Failure::Refused(refusal) => match refusal {
                Refusal::UnknownRule(_) | Refusal::ConcurrencyNeedsHold => Some("rule"),
                Refusal::KeyTooLong => Some("key"),
                Refusal::Cost(_) | Refusal::EmptyHold => Some("cost"),
                Refusal::IdLength(_) | Refusal::IdReused => Some("id"),
                Refusal::UnknownHold | Refusal::AlreadySettled => Some("reservation"),
                Refusal::HoldLength => Some("ttl_ms"),
                Refusal::UnknownZone(_) => Some("limit"),
                Refusal::ChargeCount(_) => Some("checks"),
                _ => None,
            },
            Failure::NoAdhoc => Some("limit"),
            Failure::NoKey => Some("key"),
            Failure::NoAnswer(_) | Failure::Throttle => None,
        };
        let status = match &failure {
            Failure::NoAnswer(_) => StatusCode::SERVICE_UNAVAILABLE,
            Failure::NoAdhoc => StatusCode::FORBIDDEN,
            Failure::Refused(Refusal::UnknownRule(_) | Refusal::UnknownHold) => {
                StatusCode::NOT_FOUND
            }
            Failure::Refused(Refusal::IdReused | Refusal::AlreadySettled) => StatusCode::CONFLICT,
            Failure::Refused(_) | Failure::Limit(_) | Failure::Throttle | Failure::NoKey => {
                StatusCode::BAD_REQUEST
            }
        };
        let field = field_of(&failure).map(String::from);
        Self::new(status, failure.to_string()).about(field)
    }
}

/// The headers that tell a client its limits; none where no limit applies.
pub(super) fn limit_headers(answer: &Answer) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    if !answer.limits.is_empty() {
        RateLimitHeaders::new(answer.verdicts(), &answer.decision).write(&mut headers);
    }
    headers
}

/// The same without those that tell a client to go away.
pub(super) fn standing_headers(answer: &Answer) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    if !answer.limits.is_empty() {
        RateLimitHeaders::new(answer.verdicts(), &answer.decision).write_standing(&mut headers);
    }
    headers
}
