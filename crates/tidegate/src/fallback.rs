//! What happens when the store does not answer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use tidegate_core::{Micros, Verdict, Wait};

use crate::rule::OnStoreFailure;
use crate::{
    Answer, Call, Charge, Clock, Decision, Engine, EngineError, Health, Inspection, Key, Memory,
    Op, RuleLimit, Source,
};

/// An engine around another. When that one gives no answer, each rule says what becomes of a check:
/// this process counts alone at a share of the limit, or denies, or lets everything pass. See
/// [`OnStoreFailure`].
///
/// Checks, peeks and records are answered so. What is about reservations, places among holders, refunds
/// and resets has no meaning without the store, and stays without an answer.
///
/// A call that the store may have charged before it fell silent is charged here as well.
pub struct Fallback<E> {
    store: E,
    local: Memory,
    /// The last call got no answer.
    failing: AtomicBool,
    watcher: Box<dyn Fn(StoreEvent<'_>) + Send + Sync>,
}

/// What a store does, for whoever watches it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum StoreEvent<'a> {
    /// It gave no answer to a call.
    NoAnswer {
        /// Why.
        error: &'a EngineError,
        /// The call before was answered.
        first: bool,
        /// It is answered here instead; otherwise the caller gets the error.
        covered: bool,
    },
    /// It answers again.
    Back,
}

impl<E: Engine> Fallback<E> {
    /// When to come back to a rule that denies everything, or with a cost that only the store could
    /// grant.
    const RETRY_AFTER: Micros = Micros::from_secs(1);

    /// An engine that asks `store`, and counts by itself when it has to.
    pub fn new(store: E) -> Self {
        let local = Memory::builder().clock(store.clock()).build();
        Self { store, local, failing: AtomicBool::new(false), watcher: Box::new(|_| {}) }
    }

    /// Tells `watcher` whenever the store gives no answer, and when it answers again. It is called in
    /// the middle of a call, so it has to be quick.
    #[must_use]
    pub fn watched_by(self, watcher: impl Fn(StoreEvent<'_>) + Send + Sync + 'static) -> Self {
        Self { watcher: Box::new(watcher), ..self }
    }

    /// The store's answer, or one of our own.
    fn or_local(
        &self,
        call: Call<'_>,
        answer: Result<Decision, EngineError>,
    ) -> Result<Decision, EngineError> {
        let error = match answer {
            Err(error) if error.refusal().is_none() => error,
            answer => {
                if self.failing.load(Ordering::Relaxed)
                    && !is_from_this_side(&answer)
                    && self.failing.swap(false, Ordering::Relaxed)
                {
                    (self.watcher)(StoreEvent::Back);
                }
                return answer;
            }
        };
        let first = !self.failing.swap(true, Ordering::Relaxed);
        let covered = matches!(call.op, Op::Check | Op::Peek | Op::Record);
        (self.watcher)(StoreEvent::NoAnswer { error: &error, first, covered });
        if covered { self.decide_locally(call) } else { Err(error) }
    }

    fn decide_locally(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        let deciding = || call.charges.iter().filter(|charge| !charge.limit.is_shadow());
        let mut local: SmallVec<[Charge<'_>; 2]> = SmallVec::new();
        for charge in deciding() {
            if let OnStoreFailure::Fallback(share) = charge.limit.on_store_failure() {
                local.push(Charge { limit: charge.limit.local(share), ..*charge });
            }
        }
        let denied = deciding().any(|c| c.limit.on_store_failure() == OnStoreFailure::Deny);
        // What one rule denies is charged to none.
        let op = if denied && call.op == Op::Check { Op::Peek } else { call.op };
        let mut decision = Decision::new(Source::Fallback, SmallVec::new());
        if !local.is_empty() {
            let answer = self.local.decide(Call { op, charges: &local, once: call.once });
            decision = answer.now()?;
            decision.source = Source::Fallback;
        }
        let mut counted = decision.verdicts.iter();
        let verdicts = deciding().filter_map(|charge| match charge.limit.on_store_failure() {
            OnStoreFailure::Fallback(_) => counted.next().map(|verdict| granted(charge, *verdict)),
            OnStoreFailure::Deny => Some(flat(charge, Wait::For(Self::RETRY_AFTER))),
            OnStoreFailure::Allow => Some(flat(charge, Wait::NONE)),
        });
        decision.verdicts = verdicts.collect();
        Ok(decision)
    }
}

/// Was it decided by a layer on this side of the store? Then it says nothing about the store.
fn is_from_this_side(answer: &Result<Decision, EngineError>) -> bool {
    matches!(answer, Ok(decision) if matches!(decision.source, Source::Lease | Source::DenyCache))
}

/// A cost that does not fit into a share of the limit may fit into all of it, once the store is back.
fn granted(charge: &Charge<'_>, verdict: Verdict) -> Verdict {
    let fits = charge.cost.get() <= charge.limit.limit().capacity();
    if verdict.retry_after != Wait::Never || !fits || charge.limit.limit().capacity() == 0 {
        return verdict;
    }
    let wait = verdict.reset_after.max(Fallback::<Memory>::RETRY_AFTER);
    Verdict { retry_after: Wait::For(wait), ..verdict }
}

/// The verdict of a limit that is not counted.
fn flat(charge: &Charge<'_>, retry_after: Wait) -> Verdict {
    let allowed = retry_after == Wait::NONE;
    let limit = charge.limit.limit().capacity();
    Verdict {
        allowed,
        retry_after,
        delay: Micros::ZERO,
        limit,
        remaining: if allowed { limit } else { 0 },
        reset_after: Micros::ZERO,
    }
}

impl<E> fmt::Debug for Fallback<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback").field("failing", &self.failing).finish_non_exhaustive()
    }
}

impl<E: Engine> Engine for Fallback<E> {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        match self.store.decide(call) {
            Answer::Ready(answer) => Answer::Ready(self.or_local(call, answer)),
            Answer::Later(answer) => {
                Answer::Later(Box::pin(async move { self.or_local(call, answer.await) }))
            }
        }
    }

    fn check_one(&self, charge: &Charge<'_>) -> Option<(Source, Verdict)> {
        self.store.check_one(charge)
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        self.store.inspect(limit, key)
    }

    fn health(&self) -> Health {
        let mut health = self.store.health();
        health.memory_bytes += self.local.health().memory_bytes;
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }
}
