//! A store that does not answer is left alone for a while.
//!
//! # Layout
//!
//! - `machine`: one shard, as it has answered so far. `tally`: what became of its latest calls.
//! - `gates`: who passes, and what is told about it.

mod gates;
mod machine;
mod tally;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Cost, Verdict};

use self::gates::Gates;
use crate::{
    Answer, Call, Charge, Clock, Decision, Engine, EngineError, Health, Inspection, Key, Op,
    RuleLimit, Shards, Source,
};

/// An engine around another that stops asking it once it does not answer: callers get
/// [`EngineError::Unavailable`] at once instead of waiting for a deadline each, and the store is not asked by
/// all of them while it struggles.
///
/// For every shard of the store (see [`Engine::shards`]) there is a circuit:
///
/// - **closed**, calls pass. It opens when at least 5 calls of about the last second failed and those are at
///   least half of them; or when 5 in a row failed and nobody was answered for 250 ms. No answer is a failure;
///   a decision is none, nor is a refusal or an error about one key. A call that is dropped says nothing, nor does
///   one that is refused before the store is asked.
/// - **open**, nothing is sent. After 50 to 100 ms one call is let through as a probe; if that fails, the next
///   after 100 to 200 ms. A store that says itself that it is not there ([`Health::up`]) is looked at every 20 ms
///   instead, which costs no caller anything, and asked once in 0.4 to 0.8 s.
/// - **half-open**, one call at a time passes. After 3 good ones in a row it is closed.
///
/// A shard that nobody asks for 10 s is forgotten, and closed.
///
/// So that it does not flap, opening again within 30 s of closing doubles the number of good probes that it takes,
/// up to 48. And a store that answers as soon as it is left alone, and fails again under what it is then asked, is left
/// alone for twice as long each time, up to 6.4 s.
///
/// A call that asks several shards passes if all of their circuits let it, and its outcome counts for each of
/// them: one that is well and opened for another's sake is closed by its next probes.
///
/// The engine needs a deadline of its own: nothing is known about calls that are never answered. This goes right around
/// the store; a [`DenyCache`](crate::DenyCache), a [`Lease`](crate::Lease) and a [`Fallback`](crate::Fallback) go around it.
///
/// ```
/// use tidegate::{Breaker, BreakerEvent, Fallback, Limiter, Memory};
/// # let store = Memory::default();
/// let guarded = Breaker::new(store).watched_by(|event| match event {
///     BreakerEvent::Opened { error, .. } => eprintln!("the store is left alone: {error}"),
///     BreakerEvent::Closed { after, .. } => eprintln!("it answers again, after {after:?}"),
///     _ => {}
/// });
/// let limiter = Limiter::new(Fallback::new(guarded), "100/s".parse()?);
/// # assert!(limiter.check_now("k")?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Breaker<E> {
    engine: E,
    gates: Gates,
}

/// What a [`Breaker`] does, for whoever watches it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum BreakerEvent<'a> {
    /// Calls to a shard are not sent any more.
    #[non_exhaustive]
    Opened {
        /// Its number; 0 if the store fails as a whole.
        shard: usize,
        /// The last of the failures that were too many.
        error: &'a EngineError,
    },
    /// They are sent again.
    #[non_exhaustive]
    Closed {
        /// Its number; 0 if the store fails as a whole.
        shard: usize,
        /// How long it was open.
        after: Duration,
    },
    /// Nobody has asked a shard for 10 s that was open, perhaps because another server has what it had. Whoever
    /// does is sent to it.
    #[non_exhaustive]
    Forgotten {
        /// Its number; 0 if the store fails as a whole.
        shard: usize,
        /// How long it was open.
        after: Duration,
    },
}

impl<E: Engine> Breaker<E> {
    /// An engine that asks `engine`, as long as that answers.
    pub fn new(engine: E) -> Self {
        Self { gates: Gates::new(engine.clock()), engine }
    }

    /// Counts an answer that comes later than this as a failure, though it is passed on. Not set at first:
    /// the deadline of the engine makes an error of what is too late.
    #[must_use]
    pub fn slow_after(mut self, span: Duration) -> Self {
        self.gates.slow_after = Some(span.into());
        self
    }

    /// Tells `watcher` of every transition. It is called in the middle of a call, so it has to be quick.
    #[must_use]
    pub fn watched_by(
        mut self,
        watcher: impl Fn(BreakerEvent<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.gates.watcher = Box::new(watcher);
        self
    }

    /// Draws the pauses from `seed`, so that a simulation can be repeated.
    #[doc(hidden)]
    #[must_use]
    pub fn test_seed(mut self, seed: u64) -> Self {
        self.gates.seed(seed);
        self
    }

    /// How often a circuit was opened.
    pub fn opened(&self) -> u64 {
        self.gates.opened()
    }

    /// How many calls were refused without asking the engine.
    pub fn refused(&self) -> u64 {
        self.gates.refused()
    }

    /// The engine that it asks.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    fn is_up(&self) -> bool {
        self.engine.health().up
    }

    /// Asks, if these shards are to be asked, and remembers how it went. To know them a store may have to hash
    /// keys, so they are looked for only if it matters, and not for calls that nobody makes in the end.
    fn guard<'a, T: 'a>(
        &'a self,
        shards: impl Fn() -> Shards + Send + 'a,
        ask: impl FnOnce() -> Answer<'a, T>,
    ) -> Answer<'a, T> {
        let entered = match self.gates.enter_while_all_well() {
            Some(passage) => Ok(passage),
            None => self.gates.enter(shards(), || self.is_up()),
        };
        let passage = match entered {
            Ok(passage) => passage,
            Err(refused) => return Answer::Ready(Err(refused)),
        };
        match ask() {
            Answer::Ready(answer) => {
                passage.about(shards()).note(&answer);
                Answer::Ready(answer)
            }
            Answer::Later(answer) => {
                // Nothing is asked before it is polled, which may be never. Whoever is to be a probe becomes
                // one then.
                drop(passage);
                Answer::Later(Box::pin(async move {
                    let passage = self.gates.enter(shards(), || self.is_up())?;
                    let answer = answer.await;
                    passage.note(&answer);
                    answer
                }))
            }
        }
    }
}

impl<E: Engine> Engine for Breaker<E> {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        self.guard(move || self.engine.shards(&call), || self.engine.decide(call))
    }

    /// What an engine can say at once says nothing about whether it would answer, and counts for nothing.
    fn check_one(&self, charge: &Charge<'_>) -> Option<(Source, Verdict)> {
        let call = Call { op: Op::Check, charges: std::slice::from_ref(charge), once: None };
        let closed = self.gates.are_all_well() || self.gates.all_closed(self.engine.shards(&call));
        if closed { self.engine.check_one(charge) } else { None }
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        let shards = move || {
            let charge = [Charge { limit, key, cost: Cost::ZERO, who: None }];
            self.engine.shards(&Call { op: Op::Peek, charges: &charge, once: None })
        };
        self.guard(shards, || self.engine.inspect(limit, key))
    }

    fn shards(&self, call: &Call<'_>) -> Shards {
        self.engine.shards(call)
    }

    fn health(&self) -> Health {
        let mut health = self.engine.health();
        health.circuit = Some(self.gates.worst());
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.engine.clock()
    }
}

impl<E> fmt::Debug for Breaker<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("circuit", &self.gates.worst()).finish_non_exhaustive()
    }
}
