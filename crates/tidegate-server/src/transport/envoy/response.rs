//! The response to a request: statuses, headers and metadata.

use std::collections::BTreeMap;

use http::HeaderMap;
use prost_types::value::Kind;
use prost_types::{Duration, ListValue, Struct};
use serde_json::{Map, Value};
use smallvec::SmallVec;
use tidegate::policy::Enforcement;
use tidegate::{Clock, Decision, Micros, Source, Verdict};
use tidegate_tower::headers::RateLimitHeaders;

use super::proto::{self, Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse};
use super::request::{LimitMatch, LimitMatches, MatchedDescriptor};
use super::settings::{EnvoySettings, ResponseHeaders};
use crate::check::Operation;
use tidegate_config::envoy::{DescriptorLimit, EnvoyUnit};

/// The descriptors under a limit, each with its report, in order.
pub(crate) type DescriptorReports<'t, 'p> =
    SmallVec<[(&'t MatchedDescriptor<'p>, DescriptorReport); 4]>;

/// Verdicts of the limits of one descriptor.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorReport {
    decision: Decision,
    /// `None` for a commit, which is never over a limit.
    operation: Option<Operation>,
}

impl DescriptorReport {
    pub(crate) fn empty() -> Self {
        Self::new(Operation::Peek, Source::Policy, SmallVec::new())
    }

    pub(crate) fn new(
        operation: Operation,
        source: Source,
        verdicts: SmallVec<[Verdict; 2]>,
    ) -> Self {
        Self { decision: Decision::new(source, verdicts), operation: Some(operation) }
    }

    /// The same as the report of a commit.
    pub(crate) fn of_commit(self) -> Self {
        Self { operation: None, ..self }
    }

    /// Whether the descriptor is over its limit. A peek is if no permits remain.
    pub(crate) fn is_over(&self) -> bool {
        self.decision.verdicts.iter().any(|verdict| match self.operation {
            Some(Operation::Peek) => !verdict.allowed || verdict.remaining == 0,
            // A limit of 0 cannot go into debt, and so never denies a record.
            Some(Operation::Record) => !verdict.allowed || verdict.limit == 0,
            Some(_) => !verdict.allowed,
            None => false,
        })
    }

    /// Index and verdict of the most restrictive limit; none if the limit is in shadow mode and the
    /// store is unavailable.
    pub(crate) fn most_restrictive(&self) -> Option<(usize, &Verdict)> {
        let index = self.decision.most_restrictive();
        Some((index, self.decision.verdicts.get(index)?))
    }
}

/// The response to a request.
pub(crate) fn response(
    matches: &LimitMatches<'_>,
    reports: &DescriptorReports<'_, '_>,
    settings: EnvoySettings,
    clock: &dyn Clock,
) -> RateLimitResponse {
    let mut next = reports.iter();
    let statuses = matches.all.iter().map(|one| match one {
        LimitMatch::Free => DescriptorStatus { code: Code::Ok.into(), ..Default::default() },
        LimitMatch::Unlimited(_) => DescriptorStatus {
            code: Code::Ok.into(),
            limit_remaining: u32::MAX,
            ..Default::default()
        },
        LimitMatch::Limited(_) => next.next().map(|one| status(one, clock)).unwrap_or_default(),
    });
    let statuses: Vec<_> = statuses.collect();
    let is_over = is_over(reports.iter().map(|(limited, report)| (*limited, report)));
    let over = is_over && settings.enforcement == Enforcement::Enforce;
    let response_headers_to_add = match settings.headers {
        ResponseHeaders::Off => Vec::new(),
        ResponseHeaders::Envoy => envoy_headers(&statuses, reports),
        ResponseHeaders::Tidegate => tidegate_headers(reports),
    };
    RateLimitResponse {
        overall_code: if over { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        response_headers_to_add,
        dynamic_metadata: metadata(reports),
    }
}

/// Whether the request is denied: one limit is over, or all quotas are.
pub(crate) fn is_over<'r, 'p: 'r>(
    reports: impl Iterator<Item = (&'r MatchedDescriptor<'p>, &'r DescriptorReport)>,
) -> bool {
    let enforced = reports.filter(|(limited, _)| !limited.limit().is_shadow());
    let (mut quotas, mut over) = (0, 0);
    for (limited, report) in enforced {
        match (limited.limit().is_quota(), report.is_over()) {
            (false, true) => return true,
            (false, false) => {}
            (true, is_over) => (quotas, over) = (quotas + 1, over + usize::from(is_over)),
        }
    }
    quotas > 0 && quotas == over
}

fn status(one: &(&MatchedDescriptor<'_>, DescriptorReport), clock: &dyn Clock) -> DescriptorStatus {
    let (limited, report) = one;
    let configured = limited.limit();
    let limits = configured.rule().map_or(&[][..], |rule| rule.limits());
    let strictest = report.most_restrictive();
    let limit = limits.get(strictest.map_or(0, |(index, _)| index));
    let (requests_per_unit, unit) = configured.current_limit().map_or_else(
        || {
            let capacity = limit.map_or(0, |limit| limit.limit().capacity());
            let span = limit.and_then(|limit| limit.limit().recovery());
            (to_u32(capacity), span.and_then(EnvoyUnit::from_length))
        },
        |(requests, unit)| (requests, Some(unit)),
    );
    DescriptorStatus {
        code: if is_exceeded(one) { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: Some(RateLimit {
            name: configured.name().unwrap_or_default().to_string(),
            requests_per_unit,
            unit: unit.map_or(proto::Unit::Unknown, proto::Unit::from).into(),
        }),
        limit_remaining: strictest
            .map_or(requests_per_unit, |(_, verdict)| to_u32(verdict.remaining)),
        duration_until_reset: reset_after(configured, strictest, clock).map(duration),
    }
}

/// Whether the descriptor is over a limit that is enforced.
fn is_exceeded((limited, report): &(&MatchedDescriptor<'_>, DescriptorReport)) -> bool {
    report.is_over() && !limited.limit().is_shadow()
}

/// Time until the limit is recovered. For a `rate_limit` that is the end of the window, as in
/// envoyproxy/ratelimit, even if nothing of it is used.
fn reset_after(
    configured: &DescriptorLimit,
    strictest: Option<(usize, &Verdict)>,
    clock: &dyn Clock,
) -> Option<Micros> {
    let reset = strictest.map(|(_, verdict)| verdict.reset_after);
    match configured.current_limit() {
        Some((_, unit)) if reset.unwrap_or_default() == Micros::ZERO => {
            let length = unit.length().get();
            Some(Micros::new(length - clock.now().get() % length))
        }
        _ => reset,
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

impl From<EnvoyUnit> for proto::Unit {
    fn from(unit: EnvoyUnit) -> Self {
        match unit {
            EnvoyUnit::Second => Self::Second,
            EnvoyUnit::Minute => Self::Minute,
            EnvoyUnit::Hour => Self::Hour,
            EnvoyUnit::Day => Self::Day,
            EnvoyUnit::Week => Self::Week,
            EnvoyUnit::Month => Self::Month,
            EnvoyUnit::Year => Self::Year,
        }
    }
}

/// Three headers about one descriptor, the same as in envoyproxy/ratelimit: the last one over a
/// limit that is not a quota, or else the first one with the fewest hits remaining.
fn envoy_headers(
    statuses: &[DescriptorStatus],
    reports: &DescriptorReports<'_, '_>,
) -> Vec<HeaderValue> {
    let limited = || statuses.iter().filter(|status| status.current_limit.is_some());
    let denies = limited().zip(reports).filter(|(status, (limited, _))| {
        status.code() == Code::OverLimit && !limited.limit().is_quota()
    });
    let over = denies.map(|(status, _)| status).last();
    let Some(status) = over.or_else(|| limited().min_by_key(|status| status.limit_remaining))
    else {
        return Vec::new();
    };
    let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    // Rounded up: a client that waits this long is not too early.
    let reset = status.duration_until_reset.as_ref();
    let reset = reset.map_or(0, |span| span.seconds + i64::from(span.nanos > 0));
    let header = |key: &str, value: String| HeaderValue { key: key.into(), value };
    vec![
        header("RateLimit-Limit", limit.to_string()),
        header("RateLimit-Remaining", status.limit_remaining.to_string()),
        header("RateLimit-Reset", reset.to_string()),
    ]
}

/// The headers of the HTTP API, about all enforced limits.
fn tidegate_headers(reports: &DescriptorReports<'_, '_>) -> Vec<HeaderValue> {
    let mut all = Decision::new(Source::Policy, SmallVec::new());
    let mut limits = Vec::new();
    for (limited, report) in reports.iter().filter(|(limited, _)| !limited.limit().is_shadow()) {
        all.source = report.decision.source;
        all.verdicts.extend_from_slice(&report.decision.verdicts);
        limits.extend(limited.limit().rule().into_iter().flat_map(|rule| rule.limits()));
    }
    let mut headers = HeaderMap::new();
    if !limits.is_empty() {
        RateLimitHeaders::new(&all, limits).write(&mut headers);
    }
    let text = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_string();
    let header = |(key, value): (&http::HeaderName, &http::HeaderValue)| HeaderValue {
        key: key.to_string(),
        value: text(value),
    };
    headers.iter().map(header).collect()
}

/// Metadata of the descriptors that are not over their limits, from the configuration. It is
/// nested under `metadata`, as in envoyproxy/ratelimit.
fn metadata(reports: &DescriptorReports<'_, '_>) -> Option<Struct> {
    let passed = reports.iter().filter(|one| !is_exceeded(one));
    let mut merged = Map::new();
    for metadata in passed.filter_map(|(limited, _)| limited.limit().metadata()) {
        merge(&mut merged, metadata);
    }
    if merged.is_empty() {
        return None;
    }
    let fields = BTreeMap::from([("metadata".to_string(), to_proto(&Value::Object(merged)))]);
    Some(Struct { fields })
}

/// Adds what `into` does not have. Maps are merged; of two other values, the first counts.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, _) => drop(into.insert(name.clone(), value.clone())),
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
        }
    }
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
