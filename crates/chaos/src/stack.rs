//! The layers, combined as in the server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use testkit::engine::TEST_SECRET;
use testkit::timing::HANG;
use tidegate::{
    Breaker, BreakerEvent, Clock as _, DenyCache, Engine, EngineError, Fallback, FleetSize, Health,
    Lease, Limiter, Rule, Source, StoreEvent, SystemClock,
};
use tidegate_redis::{Redis, RedisBuilder, RuntimeHash};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Deadline of a call, unless a program sets another: that of a server.
pub(crate) const DEADLINE: Duration = RedisBuilder::DEADLINE;
/// Deadline of calls whose latency is not measured.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// Layers and settings of a [`Stack`].
pub(crate) struct Setup {
    redis: RedisBuilder,
    deny_cache: bool,
    breaker: bool,
    fallback: bool,
    heartbeats: bool,
}

impl Setup {
    pub(crate) fn on(url: &str) -> Self {
        let redis = Redis::builder(url).secret(TEST_SECRET).deadline(DEADLINE);
        Self { redis, deny_cache: true, breaker: true, fallback: true, heartbeats: false }
    }

    /// Sends heartbeats, by which the stacks on one store know how many they are.
    pub(crate) fn with_heartbeats(self) -> Self {
        Self { heartbeats: true, ..self }
    }

    /// Sets the deadline of a call.
    pub(crate) fn deadline(self, deadline: Duration) -> Self {
        Self { redis: self.redis.deadline(deadline), ..self }
    }

    /// Sends every check to the store, denied keys too.
    pub(crate) fn without_deny_cache(self) -> Self {
        Self { deny_cache: false, ..self }
    }

    /// Sends every call to the store, even after failures.
    pub(crate) fn without_breaker(self) -> Self {
        Self { breaker: false, ..self }
    }

    /// Sets when a charge counts.
    pub(crate) fn confirmed(self, confirmed: Confirmed) -> Self {
        match confirmed {
            Confirmed::Immediately => self,
            Confirmed::ByReplica => Self { redis: self.redis.wait_for_replicas(1), ..self },
        }
    }

    /// Returns errors of the store to the caller.
    pub(crate) fn without_fallback(self) -> Self {
        Self { fallback: false, ..self }
    }

    pub(crate) fn build(self) -> Stack {
        let redis = self.redis.build().unwrap();
        let fleet = Arc::<FleetSize>::default();
        let heartbeats = self.heartbeats.then(|| {
            let beat = beat(redis.runtime_hash(), Arc::clone(&fleet));
            AbortOnDrop(tokio::spawn(beat).abort_handle())
        });
        let mut engine: Arc<dyn Engine> = Arc::new(redis);
        let events = Arc::new(TransitionLog::default());
        if self.breaker {
            let watcher = Arc::clone(&events);
            engine = Arc::new(Breaker::new(engine).on_event(move |event| watcher.breaker(event)));
        }
        if self.deny_cache {
            engine = Arc::new(DenyCache::new(engine));
        }
        engine = Arc::new(Lease::new(engine));
        if self.fallback {
            let watcher = Arc::clone(&events);
            let fallback = Fallback::new(engine).fleet_size(Arc::clone(&fleet));
            engine = Arc::new(fallback.on_event(move |event| watcher.store(event)));
        }
        Stack { engine, events, fleet, _heartbeats: heartbeats }
    }
}

/// Polls the store as a server does.
async fn beat(hash: RuntimeHash, fleet: Arc<FleetSize>) {
    loop {
        if let Ok(version) = hash.poll().await {
            fleet.record(SystemClock.elapsed(), version.servers);
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// When a charge counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Confirmed {
    Immediately,
    ByReplica,
}

impl Confirmed {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Immediately => "charges count at once",
            Self::ByReplica => "charges count when a replica has them",
        }
    }
}

/// All layers over one store.
pub(crate) struct Stack {
    engine: Arc<dyn Engine>,
    events: Arc<TransitionLog>,
    fleet: Arc<FleetSize>,
    _heartbeats: Option<AbortOnDrop>,
}

impl Stack {
    /// How many stacks share the store, as far as this one knows.
    pub(crate) fn fleet_size(&self) -> Option<u32> {
        self.fleet.processes()
    }

    /// A limiter with these rules. All limiters of a stack share its engine.
    pub(crate) fn limiter(&self, rules: impl IntoIterator<Item = Rule>) -> Limiter {
        Limiter::with_rules(Arc::clone(&self.engine), rules).unwrap()
    }

    pub(crate) fn health(&self) -> Health {
        self.engine.health()
    }

    /// Transitions of the breaker with their times.
    pub(crate) fn transitions(&self) -> Vec<(Instant, StoreTransition)> {
        self.events.transitions.lock().unwrap().clone()
    }

    /// Time of the first such transition since `since`.
    pub(crate) fn first(&self, transition: StoreTransition, since: Instant) -> Option<Instant> {
        let transitions = self.transitions();
        transitions.iter().find(|(at, what)| *what == transition && *at >= since).map(|(at, _)| *at)
    }

    /// Calls without a reply: ambiguous ones, and those that were not charged.
    pub(crate) fn without_reply(&self) -> (u64, u64) {
        let TransitionLog { ambiguous, unavailable, .. } = &*self.events;
        (ambiguous.load(Ordering::Relaxed), unavailable.load(Ordering::Relaxed))
    }

    /// Completes once the store has decided a call; panics if it does not. The first call loads the
    /// script, which may take longer than the deadline.
    pub(crate) async fn until_up(&self) {
        let limiter = self.limiter([Rule::new("first", ["1000/s".parse().unwrap()]).unwrap()]);
        let begun = Instant::now();
        while begun.elapsed() < HANG {
            if limiter.check("anyone").await.is_ok_and(|result| result.source == Source::Redis) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("redis does not decide");
    }
}

/// A transition of the circuit breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoreTransition {
    Opened,
    Closed,
}

#[derive(Default)]
struct TransitionLog {
    transitions: Mutex<Vec<(Instant, StoreTransition)>>,
    ambiguous: AtomicU64,
    unavailable: AtomicU64,
}

impl TransitionLog {
    fn store(&self, event: StoreEvent<'_>) {
        if let StoreEvent::NoAnswer { error, .. } = event {
            let counter = match error {
                EngineError::Ambiguous(_) => &self.ambiguous,
                _ => &self.unavailable,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn breaker(&self, event: BreakerEvent<'_>) {
        match event {
            BreakerEvent::Opened { .. } => self.push(StoreTransition::Opened),
            BreakerEvent::Closed { .. } => self.push(StoreTransition::Closed),
            _ => {}
        }
    }

    fn push(&self, transition: StoreTransition) {
        self.transitions.lock().unwrap().push((Instant::now(), transition));
    }
}
