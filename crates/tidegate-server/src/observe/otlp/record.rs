//! The data of a span that has ended.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};

use tidegate::Micros;

use super::traceparent::TraceParent;
use crate::observe::metrics::ListenerKind;

/// A span as the collector gets it.
#[derive(Clone, Debug)]
pub(super) struct SpanRecord {
    pub(super) ids: SpanContext,
    pub(super) listener: ListenerKind,
    pub(super) name: Cow<'static, str>,
    pub(super) attributes: Vec<(&'static str, Attribute)>,
    pub(super) note: Option<DecisionNote>,
    pub(super) failed: bool,
    pub(super) start: Micros,
    pub(super) end: Micros,
}

/// The value of a span attribute.
#[derive(Clone, Debug)]
pub(super) enum Attribute {
    Text(Cow<'static, str>),
    Number(i64),
}

/// The ids of a span.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanContext {
    pub(super) trace: u128,
    pub(super) span: u64,
    pub(super) parent: Option<u64>,
}

impl SpanContext {
    /// A new span in the parent's trace, or in a new trace.
    pub(super) fn below(parent: Option<TraceParent>) -> Self {
        let new_trace = || u128::from(random()) << 64 | u128::from(random());
        Self {
            trace: parent.map_or_else(new_trace, |parent| parent.trace),
            span: random(),
            parent: parent.map(|parent| parent.span),
        }
    }
}

/// Never zero. Ids have to be unique but not secret: the random keys of the standard library are
/// enough.
fn random() -> u64 {
    RandomState::new().hash_one(0).max(1)
}

/// What was decided in a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DecisionNote {
    /// The rule of the most restrictive limit; `None` if no limit applies.
    pub(crate) rule: Option<Box<str>>,
    /// `allow`, `deny`, `never` or `error`.
    pub(crate) outcome: &'static str,
    pub(crate) source: &'static str,
}

impl DecisionNote {
    /// There is no decision, because the store failed.
    pub(crate) fn store_error() -> Self {
        Self { rule: None, outcome: "error", source: "none" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_new_and_a_child_stays_in_its_trace() {
        let parent = TraceParent { trace: 7, span: 9, sampled: true };
        let ids: Vec<SpanContext> = (0..1_000).map(|_| SpanContext::below(Some(parent))).collect();
        assert!(ids.iter().all(|ids| (ids.trace, ids.parent) == (7, Some(9)) && ids.span != 0));
        let mut spans: Vec<u64> = ids.iter().map(|ids| ids.span).collect();
        spans.sort_unstable();
        spans.dedup();
        assert_eq!(spans.len(), 1_000);
        let roots = [SpanContext::below(None), SpanContext::below(None)];
        assert!(roots[0].trace != roots[1].trace && roots[0].parent.is_none());
    }
}
