//! The policy in force, and rules that are set while running.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{HeaderName, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::problem::Problem;
use super::{Door, calls, ok, read_body, strict};
use crate::config::RuleFile;
use crate::policies::{Listed, NotChanged, Presence, Put};
use crate::tokens::Access;

/// All rules.
#[derive(Serialize, JsonSchema, Debug)]
pub(super) struct RulesBody {
    /// In the order in which they are looked at.
    rules: Vec<RuleBody>,
}

/// A rule, and where it comes from.
#[derive(Serialize, JsonSchema, Debug)]
pub(super) struct RuleBody {
    /// The rule.
    #[serde(flatten)]
    rule: RuleFile,
    /// `file` or `runtime`.
    origin: &'static str,
}

impl From<Listed> for RuleBody {
    fn from(listed: Listed) -> Self {
        Self { rule: listed.file, origin: listed.origin.name() }
    }
}

type Name = Result<Path<String>, PathRejection>;

/// `GET /v1/rules`
pub(super) async fn list(
    State(door): State<Door>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    door.admit(Access::Check, &headers)?;
    let rules = door.policies.rules().into_iter().map(RuleBody::from).collect();
    Ok(ok(&RulesBody { rules }))
}

/// `GET /v1/rules/{name}`
pub(super) async fn show(
    State(door): State<Door>,
    name: Name,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    door.admit(Access::Check, &headers)?;
    let found = door.policies.rule(&read(name)?).ok_or(NotChanged::Unknown)?;
    Ok(ok(&RuleBody::from(found)))
}

/// `PUT /v1/rules/{name}`
pub(super) async fn put(
    State(door): State<Door>,
    name: Name,
    request: Request,
) -> Result<Response, Problem> {
    door.admit(Access::Admin, request.headers())?;
    let name = read(name)?;
    let only_if = match request.headers().get(IF_NONE_MATCH).map(|value| value.as_bytes()) {
        None => Presence::Any,
        Some(b"*") => Presence::Absent,
        Some(_) => return Err(header_problem(&IF_NONE_MATCH, "only * has a meaning here")),
    };
    let value = strict::read(&read_body(request).await?)?;
    let rule = RuleFile::from_json(&with_name(value, &name)?).map_err(NotChanged::Faulty)?;
    let (status, listed) = match door.policies.put(&rule, only_if)? {
        Put::Created(listed) => (StatusCode::CREATED, listed),
        Put::Replaced(listed) => (StatusCode::OK, listed),
    };
    Ok(calls::json(status, HeaderMap::new(), &RuleBody::from(listed)))
}

/// The name in the address is enough; one in the body must be the same.
fn with_name(mut value: Value, name: &str) -> Result<String, Problem> {
    if let Value::Object(fields) = &mut value {
        let given = fields.entry("name").or_insert_with(|| name.into());
        if given != name {
            return Err(Problem::field("name", "differs from the name in the address"));
        }
    }
    Ok(value.to_string())
}

/// `DELETE /v1/rules/{name}`
pub(super) async fn delete(
    State(door): State<Door>,
    name: Name,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    door.admit(Access::Admin, &headers)?;
    door.policies.delete(&read(name)?)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn read(name: Name) -> Result<String, Problem> {
    let refused = |_| Problem::field("name", "the name must be UTF-8");
    name.map(|Path(name)| name).map_err(refused)
}

fn header_problem(name: &HeaderName, detail: &str) -> Problem {
    Problem::field(name.as_str(), detail)
}

impl From<NotChanged> for Problem {
    fn from(error: NotChanged) -> Self {
        match &error {
            NotChanged::Faulty(problems) => {
                let first = problems.iter().next();
                let field = first.map_or("", |problem| problem.field());
                let detail: Vec<&str> = problems.iter().map(|problem| problem.message()).collect();
                Self::field(field, detail.join("; "))
            }
            NotChanged::Invalid(_) | NotChanged::TooMany => {
                Self::new(StatusCode::BAD_REQUEST, error.to_string())
            }
            NotChanged::Exists => Self::new(StatusCode::PRECONDITION_FAILED, error.to_string()),
            NotChanged::Unknown => Self::new(StatusCode::NOT_FOUND, error.to_string()),
            NotChanged::FromFile => Self::new(StatusCode::CONFLICT, error.to_string()),
        }
    }
}
