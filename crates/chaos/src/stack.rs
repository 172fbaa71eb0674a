//! The layers that a user gets, put together as the server does it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{
    Breaker, BreakerEvent, DenyCache, Engine, EngineError, Fallback, Health, Lease, Limiter, Rule,
    Source, StoreEvent,
};
use tidegate_redis::{Redis, RedisBuilder};
use tokio::time::Instant;

use crate::traffic::SECRET;

/// How long a call may take, as it is unless set.
pub(crate) const DEADLINE: Duration = Duration::from_millis(25);
/// For what is not about deadlines.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Which layers, over what.
pub(crate) struct Setup {
    redis: RedisBuilder,
    deny_cache: bool,
    breaker: bool,
    fallback: bool,
}

impl Setup {
    pub(crate) fn on(url: &str) -> Self {
        let redis = Redis::builder(url).secret(SECRET);
        Self { redis, deny_cache: true, breaker: true, fallback: true }
    }

    /// Lets a call take so long.
    pub(crate) fn deadline(self, deadline: Duration) -> Self {
        Self { redis: self.redis.deadline(deadline), ..self }
    }

    /// Every denial is asked for.
    pub(crate) fn without_deny_cache(self) -> Self {
        Self { deny_cache: false, ..self }
    }

    /// Every call goes to the store, however it is.
    pub(crate) fn without_breaker(self) -> Self {
        Self { breaker: false, ..self }
    }

    /// Admits only what these know of.
    pub(crate) fn confirmed(self, confirmed: Confirmed) -> Self {
        match confirmed {
            Confirmed::ByNobody => self,
            Confirmed::ByReplica => Self { redis: self.redis.confirmed_by(1), ..self },
        }
    }

    /// Whoever gets no answer is told so.
    pub(crate) fn without_fallback(self) -> Self {
        Self { fallback: false, ..self }
    }

    pub(crate) fn build(self) -> Stack {
        let mut engine: Arc<dyn Engine> = Arc::new(self.redis.build().unwrap());
        let seen = Arc::new(Seen::default());
        if self.breaker {
            let watcher = Arc::clone(&seen);
            engine = Arc::new(Breaker::new(engine).watched_by(move |event| watcher.breaker(event)));
        }
        if self.deny_cache {
            engine = Arc::new(DenyCache::new(engine));
        }
        engine = Arc::new(Lease::new(engine));
        if self.fallback {
            let watcher = Arc::clone(&seen);
            engine = Arc::new(Fallback::new(engine).watched_by(move |event| watcher.store(event)));
        }
        Stack { engine, seen }
    }
}

/// Who has to know of a charge before it counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Confirmed {
    ByNobody,
    ByReplica,
}

impl Confirmed {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ByNobody => "charges count at once",
            Self::ByReplica => "charges count when a replica has them",
        }
    }
}

/// All layers over one store.
pub(crate) struct Stack {
    engine: Arc<dyn Engine>,
    seen: Arc<Seen>,
}

impl Stack {
    /// A limiter of these rules. Several on one stack share everything but the rules.
    pub(crate) fn limiter(&self, rules: impl IntoIterator<Item = Rule>) -> Limiter {
        Limiter::with_rules(Arc::clone(&self.engine), rules).unwrap()
    }

    pub(crate) fn health(&self) -> Health {
        self.engine.health()
    }

    /// What changed, and when.
    pub(crate) fn turns(&self) -> Vec<(Instant, Turn)> {
        self.seen.turns.lock().unwrap().clone()
    }

    /// When this happened first, since `since`.
    pub(crate) fn first(&self, turn: Turn, since: Instant) -> Option<Instant> {
        let turns = self.turns();
        turns.iter().find(|(at, what)| *what == turn && *at >= since).map(|(at, _)| *at)
    }

    /// How often it happened since `since`.
    pub(crate) fn count(&self, turn: Turn, since: Instant) -> u64 {
        self.turns().iter().filter(|(at, what)| *what == turn && *at >= since).count() as u64
    }

    /// Calls that the store may have charged without an answer, and that it has not.
    pub(crate) fn unanswered(&self) -> (u64, u64) {
        let Seen { ambiguous, unavailable, .. } = &*self.seen;
        (ambiguous.load(Ordering::Relaxed), unavailable.load(Ordering::Relaxed))
    }

    /// Completes when the store has decided something, or panics: then there is nothing to spoil. The first
    /// call brings the script along, which may take longer than a call may.
    pub(crate) async fn until_up(&self) {
        let limiter = self.limiter([Rule::new("first", ["1000/s".parse().unwrap()]).unwrap()]);
        for _ in 0..1000 {
            if limiter.check("anyone").await.is_ok_and(|said| said.source == Source::Redis) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("no answer from redis");
    }
}

/// What changes for good, until it changes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// The breaker keeps calls from the store.
    Opened,
    /// It lets them through again.
    Closed,
}

#[derive(Default)]
struct Seen {
    turns: Mutex<Vec<(Instant, Turn)>>,
    ambiguous: AtomicU64,
    unavailable: AtomicU64,
}

impl Seen {
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
            BreakerEvent::Opened { .. } => self.turn(Turn::Opened),
            BreakerEvent::Closed { .. } => self.turn(Turn::Closed),
            _ => {}
        }
    }

    fn turn(&self, turn: Turn) {
        self.turns.lock().unwrap().push((Instant::now(), turn));
    }
}
