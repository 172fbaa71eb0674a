//! `/v1/keys` and `/v1/explain`: inspect, reset and explain a key.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, RawQuery, State};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use tidegate::policy::RuleTarget;
use tidegate::{Inspection, RuleCheck, RuleLimit};
use tidegate_tower::extract;

use crate::check::explain;
use crate::check::explain::DescribedRequest;
use crate::check::{CheckService, Operation};
use crate::transport::auth::AccessLevel;
use crate::transport::http::json::{DecisionBody, millis};
use crate::transport::http::problem::HttpProblem;
use crate::transport::http::response;
use crate::transport::http::state::AppState;

/// State of a key under each limit.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct InspectionBody<'a> {
    /// The limits, in evaluation order.
    limits: Vec<LimitStateBody<'a>>,
}

/// State of a key under one limit.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct LimitStateBody<'a> {
    /// Rule of the limit.
    rule: &'a str,
    /// Name of the limit in headers.
    policy: &'a str,
    /// Limit in the limit notation.
    limit: String,
    /// Shadow limit: not enforced.
    shadow: bool,
    /// Capacity of the limit.
    capacity: u64,
    /// Permits used.
    used: u64,
    /// Permits held by reservations.
    held: u64,
    /// Permits remaining.
    remaining: u64,
    /// Milliseconds until the limit is fully recovered.
    reset_after_ms: u64,
    /// Where the state is kept.
    source: &'a str,
    /// The memory cap was reached and the key shares a bucket with others.
    shared: bool,
    /// Log entries, oldest first (`sliding-log` only).
    entries: Vec<LogEntryBody<'a>>,
}

/// One entry of a `sliding-log`.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct LogEntryBody<'a> {
    /// Caller of the entry, if known.
    who: Option<&'a str>,
    /// Cost.
    cost: u64,
}

/// `GET /v1/keys/{rule}/{key}`, `GET /v1/keys?rule=..&key=..`
pub(crate) async fn inspect(
    State(app): State<AppState>,
    key: KeyParameters,
) -> Result<Response, HttpProblem> {
    let found = app.service.inspect(key.check(&app.service, 0)?).await?;
    Ok(response::ok(&InspectionBody::new(&found)))
}

impl<'a> InspectionBody<'a> {
    pub(crate) fn new(found: &'a [(Arc<RuleLimit>, Inspection)]) -> Self {
        Self { limits: found.iter().map(|(limit, found)| limit_state(limit, found)).collect() }
    }
}

fn limit_state<'a>(limit: &'a RuleLimit, found: &'a Inspection) -> LimitStateBody<'a> {
    LimitStateBody {
        rule: limit.rule(),
        policy: limit.policy(),
        limit: limit.limit().to_string(),
        shadow: limit.is_shadow(),
        capacity: found.limit,
        used: found.standing.used,
        held: found.standing.held,
        remaining: found.standing.remaining,
        reset_after_ms: millis(found.standing.reset_after),
        source: found.source.name(),
        shared: found.shared,
        entries: found
            .entries
            .iter()
            .map(|(who, cost)| LogEntryBody { who: who.as_deref(), cost: *cost })
            .collect(),
    }
}

/// `DELETE /v1/keys/{rule}/{key}`, `DELETE /v1/keys?rule=..&key=..`
pub(crate) async fn reset(
    State(app): State<AppState>,
    key: KeyParameters,
    parts: Parts,
) -> Result<Response, HttpProblem> {
    let by = app.admit_change(&parts)?;
    let reset = [key.check(&app.service, 0)?];
    let decision = app.service.run(Operation::Reset, &reset, None).await?;
    by.log_reset(&reset[0]);
    Ok(response::standing(&decision, &DecisionBody::new(&decision)))
}

/// `GET /v1/explain?rule=..&key=..`, or `?path=..&method=..`
pub(crate) async fn explain(
    State(app): State<AppState>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, HttpProblem> {
    app.admit(AccessLevel::Check, &headers)?;
    let given = parameters(query.as_deref().unwrap_or_default())?;
    let is_of_request = |(name, _): &Parameter<'_>| DescribedRequest::FIELDS.contains(&&**name);
    let explained = if given.iter().any(is_of_request) {
        let request = DescribedRequest::read(given.iter().map(|(name, value)| (&**name, &**value)))
            .map_err(|invalid| HttpProblem::field(invalid.field, invalid.detail))?;
        explain::explain_request(&app.service, &request).await?
    } else {
        let key = KeyParameters::from_pairs(given)?;
        explain::explain(&app.service, key.check(&app.service, 1)?).await?
    };
    Ok(response::ok(&explained))
}

/// State of a key, as `GET /v1/keys` returns it.
pub fn inspection_json(found: &[(Arc<RuleLimit>, Inspection)]) -> serde_json::Value {
    serde_json::to_value(InspectionBody::new(found)).unwrap_or_default()
}

/// Rule or limit, and key, from the path or the query.
#[derive(Default)]
pub(crate) struct KeyParameters {
    pub(super) rule: Option<String>,
    pub(super) limit: Option<String>,
    pub(super) plan: Option<String>,
    pub(super) key: Vec<String>,
}

/// Anything but reading needs the admin token.
impl FromRequestParts<AppState> for KeyParameters {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, HttpProblem> {
        let is_read = parts.method == Method::GET;
        let needed = if is_read { AccessLevel::Check } else { AccessLevel::Admin };
        app.admit(needed, &parts.headers)?;
        if ["/v1/keys", "/v1/overrides"].contains(&parts.uri.path()) {
            return Self::from_pairs(parameters(parts.uri.query().unwrap_or_default())?);
        }
        let refused = |_| HttpProblem::field("key", "the rule and the key must be UTF-8");
        let names = Path::from_request_parts(parts, app).await;
        let Path((rule, key)): Path<(String, String)> = names.map_err(refused)?;
        Ok(Self { rule: Some(rule), key: vec![key], ..Self::default() })
    }
}

impl KeyParameters {
    fn from_pairs(given: Vec<Parameter<'_>>) -> Result<Self, HttpProblem> {
        let mut params = Self::default();
        for (name, value) in given {
            let value = value.into_owned();
            match &*name {
                "rule" if params.rule.is_none() => params.rule = Some(value),
                "limit" if params.limit.is_none() => params.limit = Some(value),
                "plan" if params.plan.is_none() => params.plan = Some(value),
                "key" => params.key.push(value),
                _ => {
                    let detail = "use rule or limit, and plan, once; repeat key for several parts";
                    return Err(HttpProblem::field(name, detail));
                }
            }
        }
        Ok(params)
    }

    fn check(&self, service: &CheckService, cost: u64) -> Result<RuleCheck<'_>, HttpProblem> {
        let target = match (&self.rule, &self.limit) {
            (Some(rule), None) => RuleTarget::Named(rule),
            (None, Some(limit)) => service.adhoc_limit(limit)?,
            _ => return Err(HttpProblem::field("rule", "required: name a rule or a limit")),
        };
        let plan = self.plan.as_deref();
        Ok(RuleCheck { plan, ..RuleCheck::of(target, &*self.key, cost) })
    }
}

/// Name and value.
type Parameter<'a> = (Cow<'a, str>, Cow<'a, str>);

/// The parameters of a query, in order.
fn parameters(query: &str) -> Result<Vec<Parameter<'_>>, HttpProblem> {
    let read = |(name, value)| -> Result<_, HttpProblem> {
        let Some(name) = name else {
            let detail = "invalid query; percent-encode it as UTF-8";
            return Err(HttpProblem::new(StatusCode::BAD_REQUEST, detail));
        };
        match value {
            Some(value) => Ok((name, value)),
            None => Err(HttpProblem::field(name, "invalid value; percent-encode it as UTF-8")),
        }
    };
    extract::query_pairs(query).map(read).collect()
}
