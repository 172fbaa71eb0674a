//! One call, from its beginning to its end.

use std::borrow::Cow;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate::{Clock, Micros, Outcome, SystemClock};

use super::Tracer;
use super::parent::Parent;
use crate::metrics::Door;
use crate::service::Answer;

/// A call that has begun. It ends when it is dropped, also if nobody waits for it any more.
#[derive(Debug)]
pub struct Span {
    tracer: Arc<Tracer>,
    record: Record,
    /// When it began, on the clock that never steps.
    since: Micros,
    noted: Arc<Mutex<Option<Note>>>,
}

/// What a collector is told about a call.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) ids: Ids,
    pub(super) door: Door,
    pub(super) name: Cow<'static, str>,
    pub(super) attributes: Vec<(&'static str, Attribute)>,
    pub(super) note: Option<Note>,
    pub(super) failed: bool,
    pub(super) start: Micros,
    pub(super) end: Micros,
}

/// A value that a span has under some name.
#[derive(Clone, Debug)]
pub(super) enum Attribute {
    Text(Cow<'static, str>),
    Number(i64),
}

/// Which span of which trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids {
    pub(super) trace: u128,
    pub(super) span: u64,
    pub(super) parent: Option<u64>,
}

impl Ids {
    /// A new span: of the parent's trace, or of a new one.
    pub(super) fn below(parent: Option<Parent>) -> Self {
        let new_trace = || u128::from(random()) << 64 | u128::from(random());
        Self {
            trace: parent.map_or_else(new_trace, |parent| parent.trace),
            span: random(),
            parent: parent.map(|parent| parent.span),
        }
    }
}

/// Never zero. It has to be unlike all others, not secret: the standard library's keys do.
fn random() -> u64 {
    RandomState::new().hash_one(0).max(1)
}

/// What was decided about a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The rule that speaks; none if no limit applies.
    pub(super) rule: Option<Box<str>>,
    pub(super) outcome: &'static str,
    pub(super) source: &'static str,
}

impl Note {
    /// A decision.
    pub fn decided(answer: &Answer) -> Self {
        let (rule, outcome) = match answer.speaker() {
            Some((limit, verdict)) => (Some(limit.rule().into()), verdict.outcome()),
            None if answer.decision.allowed() => (None, Outcome::Allow),
            None => (None, Outcome::Never),
        };
        let outcome = match outcome {
            Outcome::Allow => "allow",
            Outcome::RetryAfter(_) => "deny",
            Outcome::Never => "never",
        };
        Self { rule, outcome, source: answer.decision.source.name() }
    }

    /// No decision, since the store gave none.
    pub fn no_answer() -> Self {
        Self { rule: None, outcome: "error", source: "none" }
    }
}

tokio::task_local! {
    static NOTED: Arc<Mutex<Option<Note>>>;
}

/// Notes what was decided in the span that surrounds this, if one does. Of several decisions in one call
/// the first counts, and the first that did not allow before it.
pub fn note(make: impl FnOnce() -> Note) {
    let _ = NOTED.try_with(|noted| {
        let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.as_ref().is_none_or(|before| before.outcome == "allow") {
            let new = make();
            if noted.is_none() || new.outcome != "allow" {
                *noted = Some(new);
            }
        }
    });
}

impl Span {
    pub(super) fn new(tracer: Arc<Tracer>, door: Door, ids: Ids) -> Self {
        let (start, since) = (SystemClock.now(), SystemClock.elapsed());
        let (name, attributes) = (Cow::Borrowed(door.name()), Vec::new());
        let record =
            Record { ids, door, name, attributes, note: None, failed: false, start, end: start };
        Self { tracer, record, since, noted: Arc::default() }
    }

    /// What the call is called: few different ones, and nothing of the caller's.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.record.name = name.into();
        self
    }

    /// Has a text under some name.
    #[must_use]
    pub fn with(mut self, name: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        self.record.attributes.push((name, Attribute::Text(text.into())));
        self
    }

    /// Does the work of the call, in which decisions are noted.
    pub fn around<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        // Apart, since the work would make every future around it larger, with or without a span.
        Box::pin(NOTED.scope(self.noted.clone(), work))
    }

    /// Has a number under some name.
    pub fn set(&mut self, name: &'static str, number: i64) {
        self.record.attributes.push((name, Attribute::Number(number)));
    }

    /// The server was at fault. A denial is none.
    pub fn fail(&mut self) {
        self.record.failed = true;
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let took = SystemClock.elapsed().saturating_sub(self.since);
        let Record { ids, door, failed, start, .. } = self.record;
        let (name, attributes) = (take(&mut self.record.name), take(&mut self.record.attributes));
        let note = self.noted.lock().unwrap_or_else(PoisonError::into_inner).take();
        let end = start.saturating_add(took);
        self.tracer.hand_over(Record { ids, door, name, attributes, note, failed, start, end });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(outcome: &'static str) -> Note {
        Note { rule: Some(outcome.into()), outcome, source: "memory" }
    }

    #[tokio::test]
    async fn the_first_decision_that_did_not_allow_is_the_one_that_is_told() {
        for (made, told) in [
            (&["allow"][..], "allow"),
            (&["allow", "deny", "allow"], "deny"),
            (&["never", "deny"], "never"),
            (&["allow", "error"], "error"),
        ] {
            let noted = Arc::default();
            let work = async { made.iter().for_each(|outcome| note(|| decided(outcome))) };
            NOTED.scope(Arc::clone(&noted), work).await;
            assert_eq!(*noted.lock().unwrap(), Some(decided(told)), "{made:?}");
        }
        note(|| panic!("nobody would read it"));
    }

    #[test]
    fn ids_are_new_and_a_child_stays_in_its_trace() {
        let parent = Parent { trace: 7, span: 9, sampled: true };
        let ids: Vec<Ids> = (0..1_000).map(|_| Ids::below(Some(parent))).collect();
        assert!(ids.iter().all(|ids| (ids.trace, ids.parent) == (7, Some(9)) && ids.span != 0));
        let mut spans: Vec<u64> = ids.iter().map(|ids| ids.span).collect();
        spans.sort_unstable();
        spans.dedup();
        assert_eq!(spans.len(), 1_000);
        let roots = [Ids::below(None), Ids::below(None)];
        assert!(roots[0].trace != roots[1].trace && roots[0].parent.is_none());
    }
}
