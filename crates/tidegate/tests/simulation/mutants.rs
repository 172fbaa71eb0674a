//! Layers and stores that do one thing wrong: the checker has to find every one of them.

mod breaker;

use std::future::pending;
use std::sync::{Arc, Mutex};

use tidegate::{
    Answer, Call, Charge, Clock, Decision, Engine, EngineError, Expiry, Health, Inspection, Key,
    Memory, Micros, Op, RuleLimit, Sleep, Source, Verdict,
};

use crate::server::Packet;

/// What most of them break.
pub(crate) const LIMIT: &str = "no more passes than the limit promises";

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutation {
    Nothing,
    /// What is not reported of a loan when it ends is given back.
    LeaseReturnsWhatIsUnreported,
    /// A loan is spent for twice as long as it lasts.
    LeaseOutlivesItself,
    /// A loan lasts for an hour.
    LeaseIsForEver,
    FallbackAtTheFullLimit,
    /// What is decided here is said to be the store's.
    FallbackPassesForTheStore,
    DenyCacheAdmits,
    DenyCacheLastsTooLong,
    /// It is never closed again.
    BreakerStaysOpen,
    /// One failure opens it.
    BreakerFlaps,
    /// It is open, and everybody passes.
    BreakerLetsPass,
    StoreForgetsIds,
    /// One charge in five is not kept.
    StoreForgetsCharges,
    /// A place is given though all are taken.
    StoreForgetsHolders,
    /// What may have been charged is sent again.
    RetriesWhatIsAmbiguous,
    /// Whoever gets no answer waits for ever.
    Hangs,
}

impl Mutation {
    /// All of them, and the claim that each has to break.
    pub(crate) const ALL: [(Self, &str); 15] = [
        (Self::LeaseReturnsWhatIsUnreported, LIMIT),
        (Self::LeaseOutlivesItself, LIMIT),
        (Self::LeaseIsForEver, "in the end all can be had again"),
        (Self::FallbackAtTheFullLimit, LIMIT),
        (Self::FallbackPassesForTheStore, "the store's decisions are made by the store, once"),
        (Self::DenyCacheAdmits, "what is remembered is a denial of the last second"),
        (Self::DenyCacheLastsTooLong, "what is remembered is a denial of the last second"),
        (Self::BreakerStaysOpen, "a store that is back is used within a second"),
        (Self::BreakerFlaps, "a circuit opens after five failures"),
        (Self::BreakerLetsPass, "an open circuit lets through one at a time, after a pause"),
        (Self::StoreForgetsIds, "an id is charged once"),
        (Self::StoreForgetsCharges, LIMIT),
        (Self::StoreForgetsHolders, "there are no more holders than places"),
        (Self::RetriesWhatIsAmbiguous, "nothing is sent twice"),
        (Self::Hangs, "everybody gets an answer"),
    ];

    /// What the store does instead of this.
    pub(crate) fn of_the_store(self, packet: &Arc<Packet>, number: usize) -> Arc<Packet> {
        let mut done = (**packet).clone();
        match (self, &mut done.op) {
            (Self::StoreForgetsCharges, op @ Op::Check) if number.is_multiple_of(5) => {
                *op = Op::Peek;
            }
            (Self::StoreForgetsHolders, Op::Enter { ttl, .. }) => *ttl = Micros::from_millis(30),
            (Self::StoreForgetsIds, _) if done.once.is_some() => done.once = None,
            _ => return packet.clone(),
        }
        Arc::new(done)
    }

    pub(crate) fn above_the_wire(self, engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
        let here = matches!(self, Self::RetriesWhatIsAmbiguous | Self::Hangs);
        self.twist(engine, here)
    }

    /// The breaker, which tells `watcher` whenever it opens or closes.
    pub(crate) fn as_the_breaker(
        self,
        engine: Arc<dyn Engine>,
        watcher: impl Fn(bool) + Send + Sync + 'static,
        good: impl FnOnce(Arc<dyn Engine>) -> Arc<dyn Engine>,
    ) -> Arc<dyn Engine> {
        match self {
            Self::BreakerStaysOpen | Self::BreakerFlaps | Self::BreakerLetsPass => {
                Arc::new(breaker::WrongBreaker::new(engine, self, watcher))
            }
            _ => good(engine),
        }
    }

    pub(crate) fn above_the_deny_cache(self, engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
        self.twist(engine, matches!(self, Self::DenyCacheAdmits | Self::DenyCacheLastsTooLong))
    }

    pub(crate) fn below_the_lease(self, engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
        let here = matches!(
            self,
            Self::LeaseReturnsWhatIsUnreported | Self::LeaseOutlivesItself | Self::LeaseIsForEver
        );
        self.twist(engine, here)
    }

    pub(crate) fn as_the_fallback(
        self,
        engine: Arc<dyn Engine>,
        good: impl FnOnce(Arc<dyn Engine>) -> Arc<dyn Engine>,
    ) -> Arc<dyn Engine> {
        match self {
            Self::FallbackAtTheFullLimit => self.twist(engine, true),
            Self::FallbackPassesForTheStore => self.twist(good(engine), true),
            _ => good(engine),
        }
    }

    fn twist(self, engine: Arc<dyn Engine>, here: bool) -> Arc<dyn Engine> {
        if !here {
            return engine;
        }
        let local = Memory::builder().cap_bytes(1 << 20).clock(engine.clock()).build();
        Arc::new(Twisted { engine, mutation: self, local, remembered: Mutex::default() })
    }
}

struct Twisted {
    engine: Arc<dyn Engine>,
    mutation: Mutation,
    local: Memory,
    /// The last denial, when it was made, and of which rule and cost.
    remembered: Mutex<Option<(Decision, Micros, String, u64)>>,
}

impl Twisted {
    async fn decide_wrongly(&self, mut call: Call<'_>) -> Result<Decision, EngineError> {
        match (self.mutation, call.op) {
            (Mutation::LeaseReturnsWhatIsUnreported, Op::Lend { id, ttl }) => {
                call.op = Op::Hold { id, ttl, expiry: Expiry::Release };
            }
            (Mutation::LeaseIsForEver, Op::Lend { id, .. }) => {
                call.op = Op::Lend { id, ttl: Micros::from_secs(3_600) };
            }
            (Mutation::LeaseIsForEver, Op::Settle { .. }) => {
                return Err(EngineError::unavailable(std::io::Error::other("never told")));
            }
            _ => {}
        }
        let answer = self.engine.decide(call).await;
        match (self.mutation, answer) {
            (Mutation::RetriesWhatIsAmbiguous, Err(EngineError::Ambiguous(_))) => {
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
            (Mutation::FallbackPassesForTheStore, Ok(mut decision)) => {
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
            (Mutation::DenyCacheLastsTooLong, Ok(decision)) => Ok(self.remember(&call, decision)),
            (_, answer) => answer,
        }
    }

    /// Answers for five seconds with what the store has said once.
    fn remember(&self, call: &Call<'_>, decision: Decision) -> Decision {
        if call.op != Op::Check || call.charges.len() != 1 || call.once.is_some() {
            return decision;
        }
        let now = self.engine.clock().elapsed();
        let (rule, cost) = (call.charges[0].limit.rule(), call.charges[0].cost.get());
        let mut remembered = self.remembered.lock().unwrap();
        match &*remembered {
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
                    *remembered = Some((decision.clone(), now, rule.to_string(), cost));
                }
                decision
            }
        }
    }
}

impl Engine for Twisted {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        Answer::Later(Box::pin(self.decide_wrongly(call)))
    }

    fn check_one(&self, _charge: &Charge<'_>) -> Option<(Source, Verdict)> {
        None
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        self.engine.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.engine.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        match self.mutation {
            Mutation::LeaseOutlivesItself => Arc::new(Slow(self.engine.clock())),
            _ => self.engine.clock(),
        }
    }
}

/// A third of the true pace.
struct Slow(Arc<dyn Clock>);

impl Clock for Slow {
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
