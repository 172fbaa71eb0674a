//! `/v1/overrides`: list, show, set and delete run-time overrides of single keys.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::{Micros, Span};
use tidegate_config::{OneOrMany, OverrideFile};

use super::keys::KeyParameters;
use super::rules::{condition, etag};
use crate::policy::{
    ListedOverride, OverrideEnd, PutResult, RuleChangeError, timestamp, timestamp_micros,
};
use crate::transport::http::problem::HttpProblem;
use crate::transport::http::read_body::{ExpectedContent, parse_json, read_bytes};
use crate::transport::http::response;
use crate::transport::http::state::AppState;

/// All run-time overrides.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct OverridesBody {
    /// Overrides by rule and key.
    overrides: Vec<OverrideBody>,
}

/// An override of one key.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct OverrideBody {
    /// Rule whose limits it replaces.
    rule: String,
    /// The key; a list if it has several parts.
    key: OneOrMany,
    /// Limits of the key.
    limits: Vec<String>,
    /// End by the clock of the store; null: never.
    until: Option<String>,
    /// Whether it is in force.
    active: bool,
    /// Why it is not in force.
    reason: Option<String>,
    /// Token and address that set it.
    by: String,
    /// When it was set.
    at: String,
    /// Stamp, for `If-Match`.
    stamp: String,
}

impl From<ListedOverride> for OverrideBody {
    fn from(listed: ListedOverride) -> Self {
        Self {
            rule: listed.rule,
            key: listed.key.into(),
            limits: listed.limits,
            until: listed.until.map(timestamp),
            active: listed.inactive.is_none(),
            reason: listed.inactive,
            by: listed.by,
            at: timestamp(listed.at),
            stamp: listed.stamp.to_string(),
        }
    }
}

/// Limits of one key.
#[derive(Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverrideChangeBody {
    /// Limits that replace the rule's.
    #[schemars(length(min = 1, max = 16))]
    limits: Vec<String>,
    /// End by the clock of the store, in RFC 3339; never if neither `until` nor `for` is given.
    until: Option<String>,
    /// Duration from now, for example `8h`; instead of `until`.
    #[serde(rename = "for")]
    duration: Option<String>,
}

impl OverrideChangeBody {
    fn end(&self) -> Result<OverrideEnd, HttpProblem> {
        match (&self.until, &self.duration) {
            (None, None) => Ok(OverrideEnd::Never),
            (Some(until), None) => {
                let detail = "use RFC 3339, for example 2027-01-01T00:00:00Z";
                let until = timestamp_micros(until);
                until.map(OverrideEnd::At).ok_or_else(|| HttpProblem::field("until", detail))
            }
            (None, Some(duration)) => {
                let span = duration.parse::<Span>().ok().and_then(Span::length);
                let span = span.filter(|span| *span > Micros::ZERO);
                let detail = "use a duration such as 30m, 8h or 7d";
                span.map(OverrideEnd::After).ok_or_else(|| HttpProblem::field("for", detail))
            }
            (Some(_), Some(_)) => Err(HttpProblem::field("for", "use either until or for")),
        }
    }
}

/// `GET /v1/overrides[?rule=..[&key=..]]`
pub(crate) async fn list(
    State(app): State<AppState>,
    names: KeyParameters,
) -> Result<Response, HttpProblem> {
    if names.limit.is_some() {
        return Err(HttpProblem::field("limit", "an override belongs to a rule"));
    }
    let listed = match (names.rule, names.key) {
        (Some(rule), key) if !key.is_empty() => {
            app.policies.find_override(&rule, &key).into_iter().collect()
        }
        (rule, _) => {
            let mut all = app.policies.overrides();
            all.retain(|one| rule.as_ref().is_none_or(|rule| one.rule == *rule));
            all
        }
    };
    let overrides = listed.into_iter().map(OverrideBody::from).collect();
    Ok(response::ok(&OverridesBody { overrides }))
}

/// `GET /v1/overrides/{rule}/{key}`
pub(crate) async fn show(
    State(app): State<AppState>,
    names: KeyParameters,
) -> Result<Response, HttpProblem> {
    let (rule, key) = rule_and_key(names)?;
    let found = app.policies.find_override(&rule, &key);
    let found = found.ok_or(RuleChangeError::UnknownOverride)?;
    Ok(response::json(StatusCode::OK, etag(Some(found.stamp)), &OverrideBody::from(found)))
}

/// `PUT /v1/overrides/{rule}/{key}`, `PUT /v1/overrides?rule=..&key=..`
pub(crate) async fn put(
    State(app): State<AppState>,
    names: KeyParameters,
    request: Request,
) -> Result<Response, HttpProblem> {
    let (rule, key) = rule_and_key(names)?;
    let (parts, body) = request.into_parts();
    let by = app.admit_change(&parts)?;
    let only_if = condition(&parts.headers)?;
    let body = read_bytes(Request::from_parts(parts, body), ExpectedContent::Json).await?;
    let body: OverrideChangeBody = parse_json(&body)?;
    let end = body.end()?;
    let one = OverrideFile { key: key.into(), limits: body.limits, until: None };
    let (status, listed) = match app.policies.put_override(&rule, &one, end, only_if, &by).await? {
        PutResult::Created(listed) => (StatusCode::CREATED, listed),
        PutResult::Replaced(listed) => (StatusCode::OK, listed),
    };
    Ok(response::json(status, etag(Some(listed.stamp)), &OverrideBody::from(listed)))
}

/// `DELETE /v1/overrides/{rule}/{key}`, `DELETE /v1/overrides?rule=..&key=..`
pub(crate) async fn delete(
    State(app): State<AppState>,
    names: KeyParameters,
    parts: Parts,
) -> Result<Response, HttpProblem> {
    let (rule, key) = rule_and_key(names)?;
    let by = app.admit_change(&parts)?;
    app.policies.delete_override(&rule, &key, condition(&parts.headers)?, &by).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn rule_and_key(names: KeyParameters) -> Result<(String, Vec<String>), HttpProblem> {
    match names {
        KeyParameters { rule: Some(rule), limit: None, plan: None, key } if !key.is_empty() => {
            Ok((rule, key))
        }
        _ => Err(HttpProblem::field("rule", "name a rule, and each part of the key as key")),
    }
}
