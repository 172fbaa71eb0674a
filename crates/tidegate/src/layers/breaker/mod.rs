//! Circuit breaker around an engine. Imports: nothing.
//!
//! - `state`: state machine of one circuit. `failure_rate`: failures of the last second, and calls
//!   without a reply. `reply_time`: how far away the store is.
//! - `circuits`: one circuit per shard, events. `call_guard`: a call in flight. `outcome`: what its
//!   result says about the store.
//! - `probe`: calls of the breaker itself, by which it notices that the store has recovered.

mod call_guard;
mod circuits;
mod error;
mod event;
mod failure_rate;
mod outcome;
mod probe;
mod reply_time;
mod state;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate_core::{Cost, Micros};
use tokio::runtime::Handle;

use self::call_guard::CallGuard;
use self::circuits::Circuits;
pub use self::event::BreakerEvent;
use self::probe::{GuardedStore, probe_call};
use crate::{
    Call, Charge, Clock, Decision, Engine, EngineError, EngineFuture, Health, HoldId, Inspection,
    Key, Op, RuleLimit, Shards,
};

/// Circuit breaker around an engine. Once the store fails, callers get
/// [`Unavailable`](crate::EngineError::Unavailable) at once instead of waiting for a deadline each,
/// and the struggling store gets fewer calls.
///
/// Every shard of the store (see [`Engine::shards`]) has a circuit:
///
/// - **closed**: calls are sent. The circuit opens when at least 5 calls of about the last second
///   failed and those are at least half of them, or when the store is silent: it has sent no reply
///   for 75 ms, and 5 calls have failed since the last one or are in flight for 25 ms or longer, or
///   2 such calls have failed. The 75 ms are twice the time of the fastest recent reply, if that is
///   longer. A decision is no failure, nor a refusal, nor an error about one key. A dropped call
///   and one that is refused before it is sent count for nothing. Calls in flight when it opens
///   fail at once, as [`Ambiguous`](crate::EngineError::Ambiguous).
/// - **open**: no calls are sent. After 50 to 100 ms the next call starts a probe; if that fails,
///   another is started after 100 to 200 ms. If the store itself reports that it is down
///   ([`Health::up`]), that report is polled every 20 ms instead, and a probe is sent every 0.4 to
///   0.8 s.
/// - **half-open**: a probe is in flight. After 3 successful probes in a row the circuit closes.
///
/// A probe is a check by the breaker itself, on a key of its own (rule `.probe`). It runs in a
/// Tokio task, and no caller waits for it. Outside a Tokio runtime, the caller that starts it waits
/// for it. It charges, because a store may reply and still refuse to write.
///
/// A shard without calls for 10 s is reset to closed; [`probe`](Self::probe) counts as a call.
///
/// To prevent flapping, opening again within 30 s of closing doubles the number of successful
/// probes needed, up to 48. If a store recovers as soon as it gets no calls and fails again under
/// load, the pause doubles each time, up to 6.4 s.
///
/// A call that touches several shards is sent if all of their circuits are closed, and its outcome
/// counts for each of them. A healthy shard that opened because of another one is closed by its
/// next probes.
///
/// The engine must have a deadline: in a Tokio runtime, whose timer must be enabled, a circuit also
/// opens while calls wait; outside of one, calls that never end count for nothing. The breaker goes
/// directly around the store; [`DenyCache`](crate::DenyCache), [`Lease`](crate::Lease) and
/// [`Fallback`](crate::Fallback) go around the breaker.
///
/// ```
/// use tidegate::{Breaker, BreakerEvent, Fallback, Limiter, Memory};
/// # let store = Memory::default();
/// let guarded = Breaker::new(store).on_event(|event| match event {
///     BreakerEvent::Opened { error, .. } => eprintln!("circuit opened: {error}"),
///     BreakerEvent::Closed { after, .. } => eprintln!("circuit closed after {after:?}"),
///     _ => {}
/// });
/// let limiter = Limiter::new(Fallback::new(guarded), "100/s".parse()?);
/// # assert!(limiter.check_now("k")?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Breaker<E> {
    store: Arc<GuardedStore<E>>,
    /// Since when the store is down, by the wall clock.
    down_since: Mutex<Option<Micros>>,
}

impl<E: Engine> Breaker<E> {
    /// A breaker around `engine`, with all circuits closed.
    pub fn new(engine: E) -> Self {
        Self { store: Arc::new(GuardedStore::new(engine)), down_since: Mutex::new(None) }
    }

    /// Counts a reply that takes longer than this as a failure, though it is still returned. Not
    /// set by default: the deadline of the engine turns late replies into errors.
    #[must_use]
    pub fn slow_after(self, span: Duration) -> Self {
        self.configured(|circuits| circuits.slow_after = Some(span.into()))
    }

    /// Calls `watcher` on every event, inside the call or the probe; must not block.
    #[must_use]
    pub fn on_event(self, watcher: impl Fn(BreakerEvent<'_>) + Send + Sync + 'static) -> Self {
        self.configured(|circuits| circuits.watcher = Box::new(watcher))
    }

    /// Draws the pauses from `seed`, so that a simulation can be repeated.
    #[doc(hidden)]
    #[must_use]
    pub fn test_seed(self, seed: u64) -> Self {
        self.configured(|circuits| circuits.seed(seed))
    }

    fn configured(mut self, set: impl FnOnce(&mut Circuits)) -> Self {
        // Shared only with probes, which only calls start.
        if let Some(store) = Arc::get_mut(&mut self.store) {
            set(&mut store.circuits);
        }
        self
    }

    /// Times a circuit opened.
    pub fn opened(&self) -> u64 {
        self.store.circuits.opened()
    }

    /// Calls refused because a circuit was open.
    pub fn refused(&self) -> u64 {
        self.store.circuits.refused()
    }

    /// The engine behind the breaker.
    pub fn engine(&self) -> &E {
        &self.store.engine
    }

    /// Checks whether the store decides, for a process that must know it without traffic. Sends one
    /// probe while all circuits are closed, and its outcome counts as that of a call. Otherwise
    /// starts the probes that are due, and returns the error of a call to the first shard that is
    /// not closed.
    pub async fn probe(&self) -> Result<(), EngineError> {
        let open = self.store.circuits.not_closed(Shards::ALL);
        if open != Shards::NONE {
            return self.admit_after_probes(open).await.map(drop);
        }
        let key = self.store.any_key();
        self.decide(probe_call(&[self.store.charge(&key)])).await?;
        self.store.count_success();
        Ok(())
    }

    /// Whether probes run without a caller that waits for them.
    fn can_start_probes(&self) -> bool {
        self.engine().is_synchronous() || Handle::try_current().is_ok()
    }

    /// Starts the probes that are due, and admits a call if all circuits of its shards are closed.
    fn admit(&self, shards: Shards) -> Result<CallGuard<'_>, EngineError> {
        for probe in self.store.due_probes(shards) {
            if self.engine().is_synchronous() {
                // It is ready at once.
                let _ = pin!(probe.run()).poll(&mut Context::from_waker(Waker::noop()));
            } else if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(probe.run());
            }
        }
        self.store.circuits.admit(shards)
    }

    /// As [`admit`](Self::admit). Waits for probes that nothing else would run.
    async fn admit_after_probes(&self, shards: Shards) -> Result<CallGuard<'_>, EngineError> {
        if self.can_start_probes() {
            return self.admit(shards);
        }
        for probe in self.store.due_probes(shards) {
            probe.run().await;
        }
        self.store.circuits.admit(shards)
    }

    /// Sends a call if the circuits of its shards are closed, and records the outcome.
    async fn send<T>(
        &self,
        shards: Shards,
        call: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let guard = self.admit_after_probes(shards).await?;
        self.store.circuits.until_open(guard.begin(), call).await
    }

    /// Sends a call if the circuits of its shards are closed, and records the outcome. Finding the
    /// shards may need a hash of the keys, so they are computed only if a circuit is not closed, or
    /// for the record of a call that was made.
    fn guard<'a, T: Unpin + Send + 'a>(
        &'a self,
        shards: impl Fn() -> Shards + Send + 'a,
        send: impl FnOnce() -> EngineFuture<'a, T> + Send + 'a,
    ) -> EngineFuture<'a, T> {
        let admitted = match self.store.circuits.admit_if_all_closed() {
            Some(guard) => Ok(guard),
            None if self.can_start_probes() => self.admit(shards()),
            None => {
                return EngineFuture::Pending(Box::pin(async move {
                    self.send(shards(), async move { send().await }).await
                }));
            }
        };
        let guard = match admitted {
            Ok(guard) => guard,
            Err(refused) => return EngineFuture::Ready(Err(refused)),
        };
        match send() {
            EngineFuture::Ready(result) => {
                guard.with_shards(shards()).record(&result);
                EngineFuture::Ready(result)
            }
            EngineFuture::Pending(result) => {
                // Nothing is sent before the first poll, which may never come. The call is admitted
                // at that time.
                EngineFuture::Pending(Box::pin(async move { self.send(shards(), result).await }))
            }
        }
    }
}

impl<E: Engine> Engine for Breaker<E> {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        let engine = self.engine();
        self.guard(move || engine.shards(&call), move || engine.decide(call))
    }

    fn is_synchronous(&self) -> bool {
        self.engine().is_synchronous()
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        let engine = self.engine();
        let shards = move || {
            let charge = [Charge { limit, key, cost: Cost::ZERO, caller: None }];
            engine.shards(&Call { op: Op::Peek, charges: &charge, idempotency_key: None })
        };
        self.guard(shards, move || engine.inspect(limit, key))
    }

    fn locate_hold<'a>(&'a self, id: HoldId, key: Key<'a>) -> EngineFuture<'a, HoldId> {
        self.engine().locate_hold(id, key)
    }

    fn shards(&self, call: &Call<'_>) -> Shards {
        self.engine().shards(call)
    }

    fn health(&self) -> Health {
        let mut health = self.engine().health();
        let status = self.store.circuits.status();
        health.circuit = Some(status.worst);
        // As the store itself does, a store of many shards counts as up if most of them are.
        health.up &= 2 * status.not_closed < health.shards.max(1);
        let mut since = None;
        if let Some((opened, failure)) = status.outage {
            since = Some(opened);
            health.error.get_or_insert_with(|| failure.cause().into());
        }
        let mut down_since = self.down_since.lock().unwrap_or_else(PoisonError::into_inner);
        *down_since = match health.error.is_some() || !health.up {
            true => down_since.or(since).or_else(|| Some(self.clock().now())),
            false => None,
        };
        health.since = *down_since;
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.engine().clock()
    }
}

impl<E> fmt::Debug for Breaker<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let circuit = self.store.circuits.status().worst;
        f.debug_struct("Breaker").field("circuit", &circuit).finish_non_exhaustive()
    }
}
