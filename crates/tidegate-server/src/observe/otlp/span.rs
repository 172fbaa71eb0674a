//! One call, from its start to its end.

use std::borrow::Cow;
use std::future::Future;
use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate::{Clock, Micros, SystemClock};

use super::queue::SpanQueue;
use super::record::{Attribute, DecisionNote, SpanContext, SpanRecord};
use crate::observe::metrics::ListenerKind;

/// The span of a call in progress. It ends when it is dropped, also if the call is cancelled.
#[derive(Debug)]
pub struct RequestSpan {
    queue: Arc<SpanQueue>,
    record: SpanRecord,
    /// When it began, on the monotonic clock.
    since: Micros,
    note: Arc<Mutex<Option<DecisionNote>>>,
}

tokio::task_local! {
    static NOTE: Arc<Mutex<Option<DecisionNote>>>;
}

/// Notes a decision in the span of the current call, if it has one. If a call makes several
/// decisions, the first that is not `allow` is kept, otherwise the first.
pub(crate) fn record(make: impl FnOnce() -> DecisionNote) {
    let _ = NOTE.try_with(|note| {
        let mut note = note.lock().unwrap_or_else(PoisonError::into_inner);
        if note.as_ref().is_none_or(|before| before.outcome == "allow") {
            let new = make();
            if note.is_none() || new.outcome != "allow" {
                *note = Some(new);
            }
        }
    });
}

impl RequestSpan {
    pub(super) fn new(queue: Arc<SpanQueue>, listener: ListenerKind, ids: SpanContext) -> Self {
        let (start, since) = (SystemClock.now(), SystemClock.elapsed());
        let (name, attributes) = (Cow::Borrowed(listener.name()), Vec::new());
        let record = SpanRecord {
            ids,
            listener,
            name,
            attributes,
            note: None,
            failed: false,
            start,
            end: start,
        };
        Self { queue, record, since, note: Arc::default() }
    }

    /// Sets the name of the span. It must have few values and contain nothing of the caller.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.record.name = name.into();
        self
    }

    /// Adds a text attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        self.record.attributes.push((name, Attribute::Text(text.into())));
        self
    }

    /// Runs the work of the call; decisions made in it are noted in this span.
    pub fn around<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        // Boxed, since the work would enlarge every future around it, with or without a span.
        Box::pin(NOTE.scope(self.note.clone(), work))
    }

    /// Adds a number attribute.
    pub fn set(&mut self, name: &'static str, number: i64) {
        self.record.attributes.push((name, Attribute::Number(number)));
    }

    /// Marks the span as failed because of an error of the server. A denial is no failure.
    pub fn fail(&mut self) {
        self.record.failed = true;
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let took = SystemClock.elapsed().saturating_sub(self.since);
        let SpanRecord { ids, listener, failed, start, .. } = self.record;
        let (name, attributes) = (take(&mut self.record.name), take(&mut self.record.attributes));
        let note = self.note.lock().unwrap_or_else(PoisonError::into_inner).take();
        let end = start.saturating_add(took);
        self.queue.push(SpanRecord { ids, listener, name, attributes, note, failed, start, end });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(outcome: &'static str) -> DecisionNote {
        DecisionNote { rule: Some(outcome.into()), outcome, source: "memory" }
    }

    #[tokio::test]
    async fn the_first_decision_that_did_not_allow_is_kept() {
        for (made, kept) in [
            (&["allow"][..], "allow"),
            (&["allow", "deny", "allow"], "deny"),
            (&["never", "deny"], "never"),
            (&["allow", "error"], "error"),
        ] {
            let note = Arc::default();
            let work = async { made.iter().for_each(|outcome| record(|| decided(outcome))) };
            NOTE.scope(Arc::clone(&note), work).await;
            assert_eq!(*note.lock().unwrap(), Some(decided(kept)), "{made:?}");
        }
        record(|| panic!("there is no span to note it in"));
    }
}
