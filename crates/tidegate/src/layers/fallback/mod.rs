//! Layer that decides locally while the store does not reply. Imports: nothing.
//!
//! - `fleet_size`: how many processes share the store. `mirror`: charges what the store allows to
//!   the local state as well. `caller_deadline`: until when a caller waits.

mod caller_deadline;
mod fleet_size;
mod mirror;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Micros, Verdict, Wait};

pub use self::caller_deadline::CallerDeadline;
pub use self::fleet_size::FleetSize;
use self::mirror::{MirroredReservations, mirror};
use crate::engine::check_ttl;
use crate::{
    Call, Charge, Clock, Costs, Decision, Engine, EngineError, EngineFuture, Extension, Health,
    HoldId, HoldKind, HoldSpec, Inspection, Key, Memory, OnStoreFailure, Op, Refusal, RuleCost,
    RuleLimit, Shards, Source,
};

/// An engine that decides locally while the store fails. [`OnStoreFailure`] of each rule decides
/// how: this process counts by itself at a fraction of the limit, or denies, or allows everything.
///
/// The fraction is that of the rule, and at most one over the number of processes that share the
/// store, where that is known ([`fleet_size`](Self::fleet_size)). What the store allows this
/// process is charged to the local count as well, at most to the full fraction: when the store
/// fails, only the rest is granted. So is what extends one of the last 4,096 reservations of this
/// process, or exceeds it when it is settled. An engine that never has to wait
/// ([`Engine::is_synchronous`]) is not mirrored, nor are concurrency slots and limits that come
/// with calls.
///
/// The fallback covers checks, peeks, records, reservations and entries. A hold made here is
/// settled and renewed here for as long as it lasts, also after the store has recovered; no other
/// process knows it. A hold that covers no limit, because every rule allows everything, can be
/// settled and renewed by any process at any time. Refunds, resets, loans and calls about a hold in
/// the store make no sense without the store; they return its error.
///
/// A call that the store may have charged before it failed is charged here as well.
///
/// A caller that would not wait for the store's deadline sets its own: [`CallerDeadline`].
///
/// Around a [`Breaker`](crate::Breaker) it decides at once while the store is down. Without one,
/// every caller waits for the store's deadline.
///
/// ```
/// use tidegate::{Breaker, Fallback, Limiter, Memory, OnStoreFailure, Rule, StoreEvent};
/// # // In place of `tidegate_redis::Redis`, on which this crate does not depend.
/// # let redis = Memory::default();
///
/// let store = Fallback::new(Breaker::new(redis)).on_event(|event| match event {
///     StoreEvent::NoAnswer { error, .. } => eprintln!("decided locally: {error}"),
///     _ => {}
/// });
/// let rules = [
///     Rule::new("login", ["sliding-log 5/m".parse()?])?.on_store_failure(OnStoreFailure::Deny),
///     Rule::new("search", ["100/s".parse()?])?.on_store_failure(OnStoreFailure::Allow),
///     Rule::new("api", ["100/s".parse()?])?,       // half of the limit, counted in this process
/// ];
/// let limiter = Limiter::with_rules(store, rules)?;
/// # assert!(limiter.check_now("k")?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Fallback<E> {
    store: E,
    local: Memory,
    clock: Arc<dyn Clock>,
    fleet: Arc<FleetSize>,
    /// What the store allows is charged here as well.
    mirrors: bool,
    reservations: MirroredReservations,
    watcher: Box<dyn Fn(StoreEvent<'_>) + Send + Sync>,
}

/// Event of the store connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum StoreEvent<'a> {
    /// The store did not reply to a call.
    NoAnswer {
        /// The error of the store.
        error: &'a EngineError,
        /// Whether the fallback decides the call; otherwise the caller gets the error.
        covered: bool,
    },
}

/// Location bits ([`HoldId::location`](crate::HoldId::location)) of a hold made here. The locations
/// of a store are hashes and never have this value.
const LOCAL_HOLD: u128 = u128::MAX;

/// Location bits of a hold that covers no limit.
const EMPTY_HOLD: u128 = u128::MAX - 1;

impl<E: Engine> Fallback<E> {
    /// `retry_after` of a rule that denies everything, and of a cost that only the store could
    /// grant.
    const RETRY_AFTER: Micros = Micros::from_secs(1);

    /// An engine that uses `store`, and counts by itself while the store fails.
    pub fn new(store: E) -> Self {
        let clock = store.clock();
        let local = Memory::builder().clock(clock.clone()).build();
        let mirrors = !store.is_synchronous();
        let (fleet, reservations) = (Arc::default(), MirroredReservations::default());
        Self { store, local, clock, fleet, mirrors, reservations, watcher: Box::new(|_| {}) }
    }

    /// Divides limits by the number of processes that is recorded there.
    #[must_use]
    pub fn fleet_size(self, fleet: Arc<FleetSize>) -> Self {
        Self { fleet, ..self }
    }

    /// Bytes that the local counts may use; see
    /// [`MemoryBuilder::cap_bytes`](crate::MemoryBuilder::cap_bytes). Set it before the first call:
    /// the present counts are dropped.
    #[must_use]
    pub fn cap_bytes(self, cap_bytes: usize) -> Self {
        let local = Memory::builder().clock(self.store.clock()).cap_bytes(cap_bytes).build();
        Self { local, ..self }
    }

    /// Calls `watcher` whenever the store does not reply, inside the call; it must not block.
    #[must_use]
    pub fn on_event(self, watcher: impl Fn(StoreEvent<'_>) + Send + Sync + 'static) -> Self {
        Self { watcher: Box::new(watcher), ..self }
    }

    /// The store's result, or a local decision if the store failed.
    fn or_local(
        &self,
        call: Call<'_>,
        result: Result<Decision, EngineError>,
    ) -> Result<Decision, EngineError> {
        let error = match result {
            Err(error) if error.refusal().is_none() => error,
            result => {
                if let (true, Ok(decision)) = (self.mirrors, &result) {
                    mirror(&self.local, &self.fleet, &self.reservations, &call, decision);
                }
                return result;
            }
        };
        let covered = has_local_meaning(call.op);
        (self.watcher)(StoreEvent::NoAnswer { error: &error, covered });
        if covered { self.decide_locally(call) } else { Err(error) }
    }

    fn decide_locally(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        // A store that did not reply may not have validated the call.
        call.validate()?;
        let enforced = || call.charges.iter().filter(|charge| !charge.limit.is_shadow());
        let counted = enforced().filter_map(|charge| match charge.limit.on_store_failure() {
            OnStoreFailure::Fallback(max) => {
                Some((charge, charge.limit.local(self.fleet.share(max))))
            }
            OnStoreFailure::Deny | OnStoreFailure::Allow => None,
        });
        let counted: SmallVec<[(&Charge<'_>, Arc<RuleLimit>); 2]> = counted.collect();
        let local: SmallVec<[Charge<'_>; 2]> =
            counted.iter().map(|(charge, limit)| Charge { limit, ..**charge }).collect();
        let denied = enforced().any(|c| c.limit.on_store_failure() == OnStoreFailure::Deny);
        let mut decision = Decision::new(Source::Fallback, SmallVec::new());
        if !local.is_empty() {
            let call = Call { charges: &local, ..call };
            // All or none: if one rule denies, no other is charged.
            let call = if denied && call.op.takes() { as_peek(call) } else { as_local_call(call) };
            decision = as_local(self.local.decide(call).now()?);
        }
        let mut verdicts = decision.verdicts.iter();
        let verdicts = enforced().filter_map(|charge| match charge.limit.on_store_failure() {
            OnStoreFailure::Fallback(_) => {
                verdicts.next().map(|verdict| with_full_limit(charge, *verdict))
            }
            OnStoreFailure::Deny => Some(uncounted(charge, Wait::For(Self::RETRY_AFTER))),
            OnStoreFailure::Allow => Some(uncounted(charge, Wait::NONE)),
        });
        decision.verdicts = verdicts.collect();
        if let (Op::Hold(hold), true, None) = (call.op, decision.allowed(), decision.hold())
            && hold.kind == HoldKind::Reservation
        {
            check_ttl(hold.ttl, enforced().map(|charge| charge.limit))?;
            decision.details_mut().hold = Some(hold.id.with_location(EMPTY_HOLD));
        }
        Ok(decision)
    }

    /// Settles, renews or extends a hold that was made here. The costs of rules that are not
    /// counted here are left out.
    fn settle_locally(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        let (Op::Settle { costs: Costs::Each(each), .. }
        | Op::Extend { to: Extension { totals: each, .. }, .. }) = call.op
        else {
            return self.local.decide(call).now();
        };
        let mut counted: SmallVec<[RuleCost<'_>; 2]> = each.iter().copied().collect();
        loop {
            let op = match call.op {
                Op::Extend { id, to } => {
                    Op::Extend { id, to: Extension { totals: &counted, ..to } }
                }
                Op::Settle { id, .. } => Op::Settle { id, costs: Costs::Each(&counted) },
                op => op,
            };
            let result = self.local.decide(Call { op, ..call }).now();
            let Err(EngineError::Refused(Refusal::NotHeld(rule))) = &result else { return result };
            let uncounted = rule.clone();
            counted.retain(|cost| *cost.rule != *uncounted);
        }
    }

    /// Settles, renews or extends a hold that was made here, whether the store is up or not.
    fn on_local_hold(&self, call: &Call<'_>) -> Option<Result<Decision, EngineError>> {
        match call.op.about_hold()?.location() {
            LOCAL_HOLD => match self.settle_locally(*call) {
                // Made by another process.
                Err(EngineError::Refused(Refusal::UnknownHold)) => None,
                result => Some(result.map(as_local)),
            },
            EMPTY_HOLD => {
                let nothing = |()| Decision::new(Source::Fallback, SmallVec::new());
                Some(call.validate().map(nothing))
            }
            _ => None,
        }
    }
}

/// A reservation of which only limits are counted here that are charged at once is a check; see
/// [`EMPTY_HOLD`].
fn as_local_call(call: Call<'_>) -> Call<'_> {
    let holds = call.charges.iter().any(|charge| call.op.holds(charge.limit));
    match call.op {
        Op::Hold(HoldSpec { kind: HoldKind::Reservation, .. }) if !holds => {
            Call { op: Op::Check, ..call }
        }
        _ => call,
    }
}

/// Whether the operation makes sense without the store. Consumption counted there can only be given
/// back there.
fn has_local_meaning(op: Op<'_>) -> bool {
    match op {
        Op::Check | Op::Peek | Op::Record => true,
        Op::Hold(hold) => !hold.is_loan(),
        Op::Refund | Op::Reset => false,
        Op::Settle { .. } | Op::Renew { .. } | Op::Extend { .. } => false,
    }
}

/// The same call without charging.
fn as_peek(call: Call<'_>) -> Call<'_> {
    // Only a check can be looked up by its id.
    Call {
        op: Op::Peek,
        idempotency_key: call.idempotency_key.filter(|_| call.op == Op::Check),
        ..call
    }
}

/// Marks a decision of the local memory, and its hold, as made here.
fn as_local(mut decision: Decision) -> Decision {
    decision.source = Source::Fallback;
    if let Some(id) = decision.hold() {
        decision.details_mut().hold = Some(id.with_location(LOCAL_HOLD));
    }
    decision
}

/// A cost above the local fraction of the limit may fit into the whole limit once the store is
/// back: the verdict is "retry later", not "never".
fn with_full_limit(charge: &Charge<'_>, verdict: Verdict) -> Verdict {
    let fits = charge.cost.get() <= charge.limit.limit().capacity();
    if verdict.retry_after != Wait::Never || !fits || charge.limit.limit().capacity() == 0 {
        return verdict;
    }
    let wait = verdict.reset_after.max(Fallback::<Memory>::RETRY_AFTER);
    Verdict { retry_after: Wait::For(wait), ..verdict }
}

/// The verdict of a limit that is not counted.
fn uncounted(charge: &Charge<'_>, retry_after: Wait) -> Verdict {
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
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        if let Some(result) = self.on_local_hold(&call) {
            return EngineFuture::Ready(result);
        }
        match self.store.decide(call) {
            EngineFuture::Ready(result) => EngineFuture::Ready(self.or_local(call, result)),
            EngineFuture::Pending(result) => EngineFuture::Pending(Box::pin(async move {
                let result = CallerDeadline::bound(&self.clock, result).await;
                self.or_local(call, result)
            })),
        }
    }

    fn is_synchronous(&self) -> bool {
        self.store.is_synchronous()
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.store.inspect(limit, key)
    }

    fn locate_hold<'a>(&'a self, id: HoldId, key: Key<'a>) -> EngineFuture<'a, HoldId> {
        if self.local.has_hold(id) {
            return EngineFuture::Ready(Ok(id.with_location(LOCAL_HOLD)));
        }
        self.store.locate_hold(id, key)
    }

    fn shards(&self, call: &Call<'_>) -> Shards {
        self.store.shards(call)
    }

    fn health(&self) -> Health {
        let mut health = self.store.health();
        let local = self.local.health();
        health.memory_bytes += local.memory_bytes;
        health.memory.add_all(&local.memory);
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }
}
