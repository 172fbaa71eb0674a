//! What a request is told about each limit that it comes under, and about all of them.

use std::collections::BTreeMap;

use http::HeaderMap;
use prost_types::value::Kind;
use prost_types::{Duration, ListValue, Struct};
use serde_json::Value;
use smallvec::SmallVec;
use tidegate::{Decision, Micros, Source, Verdict};
use tidegate_tower::headers::RateLimitHeaders;

use super::config::Unit;
use super::proto::{self, Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse};
use super::request::{Placed, Wish, Wishes};
use super::service::{Enforcement, Headers, Settings};
use crate::service::Verb;

/// Those under a limit, each with what was told of it, in order.
pub(super) type Told<'t, 'p> = SmallVec<[(&'t Placed<'p>, Report); 4]>;

/// What was told of the limits of one descriptor.
#[derive(Clone, Debug)]
pub(super) struct Report {
    decision: Decision,
    verb: Verb,
}

impl Report {
    /// Nothing yet.
    pub(super) fn nothing() -> Self {
        Self::new(Verb::Peek, Source::Policy, SmallVec::new())
    }

    pub(super) fn new(verb: Verb, source: Source, verdicts: SmallVec<[Verdict; 2]>) -> Self {
        Self { decision: Decision::new(source, verdicts), verb }
    }

    /// Is it over its limit? Whoever only looks is when there is nothing left.
    pub(super) fn is_over(&self) -> bool {
        self.decision.verdicts.iter().any(|verdict| match self.verb {
            Verb::Peek => !verdict.allowed || verdict.remaining == 0,
            // A limit of none has no debts either.
            Verb::Record => !verdict.allowed || verdict.limit == 0,
            _ => !verdict.allowed,
        })
    }

    /// The verdict that speaks for the limits of the descriptor, and its place among them; none if the
    /// limit only looks on and the store does not answer.
    pub(super) fn speaker(&self) -> Option<(usize, &Verdict)> {
        let place = self.decision.speaker();
        Some((place, self.decision.verdicts.get(place)?))
    }
}

/// The response to a request.
pub(super) fn response(
    wishes: &Wishes<'_>,
    told: &Told<'_, '_>,
    settings: Settings,
) -> RateLimitResponse {
    let mut reports = told.iter();
    let statuses = wishes.all.iter().map(|wish| match wish {
        Wish::Free => DescriptorStatus { code: Code::Ok.into(), ..Default::default() },
        Wish::Unlimited(_) => DescriptorStatus {
            code: Code::Ok.into(),
            limit_remaining: u32::MAX,
            ..Default::default()
        },
        Wish::Limited(_) => reports.next().map(status).unwrap_or_default(),
    });
    let statuses: Vec<_> = statuses.collect();
    let over = is_over(told) && settings.enforcement == Enforcement::Enforce;
    let response_headers_to_add = match settings.headers {
        Headers::Off => Vec::new(),
        Headers::Theirs => their_headers(&statuses),
        Headers::Ours => our_headers(told),
    };
    RateLimitResponse {
        overall_code: if over { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        response_headers_to_add,
        dynamic_metadata: metadata(told),
    }
}

/// Is the request denied? By one limit that is over; or by quotas, when all of them are.
fn is_over(told: &Told<'_, '_>) -> bool {
    let counts = || told.iter().filter(|(limited, _)| !limited.leaf().is_shadow());
    let (mut quotas, mut over) = (0, 0);
    for (limited, report) in counts() {
        match (limited.leaf().is_quota(), report.is_over()) {
            (false, true) => return true,
            (false, false) => {}
            (true, is_over) => (quotas, over) = (quotas + 1, over + usize::from(is_over)),
        }
    }
    quotas > 0 && quotas == over
}

fn status((limited, report): &(&Placed<'_>, Report)) -> DescriptorStatus {
    let leaf = limited.leaf();
    let over = report.is_over() && !leaf.is_shadow();
    let limits = leaf.rule().map_or(&[][..], |rule| rule.limits());
    let speaker = report.speaker();
    let limit = limits.get(speaker.map_or(0, |(place, _)| place));
    let (requests_per_unit, unit) = leaf.current_limit().map_or_else(
        || {
            let capacity = limit.map_or(0, |limit| limit.limit().capacity());
            let span = limit.and_then(|limit| limit.limit().recovery());
            (to_u32(capacity), span.and_then(Unit::from_length))
        },
        |(requests, unit)| (requests, Some(unit)),
    );
    DescriptorStatus {
        code: if over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: Some(RateLimit {
            name: leaf.name().unwrap_or_default().to_string(),
            requests_per_unit,
            unit: unit.map_or(proto::Unit::Unknown, proto::Unit::from).into(),
        }),
        limit_remaining: speaker
            .map_or(requests_per_unit, |(_, verdict)| to_u32(verdict.remaining)),
        duration_until_reset: speaker.map(|(_, verdict)| duration(verdict.reset_after)),
    }
}

fn to_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn duration(span: Micros) -> Duration {
    let span = std::time::Duration::from(span);
    let seconds = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    Duration { seconds, nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0) }
}

impl From<Unit> for proto::Unit {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::Second => Self::Second,
            Unit::Minute => Self::Minute,
            Unit::Hour => Self::Hour,
            Unit::Day => Self::Day,
            Unit::Week => Self::Week,
            Unit::Month => Self::Month,
            Unit::Year => Self::Year,
        }
    }
}

/// Three headers about the descriptor that is over, or else the one with the least left.
fn their_headers(statuses: &[DescriptorStatus]) -> Vec<HeaderValue> {
    let limited = || statuses.iter().filter(|status| status.current_limit.is_some());
    let over = limited().rfind(|status| status.code() == Code::OverLimit);
    let Some(status) = over.or_else(|| limited().min_by_key(|status| status.limit_remaining))
    else {
        return Vec::new();
    };
    let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    // Rounded up: whoever comes back then is not too early.
    let reset = status.duration_until_reset.as_ref();
    let reset = reset.map_or(0, |span| span.seconds + i64::from(span.nanos > 0));
    let header = |key: &str, value: String| HeaderValue { key: key.into(), value };
    vec![
        header("RateLimit-Limit", limit.to_string()),
        header("RateLimit-Remaining", status.limit_remaining.to_string()),
        header("RateLimit-Reset", reset.to_string()),
    ]
}

/// The headers of the other doors, about all limits that decide.
fn our_headers(told: &Told<'_, '_>) -> Vec<HeaderValue> {
    let mut all = Decision::new(Source::Policy, SmallVec::new());
    let mut limits = Vec::new();
    for (limited, report) in told.iter().filter(|(limited, _)| !limited.leaf().is_shadow()) {
        all.source = report.decision.source;
        all.verdicts.extend_from_slice(&report.decision.verdicts);
        limits.extend(limited.leaf().rule().into_iter().flat_map(|rule| rule.limits()));
    }
    let mut headers = HeaderMap::new();
    if !limits.is_empty() {
        let pairs = limits.iter().map(|limit| &***limit).zip(&all.verdicts);
        RateLimitHeaders::new(pairs, &all).write(&mut headers);
    }
    let text = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_string();
    let header = |(key, value): (&http::HeaderName, &http::HeaderValue)| HeaderValue {
        key: key.to_string(),
        value: text(value),
    };
    headers.iter().map(header).collect()
}

/// What the files say about the descriptors that applied; of two that say something about the same, the later one
/// counts.
fn metadata(told: &Told<'_, '_>) -> Option<Struct> {
    let said = told.iter().filter_map(|(limited, _)| limited.leaf().metadata());
    let fields: BTreeMap<_, _> =
        said.flatten().map(|(name, value)| (name.clone(), to_proto(value))).collect();
    (!fields.is_empty()).then_some(Struct { fields })
}

fn to_proto(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(is) => Kind::BoolValue(*is),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.iter().map(to_proto).collect() })
        }
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| (name.clone(), to_proto(value));
            Kind::StructValue(Struct { fields: fields.iter().map(field).collect() })
        }
    };
    prost_types::Value { kind: Some(kind) }
}
