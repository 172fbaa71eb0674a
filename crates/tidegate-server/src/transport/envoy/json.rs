//! Envoy's messages in proto3 JSON.

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::proto::{
    Code, DescriptorStatus, Entry, RateLimit, RateLimitDescriptor, RateLimitOverride,
    RateLimitRequest, RateLimitResponse, Unit,
};

/// A request. Field names may be camelCase or snake_case, numbers may be strings, and `null` is the
/// same as absent.
#[derive(Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimitRequestBody {
    #[serde(deserialize_with = "or_default")]
    domain: String,
    #[serde(deserialize_with = "or_default")]
    descriptors: Vec<DescriptorBody>,
    #[serde(alias = "hits_addend", rename = "hitsAddend", deserialize_with = "or_default")]
    hits_addend: NumberOrString<u32>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
struct DescriptorBody {
    #[serde(deserialize_with = "or_default")]
    entries: Vec<DescriptorEntryBody>,
    limit: Option<LimitBody>,
    #[serde(alias = "hits_addend", rename = "hitsAddend")]
    hits_addend: Option<NumberOrString<u64>>,
    #[serde(
        alias = "is_negative_hits",
        rename = "isNegativeHits",
        deserialize_with = "or_default"
    )]
    is_negative_hits: bool,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
struct DescriptorEntryBody {
    #[serde(deserialize_with = "or_default")]
    key: String,
    #[serde(deserialize_with = "or_default")]
    value: String,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
struct LimitBody {
    #[serde(
        alias = "requests_per_unit",
        rename = "requestsPerUnit",
        deserialize_with = "or_default"
    )]
    requests_per_unit: NumberOrString<u32>,
    #[serde(deserialize_with = "or_default")]
    unit: UnitBody,
}

/// A number, or a string with one.
#[derive(Clone, Copy, Default, Debug)]
struct NumberOrString<T>(T);

/// The name of a unit, or its number.
#[derive(Clone, Copy, Default, Debug)]
struct UnitBody(i32);

fn or_default<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl<'de, T: TryFrom<u64>> Deserialize<'de> for NumberOrString<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = deserializer.deserialize_any(NumberVisitor)?;
        let fits = T::try_from(number).map(Self);
        fits.map_err(|_| D::Error::invalid_value(Unexpected::Unsigned(number), &NumberVisitor))
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an integer in range, or a string with one")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for UnitBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(name) => Unit::from_str_name(&name).map(i32::from),
            number => number.as_i64().and_then(|number| number.try_into().ok()),
        }
        .map(Self)
        .ok_or_else(|| {
            D::Error::custom("not a unit; use SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR")
        })
    }
}

impl From<RateLimitRequestBody> for RateLimitRequest {
    fn from(body: RateLimitRequestBody) -> Self {
        let entry = |entry: DescriptorEntryBody| Entry { key: entry.key, value: entry.value };
        let limit = |limit: LimitBody| RateLimitOverride {
            requests_per_unit: limit.requests_per_unit.0,
            unit: limit.unit.0,
        };
        let descriptor = |descriptor: DescriptorBody| RateLimitDescriptor {
            entries: descriptor.entries.into_iter().map(entry).collect(),
            limit: descriptor.limit.map(limit),
            hits_addend: descriptor.hits_addend.map(|number| number.0),
            is_negative_hits: descriptor.is_negative_hits,
        };
        Self {
            domain: body.domain,
            descriptors: body.descriptors.into_iter().map(descriptor).collect(),
            hits_addend: body.hits_addend.0,
        }
    }
}

/// A response, without fields that have their default value.
pub(crate) fn response(response: &RateLimitResponse) -> Value {
    let mut fields = Map::new();
    put(&mut fields, "overallCode", name_of(response.overall_code()));
    let statuses: Vec<_> = response.statuses.iter().map(status).collect();
    put(&mut fields, "statuses", statuses.into());
    let headers = response.response_headers_to_add.iter();
    let headers: Vec<_> = headers.map(|h| json!({ "key": h.key, "value": h.value })).collect();
    put(&mut fields, "responseHeadersToAdd", headers.into());
    if let Some(metadata) = &response.dynamic_metadata {
        put(&mut fields, "dynamicMetadata", object(metadata));
    }
    fields.into()
}

fn status(status: &DescriptorStatus) -> Value {
    let mut fields = Map::new();
    put(&mut fields, "code", name_of(status.code()));
    if let Some(current) = &status.current_limit {
        fields.insert("currentLimit".into(), limit(current));
    }
    put(&mut fields, "limitRemaining", status.limit_remaining.into());
    if let Some(span) = &status.duration_until_reset {
        put(&mut fields, "durationUntilReset", duration(span).into());
    }
    fields.into()
}

fn limit(limit: &RateLimit) -> Value {
    let mut fields = Map::new();
    put(&mut fields, "name", limit.name.as_str().into());
    put(&mut fields, "requestsPerUnit", limit.requests_per_unit.into());
    if limit.unit() != Unit::Unknown {
        put(&mut fields, "unit", limit.unit().as_str_name().into());
    }
    fields.into()
}

/// Seconds with 0, 3, 6 or 9 decimal places.
fn duration(span: &prost_types::Duration) -> String {
    let prost_types::Duration { seconds, nanos } = span;
    match nanos {
        0 => format!("{seconds}s"),
        n if n % 1_000_000 == 0 => format!("{seconds}.{:03}s", n / 1_000_000),
        n if n % 1_000 == 0 => format!("{seconds}.{:06}s", n / 1_000),
        n => format!("{seconds}.{n:09}s"),
    }
}

fn name_of(code: Code) -> Value {
    if code == Code::Unknown { Value::Null } else { code.as_str_name().into() }
}

fn object(fields: &prost_types::Struct) -> Value {
    let field = |(name, value): (&String, &prost_types::Value)| (name.clone(), plain(value));
    fields.fields.iter().map(field).collect::<Map<_, _>>().into()
}

fn plain(value: &prost_types::Value) -> Value {
    use prost_types::value::Kind;
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(is)) => (*is).into(),
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(plain).collect::<Vec<_>>().into(),
        Some(Kind::StructValue(fields)) => object(fields),
    }
}

fn put(fields: &mut Map<String, Value>, name: &str, value: Value) {
    let is_default = match &value {
        Value::Null => true,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Bool(_) | Value::Object(_) => false,
    };
    if !is_default {
        fields.insert(name.into(), value);
    }
}
