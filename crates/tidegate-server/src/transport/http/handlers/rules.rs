//! `/v1/rules`: list, show, set and delete rules.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{ETAG, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;

use crate::policy::{CountsOnDelete, ListedRule, PutCondition, PutResult, RuleChangeError, Stamp};
use crate::transport::auth::AccessLevel;
use crate::transport::http::problem::HttpProblem;
use crate::transport::http::read_body::{ExpectedContent, read_bytes};
use crate::transport::http::response;
use crate::transport::http::state::AppState;
use tidegate_config::RuleFile;

/// All rules.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct RulesBody {
    /// Rules in evaluation order.
    rules: Vec<RuleBody>,
}

/// A rule and its origin.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct RuleBody {
    /// The rule.
    #[serde(flatten)]
    rule: RuleFile,
    /// `file` or `runtime`.
    origin: &'static str,
}

impl From<ListedRule> for RuleBody {
    fn from(listed: ListedRule) -> Self {
        Self { rule: listed.file, origin: listed.origin.name() }
    }
}

type RulePath = Result<Path<String>, PathRejection>;

/// `GET /v1/rules`
pub(crate) async fn list(
    State(app): State<AppState>,
    headers: HeaderMap,
) -> Result<Response, HttpProblem> {
    app.admit(AccessLevel::Check, &headers)?;
    let rules = app.policies.rules().into_iter().map(RuleBody::from).collect();
    Ok(response::ok(&RulesBody { rules }))
}

/// `GET /v1/rules/{name}`
pub(crate) async fn show(
    State(app): State<AppState>,
    name: RulePath,
    headers: HeaderMap,
) -> Result<Response, HttpProblem> {
    app.admit(AccessLevel::Check, &headers)?;
    let found = app.policies.rule(&decoded(name)?).ok_or(RuleChangeError::Unknown)?;
    Ok(response::json(StatusCode::OK, etag(found.stamp), &RuleBody::from(found)))
}

/// `PUT /v1/rules/{name}`
pub(crate) async fn put(
    State(app): State<AppState>,
    name: RulePath,
    request: Request,
) -> Result<Response, HttpProblem> {
    let (parts, body) = request.into_parts();
    let by = app.admit_change(&parts)?;
    let name = decoded(name)?;
    let only_if = condition(&parts.headers)?;
    let body = read_bytes(Request::from_parts(parts, body), ExpectedContent::Json).await?;
    let mut rule = RuleFile::from_json(&body).map_err(RuleChangeError::Faulty)?;
    if rule.name.is_empty() {
        rule.name = name;
    } else if rule.name != name {
        return Err(HttpProblem::field("name", "differs from the name in the path"));
    }
    let (status, listed) = match app.policies.put(&rule, only_if, &by).await? {
        PutResult::Created(listed) => (StatusCode::CREATED, listed),
        PutResult::Replaced(listed) => (StatusCode::OK, listed),
    };
    Ok(response::json(status, etag(listed.stamp), &RuleBody::from(listed)))
}

/// The condition of a change: `If-None-Match: *` or `If-Match: "stamp"`.
pub(super) fn condition(headers: &HeaderMap) -> Result<PutCondition, HttpProblem> {
    match (headers.get(IF_NONE_MATCH), headers.get(IF_MATCH)) {
        (None, None) => Ok(PutCondition::Any),
        (Some(value), None) if value == "*" => Ok(PutCondition::Absent),
        (Some(_), None) => Err(HttpProblem::field(IF_NONE_MATCH.as_str(), "only * is supported")),
        (None, Some(value)) => {
            let stamp = value.to_str().ok().and_then(|text| text.trim_matches('"').parse().ok());
            let detail = "must be a stamp, as in the ETag of a run-time rule or override";
            let invalid = || HttpProblem::field(IF_MATCH.as_str(), detail);
            stamp.map(PutCondition::Is).ok_or_else(invalid)
        }
        (Some(_), Some(_)) => {
            let detail = "use either If-Match or If-None-Match";
            Err(HttpProblem::field(IF_MATCH.as_str(), detail))
        }
    }
}

/// The stamp as an entity tag.
pub(super) fn etag(stamp: Option<Stamp>) -> HeaderMap {
    let tag = stamp.and_then(|stamp| HeaderValue::from_str(&format!("\"{stamp}\"")).ok());
    tag.into_iter().map(|tag| (ETAG, tag)).collect()
}

/// `DELETE /v1/rules/{name}[?reset=true]`
pub(crate) async fn delete(
    State(app): State<AppState>,
    name: RulePath,
    parts: Parts,
) -> Result<Response, HttpProblem> {
    let by = app.admit_change(&parts)?;
    let counts = match parts.uri.query() {
        None | Some("" | "reset=false") => CountsOnDelete::Keep,
        Some("reset=true") => CountsOnDelete::Reset,
        Some(_) => return Err(HttpProblem::field("reset", "must be true or false")),
    };
    app.policies.delete(&decoded(name)?, counts, condition(&parts.headers)?, &by).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn decoded(name: RulePath) -> Result<String, HttpProblem> {
    let refused = |_| HttpProblem::field("name", "the name must be UTF-8");
    name.map(|Path(name)| name).map_err(refused)
}

impl From<RuleChangeError> for HttpProblem {
    fn from(error: RuleChangeError) -> Self {
        match &error {
            RuleChangeError::Faulty(problems) => {
                let detail: Vec<&str> = problems.iter().map(|problem| problem.message()).collect();
                let field = problems.iter().next().map_or("", |problem| problem.field());
                // An override is checked as the only one of its rule.
                match field.strip_prefix("overrides[0].").unwrap_or(field) {
                    "" => Self::new(StatusCode::BAD_REQUEST, detail.join("; ")),
                    field => Self::field(field, detail.join("; ")),
                }
            }
            RuleChangeError::Invalid(_)
            | RuleChangeError::TooMany
            | RuleChangeError::TooManyOverrides
            | RuleChangeError::TooLarge(_)
            | RuleChangeError::Full => Self::new(StatusCode::BAD_REQUEST, error.to_string()),
            RuleChangeError::Ended => Self::field("until", error.to_string()),
            RuleChangeError::Exists | RuleChangeError::Modified => {
                Self::new(StatusCode::PRECONDITION_FAILED, error.to_string())
            }
            RuleChangeError::Unknown | RuleChangeError::UnknownOverride => {
                Self::new(StatusCode::NOT_FOUND, error.to_string())
            }
            RuleChangeError::FromFile => Self::new(StatusCode::CONFLICT, error.to_string()),
            RuleChangeError::Contended | RuleChangeError::Store(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
            }
        }
    }
}
