//! Fields of a report as JSON. Names end in the unit of a number.

use std::fmt::Display;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tidegate_core::{Micros, Wait};

pub(super) fn text<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

pub(super) fn optional_text<S: Serializer>(
    value: &Option<impl Display>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => to.collect_str(value),
        None => to.serialize_none(),
    }
}

pub(super) fn micros<S: Serializer>(span: &Micros, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(span.get())
}

pub(super) fn millis<S: Serializer>(span: &Micros, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(span.get().div_ceil(1_000))
}

#[expect(clippy::float_arithmetic, reason = "a fraction in JSON, computed from exact counts")]
pub(super) fn millionths<S: Serializer>(share: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(*share as f64 / 1e6)
}

pub(super) fn from_one<S: Serializer>(key: &u32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u32(key + 1)
}

pub(super) fn busiest<S: Serializer>((key, _): &(u32, u64), to: S) -> Result<S::Ok, S::Error> {
    from_one(key, to)
}

#[derive(Serialize, JsonSchema)]
pub(super) struct LongestWait {
    /// Longest `retry_after` of a denial; null if none or never.
    longest_wait_ms: Option<u64>,
    /// Whether a request was denied as never allowed.
    never: bool,
}

pub(super) fn longest_wait<S: Serializer>(wait: &Option<Wait>, to: S) -> Result<S::Ok, S::Error> {
    let longest_wait_ms = wait.and_then(Wait::span).map(|span| span.get().div_ceil(1_000));
    LongestWait { longest_wait_ms, never: *wait == Some(Wait::Never) }.serialize(to)
}
