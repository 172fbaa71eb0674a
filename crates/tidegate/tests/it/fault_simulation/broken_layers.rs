//! Layers and stores with one bug each. The checker has to find every one of them.

use std::future::pending;
use std::sync::{Arc, Mutex};

use tidegate::{
    Call, Clock, Decision, Engine, EngineError, EngineFuture, Expiry, Health, HoldKind, Inspection,
    Key, Memory, Micros, Op, RuleLimit, Sleep, Source,
};

use crate::fault_simulation::store::Packet;

/// The claim that most of them break.
pub(crate) const LIMIT: &str = "no more is admitted than the bound of the limit";

/// The claim about a process that is cut off.
pub(crate) const MIRROR: &str = "what the store allowed counts against the share";

/// The bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutation {
    Nothing,
    /// Permits of a loan that are not reported when it ends are returned.
    LeaseReturnsUnreported,
    /// A loan is spent for twice as long as it lasts.
    LeaseIsSpentTooLong,
    /// A loan lasts for an hour.
    LeaseNeverEnds,
    FallbackAtTheFullLimit,
    /// What the store allowed does not count against the share.
    FallbackForgetsTheStore,
    /// A local decision names the store as its source.
    FallbackNamesTheStore,
    DenyCacheAdmits,
    DenyCacheLastsTooLong,
    /// It never closes again.
    BreakerStaysOpen,
    /// One failure opens it.
    BreakerFlaps,
    /// It is open, and every call passes.
    BreakerNeverBlocks,
    StoreForgetsIds,
    /// One charge in five is not stored.
    StoreForgetsCharges,
    /// A slot is granted though all are taken.
    StoreForgetsHolders,
    /// A call that may have been charged is sent again.
    RetriesAmbiguous,
    /// A call without a reply waits forever.
    Hangs,
}

impl Mutation {
    /// All bugs, and the claim that each has to break.
    pub(crate) const ALL: [(Self, &str); 16] = [
        (Self::LeaseReturnsUnreported, LIMIT),
        (Self::LeaseIsSpentTooLong, LIMIT),
        (Self::LeaseNeverEnds, "in the end the whole capacity is available again"),
        (Self::FallbackAtTheFullLimit, LIMIT),
        (Self::FallbackForgetsTheStore, MIRROR),
        (Self::FallbackNamesTheStore, "the store's decisions are made by the store, once"),
        (Self::DenyCacheAdmits, "a cached denial is of the last second"),
        (Self::DenyCacheLastsTooLong, "a cached denial is of the last second"),
        (Self::BreakerStaysOpen, "a store that recovered is used within a second"),
        (Self::BreakerFlaps, "a circuit opens after five failures"),
        (Self::BreakerNeverBlocks, "an open circuit admits one probe at a time, after a pause"),
        (Self::StoreForgetsIds, "an id is charged once"),
        (Self::StoreForgetsCharges, LIMIT),
        (Self::StoreForgetsHolders, "there are no more holders than slots"),
        (Self::RetriesAmbiguous, "nothing is sent twice"),
        (Self::Hangs, "every request gets a result"),
    ];

    /// The packet that a broken store executes instead of this one.
    pub(crate) fn corrupt_packet(self, packet: &Arc<Packet>, number: usize) -> Arc<Packet> {
        let mut done = (**packet).clone();
        match (self, &mut done.op) {
            (Self::StoreForgetsCharges, op @ Op::Check) if number.is_multiple_of(5) => {
                *op = Op::Peek;
            }
            (Self::StoreForgetsHolders, Op::Hold(hold)) if hold.kind == HoldKind::Entry => {
                hold.ttl = Micros::from_millis(30);
            }
            (Self::StoreForgetsIds, _) if done.once.is_some() => done.once = None,
            _ => return packet.clone(),
        }
        Arc::new(done)
    }

    pub(crate) fn above_the_wire(self, engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
        let here = matches!(self, Self::RetriesAmbiguous | Self::Hangs);
        self.break_layer(engine, here)
    }

    /// The breaker, which calls `watcher` whenever it opens or closes.
    pub(crate) fn as_the_breaker(
        self,
        engine: Arc<dyn Engine>,
        watcher: impl Fn(bool) + Send + Sync + 'static,
        working: impl FnOnce(Arc<dyn Engine>) -> Arc<dyn Engine>,
    ) -> Arc<dyn Engine> {
        match self {
            Self::BreakerStaysOpen | Self::BreakerFlaps | Self::BreakerNeverBlocks => {
                Arc::new(super::broken_breaker::BrokenBreaker::new(engine, self, watcher))
            }
            _ => working(engine),
        }
    }

    pub(crate) fn above_the_deny_cache(self, engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
        self.break_layer(
            engine,
            matches!(self, Self::DenyCacheAdmits | Self::DenyCacheLastsTooLong),
        )
    }

    pub(crate) fn below_the_lease(self, engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
        let here = matches!(
            self,
            Self::LeaseReturnsUnreported | Self::LeaseIsSpentTooLong | Self::LeaseNeverEnds
        );
        self.break_layer(engine, here)
    }

    pub(crate) fn as_the_fallback(
        self,
        engine: Arc<dyn Engine>,
        working: impl FnOnce(Arc<dyn Engine>) -> Arc<dyn Engine>,
    ) -> Arc<dyn Engine> {
        match self {
            Self::FallbackAtTheFullLimit => self.break_layer(engine, true),
            // A store that never has to wait is not mirrored.
            Self::FallbackForgetsTheStore => working(self.break_layer(engine, true)),
            Self::FallbackNamesTheStore => self.break_layer(working(engine), true),
            _ => working(engine),
        }
    }

    fn break_layer(self, engine: Arc<dyn Engine>, here: bool) -> Arc<dyn Engine> {
        if !here {
            return engine;
        }
        let local = Memory::builder().cap_bytes(1 << 20).clock(engine.clock()).build();
        Arc::new(BrokenLayer { engine, mutation: self, local, last_denial: Mutex::default() })
    }
}

struct BrokenLayer {
    engine: Arc<dyn Engine>,
    mutation: Mutation,
    local: Memory,
    /// The last denial: its decision, instant, rule and cost.
    last_denial: Mutex<Option<(Decision, Micros, String, u64)>>,
}

impl BrokenLayer {
    async fn decide_with_bug(&self, mut call: Call<'_>) -> Result<Decision, EngineError> {
        match (self.mutation, call.op) {
            (Mutation::LeaseReturnsUnreported, Op::Hold(loan)) if loan.is_loan() => {
                call.op = Op::hold(loan.id, loan.ttl, Expiry::Release);
            }
            (Mutation::LeaseNeverEnds, Op::Hold(loan)) if loan.is_loan() => {
                call.op = Op::loan(loan.id, Micros::from_secs(3_600));
            }
            (Mutation::LeaseNeverEnds, Op::Settle { .. }) => {
                return Err(EngineError::unavailable(std::io::Error::other("never reported")));
            }
            _ => {}
        }
        let result = self.engine.decide(call).await;
        match (self.mutation, result) {
            (Mutation::RetriesAmbiguous, Err(EngineError::Ambiguous(_))) => {
                self.engine.decide(call).await
            }
            (Mutation::Hangs, Err(EngineError::Ambiguous(_))) => pending().await,
            (Mutation::FallbackAtTheFullLimit, Err(error)) if error.refusal().is_none() => {
                if !matches!(call.op, Op::Check | Op::Peek | Op::Record) {
                    return Err(error);
                }
                let mut decision = self.local.decide(call).now()?;
                decision.source = Source::Fallback;
                Ok(decision)
            }
            (Mutation::FallbackNamesTheStore, Ok(mut decision)) => {
                if decision.source == Source::Fallback {
                    decision.source = Source::Redis;
                }
                Ok(decision)
            }
            (Mutation::DenyCacheAdmits, Ok(mut decision)) => {
                if decision.source == Source::DenyCache {
                    decision.verdicts.iter_mut().for_each(|verdict| verdict.allowed = true);
                }
                Ok(decision)
            }
            (Mutation::DenyCacheLastsTooLong, Ok(decision)) => {
                Ok(self.reuse_denial(&call, decision))
            }
            (_, result) => result,
        }
    }

    /// Returns a denial of the store for five seconds.
    fn reuse_denial(&self, call: &Call<'_>, decision: Decision) -> Decision {
        if call.op != Op::Check || call.charges.len() != 1 || call.idempotency_key.is_some() {
            return decision;
        }
        let now = self.engine.clock().elapsed();
        let (rule, cost) = (call.charges[0].limit.rule(), call.charges[0].cost.get());
        let mut last_denial = self.last_denial.lock().unwrap();
        match &*last_denial {
            Some((denial, at, of, costs))
                if of == rule
                    && *costs <= cost
                    && now.saturating_sub(*at) < Micros::from_secs(5)
                    && decision.allowed() =>
            {
                let mut denial = denial.clone();
                denial.source = Source::DenyCache;
                denial
            }
            _ => {
                if !decision.allowed() {
                    *last_denial = Some((decision.clone(), now, rule.to_string(), cost));
                }
                decision
            }
        }
    }
}

impl Engine for BrokenLayer {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(self.decide_with_bug(call)))
    }

    fn is_synchronous(&self) -> bool {
        self.mutation == Mutation::FallbackForgetsTheStore
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.engine.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.engine.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        match self.mutation {
            Mutation::LeaseIsSpentTooLong => Arc::new(SlowedClock(self.engine.clock())),
            _ => self.engine.clock(),
        }
    }
}

/// A third of the true pace.
struct SlowedClock(Arc<dyn Clock>);

impl Clock for SlowedClock {
    fn now(&self) -> Micros {
        self.0.now()
    }

    fn elapsed(&self) -> Micros {
        Micros::new(self.0.elapsed().get() / 3)
    }

    fn sleep_until(&self, elapsed: Micros) -> Sleep {
        self.0.sleep_until(Micros::new(elapsed.get() * 3))
    }
}
