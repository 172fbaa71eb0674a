//! What is known about a key: inspect, reset, explain.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use tidegate::{Inspection, Key, RuleLimit};
use tidegate_tower::extract;

use super::bodies::{DecisionBody, millis};
use super::problem::Problem;
use super::{Door, calls, ok};
use crate::explain::{self, Explained, Imagined};
use crate::service::{Ask, Target, Verb};
use crate::tokens::Access;

/// What a key has used, under each limit.
#[derive(Serialize, JsonSchema, Debug)]
pub(super) struct InspectionBody<'a> {
    /// The limits in order.
    limits: Vec<StandingBody<'a>>,
}

/// What a key has used under one limit.
#[derive(Serialize, JsonSchema, Debug)]
pub(super) struct StandingBody<'a> {
    /// The rule it belongs to.
    rule: &'a str,
    /// Its name in headers.
    policy: &'a str,
    /// The limit in the notation.
    limit: String,
    /// It only looks on.
    shadow: bool,
    /// The most that fits at once.
    capacity: u64,
    /// What is used.
    used: u64,
    /// What is set aside.
    held: u64,
    /// What is left.
    remaining: u64,
    /// When it is as good as unused.
    reset_after_ms: u64,
    /// Where it was found.
    source: &'a str,
    /// Memory ran out, and the key shares a bucket with others.
    shared: bool,
    /// Who was charged how much, oldest first, as far as a `sliding-log` was told.
    entries: Vec<EntryBody<'a>>,
}

/// One entry of a log.
#[derive(Serialize, JsonSchema, Debug)]
pub(super) struct EntryBody<'a> {
    /// Who it was.
    who: Option<&'a str>,
    /// How much.
    cost: u64,
}

type Names = Result<Path<(String, String)>, PathRejection>;

/// `GET /v1/keys/{rule}/{key}`
pub(super) async fn inspect_path(
    State(door): State<Door>,
    names: Names,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    door.admit(Access::Check, &headers)?;
    let (rule, key) = named(names)?;
    inspect(&door, Target::Rule(&rule), Key::from(&key)).await
}

/// `GET /v1/keys?rule=..&key=..`
pub(super) async fn inspect_query(
    State(door): State<Door>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    door.admit(Access::Check, &headers)?;
    let about = About::read(query.as_deref().unwrap_or_default())?;
    inspect(&door, about.target()?, about.key()).await
}

async fn inspect(door: &Door, target: Target<'_>, key: Key<'_>) -> Result<Response, Problem> {
    let found = door.service.inspect(Ask { target, key, cost: 0 }).await?;
    Ok(ok(&InspectionBody::new(&found)))
}

impl<'a> InspectionBody<'a> {
    pub(super) fn new(found: &'a [(Arc<RuleLimit>, Inspection)]) -> Self {
        let standing = |(limit, found): &'a (Arc<RuleLimit>, Inspection)| standing(limit, found);
        Self { limits: found.iter().map(standing).collect() }
    }
}

fn standing<'a>(limit: &'a RuleLimit, found: &'a Inspection) -> StandingBody<'a> {
    StandingBody {
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
            .map(|(who, cost)| EntryBody { who: who.as_deref(), cost: *cost })
            .collect(),
    }
}

/// `DELETE /v1/keys/{rule}/{key}`
pub(super) async fn reset_path(
    State(door): State<Door>,
    names: Names,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    door.admit(Access::Admin, &headers)?;
    let (rule, key) = named(names)?;
    reset(&door, Target::Rule(&rule), Key::from(&key)).await
}

/// `DELETE /v1/keys?rule=..&key=..`
pub(super) async fn reset_query(
    State(door): State<Door>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    door.admit(Access::Admin, &headers)?;
    let about = About::read(query.as_deref().unwrap_or_default())?;
    reset(&door, about.target()?, about.key()).await
}

async fn reset(door: &Door, target: Target<'_>, key: Key<'_>) -> Result<Response, Problem> {
    let answer = door.service.ask(Verb::Reset, &[Ask { target, key, cost: 0 }], None).await?;
    Ok(calls::told(&answer, &DecisionBody::new(&answer)))
}

/// What is the case, in sentences.
#[derive(Serialize, JsonSchema, Debug)]
pub(super) struct ExplainBody {
    /// Would a cost of 1 pass now?
    allowed: bool,
    /// Which rules apply to a request; one sentence for each list that names it and each limit, and one about all
    /// of them.
    sentences: Vec<String>,
}

/// `GET /v1/explain?rule=..&key=..`, or `?path=..&method=..`
pub(super) async fn explain(
    State(door): State<Door>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    door.admit(Access::Check, &headers)?;
    let told = parameters(query.as_deref().unwrap_or_default())?;
    let is_of_request = |(name, _): &Parameter<'_>| Imagined::FIELDS.contains(&&**name);
    let explained = if told.iter().any(is_of_request) {
        let request = Imagined::read(told.iter().map(|(name, value)| (&**name, &**value)))
            .map_err(|wrong| Problem::field(wrong.field, wrong.detail))?;
        explain::explain_request(&door.service, &request).await?
    } else {
        let about = About::of(told)?;
        let ask = Ask { target: about.target()?, key: about.key(), cost: 1 };
        explain::explain(&door.service, ask).await?
    };
    Ok(ok(&ExplainBody::from(explained)))
}

impl From<Explained> for ExplainBody {
    fn from(explained: Explained) -> Self {
        Self { allowed: explained.allowed, sentences: explained.sentences }
    }
}

fn named(names: Names) -> Result<(String, String), Problem> {
    let refused = |_| Problem::field("key", "the rule and the key must be UTF-8");
    names.map(|Path(names)| names).map_err(refused)
}

/// A rule or limit and a key, from the query.
#[derive(Default)]
struct About {
    rule: Option<String>,
    limit: Option<String>,
    key: Vec<String>,
}

impl About {
    fn read(query: &str) -> Result<Self, Problem> {
        Self::of(parameters(query)?)
    }

    fn of(told: Vec<Parameter<'_>>) -> Result<Self, Problem> {
        let mut about = Self::default();
        for (name, value) in told {
            let value = value.into_owned();
            match &*name {
                "rule" if about.rule.is_none() => about.rule = Some(value),
                "limit" if about.limit.is_none() => about.limit = Some(value),
                "key" => about.key.push(value),
                _ => {
                    let detail = "use rule or limit once, and key once for each part";
                    return Err(Problem::field(name, detail));
                }
            }
        }
        Ok(about)
    }

    fn target(&self) -> Result<Target<'_>, Problem> {
        match (&self.rule, &self.limit) {
            (Some(rule), None) => Ok(Target::Rule(rule)),
            (None, Some(limit)) => Ok(Target::Limit(limit)),
            _ => Err(Problem::field("rule", "name a rule or a limit")),
        }
    }

    fn key(&self) -> Key<'_> {
        Key::from(&*self.key)
    }
}

/// A name and a value.
type Parameter<'a> = (Cow<'a, str>, Cow<'a, str>);

/// What a query says, in order.
fn parameters(query: &str) -> Result<Vec<Parameter<'_>>, Problem> {
    let read = |(name, value)| -> Result<_, Problem> {
        let Some(name) = name else {
            let detail = "the query cannot be read; percent-encode it as UTF-8";
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        };
        match value {
            Some(value) => Ok((name, value)),
            None => Err(Problem::field(name, "cannot be read; percent-encode it as UTF-8")),
        }
    };
    extract::pairs(query).map(read).collect()
}
