//! One span per call, sent to an OpenTelemetry collector. Imports: metrics.
//!
//! A span names a rule and never a key. Without a tracer a call costs one test of an `Option`.

pub(crate) mod collector;
pub(crate) mod export;
mod json;
mod queue;
mod record;
pub(crate) mod sampling;
mod span;
pub(crate) mod traceparent;
mod tracer;

pub(crate) use self::record::DecisionNote;
pub(crate) use self::span::{RequestSpan, record};
pub use self::tracer::OtlpOptions;
pub(crate) use self::tracer::Tracer;
