//! What happens when the store does not answer.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Micros, Verdict, Wait};

use crate::engine::Refusal;
use crate::memory::check_ttl;
use crate::rule::OnStoreFailure;
use crate::{
    Answer, Call, Charge, Clock, Decision, Engine, EngineError, Health, Inspection, Key, Memory,
    Op, RuleLimit, Shards, Source,
};

/// An engine around another. When that one gives no answer, each rule says what becomes of a call:
/// this process counts alone at a share of the limit, or denies, or lets everything pass. See
/// [`OnStoreFailure`].
///
/// Whatever takes, looks or records is answered so, reservations and places among holders included. A hold
/// that was made here is settled and renewed here, for as long as it lasts, also when the store is back; no other
/// process knows of it. One that covers nothing, since every rule lets everything pass, is settled and renewed
/// by anybody at any time. Refunds, resets, loans and what is about a hold in the store have no meaning without it,
/// and stay without an answer.
///
/// A call that the store may have charged before it fell silent is charged here as well.
///
/// Around a [`Breaker`](crate::Breaker) it answers at once while the store is gone; without one, every caller
/// waits until the store's own deadline is over.
pub struct Fallback<E> {
    store: E,
    local: Memory,
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
        /// It is answered here instead; otherwise the caller gets the error.
        covered: bool,
    },
}

/// Where a hold lies that was made here, as its id tells ([`HoldId::place`]). The places of a store are hashes: none
/// of them is like this.
const HERE: u128 = u128::MAX;

/// Where a hold lies that covers nothing.
const NOWHERE: u128 = u128::MAX - 1;

impl<E: Engine> Fallback<E> {
    /// When to come back to a rule that denies everything, or with a cost that only the store could
    /// grant.
    const RETRY_AFTER: Micros = Micros::from_secs(1);

    /// An engine that asks `store`, and counts by itself when it has to.
    pub fn new(store: E) -> Self {
        let local = Memory::builder().clock(store.clock()).build();
        Self { store, local, watcher: Box::new(|_| {}) }
    }

    /// Tells `watcher` whenever the store gives no answer. It is called in the middle of a call, so it has to
    /// be quick.
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
            answer => return answer,
        };
        let covered = is_covered(call.op);
        (self.watcher)(StoreEvent::NoAnswer { error: &error, covered });
        if covered { self.decide_locally(call) } else { Err(error) }
    }

    fn decide_locally(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        // Whoever gave no answer may not have looked at it.
        call.validate()?;
        let deciding = || call.charges.iter().filter(|charge| !charge.limit.is_shadow());
        let mut local: SmallVec<[Charge<'_>; 2]> = SmallVec::new();
        for charge in deciding() {
            if let OnStoreFailure::Fallback(share) = charge.limit.on_store_failure() {
                local.push(Charge { limit: charge.limit.local(share), ..*charge });
            }
        }
        let denied = deciding().any(|c| c.limit.on_store_failure() == OnStoreFailure::Deny);
        let mut decision = Decision::new(Source::Fallback, SmallVec::new());
        if !local.is_empty() {
            let call = Call { charges: &local, ..call };
            // What one rule denies is taken from none.
            let call = if denied && call.op.takes() { looking(call) } else { call };
            decision = here(self.local.decide(call).now()?);
        }
        let mut counted = decision.verdicts.iter();
        let verdicts = deciding().filter_map(|charge| match charge.limit.on_store_failure() {
            OnStoreFailure::Fallback(_) => counted.next().map(|verdict| granted(charge, *verdict)),
            OnStoreFailure::Deny => Some(flat(charge, Wait::For(Self::RETRY_AFTER))),
            OnStoreFailure::Allow => Some(flat(charge, Wait::NONE)),
        });
        decision.verdicts = verdicts.collect();
        if let (Op::Hold { id, ttl, .. }, true, None) =
            (call.op, decision.allowed(), decision.hold())
        {
            check_ttl(ttl, deciding().map(|charge| charge.limit))?;
            decision.details_mut().hold = Some(id.at(NOWHERE));
        }
        Ok(decision)
    }

    /// The answer about a hold that was made here, whether the store is there or not.
    fn about_own_hold(&self, call: &Call<'_>) -> Option<Result<Decision, EngineError>> {
        let (Op::Settle { id, .. } | Op::Renew { id, .. }) = call.op else { return None };
        match id.place() {
            HERE => match self.local.decide(*call).now() {
                // Not by this engine, then.
                Err(EngineError::Refused(Refusal::UnknownHold)) => None,
                answer => Some(answer.map(here)),
            },
            NOWHERE => {
                let nothing = |()| Decision::new(Source::Fallback, SmallVec::new());
                Some(call.validate().map(nothing))
            }
            _ => None,
        }
    }
}

/// Has it a meaning without the store? What was counted there can only be given back there.
fn is_covered(op: Op) -> bool {
    match op {
        Op::Check | Op::Peek | Op::Record => true,
        Op::Hold { .. } | Op::Enter { .. } | Op::Visit { .. } => true,
        Op::Refund | Op::Reset | Op::Lend { .. } | Op::Settle { .. } | Op::Renew { .. } => false,
    }
}

/// The same call, taking nothing.
fn looking(call: Call<'_>) -> Call<'_> {
    // Only a check can be looked up by its id.
    Call { op: Op::Peek, once: call.once.filter(|_| call.op == Op::Check), ..call }
}

/// A decision of the local memory, and the hold that it made.
fn here(mut decision: Decision) -> Decision {
    decision.source = Source::Fallback;
    if let Some(id) = decision.hold() {
        decision.details_mut().hold = Some(id.at(HERE));
    }
    decision
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
        f.debug_struct("Fallback").finish_non_exhaustive()
    }
}

impl<E: Engine> Engine for Fallback<E> {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        if let Some(answer) = self.about_own_hold(&call) {
            return Answer::Ready(answer);
        }
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

    fn shards(&self, call: &Call<'_>) -> Shards {
        self.store.shards(call)
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
