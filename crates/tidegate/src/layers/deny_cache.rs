//! Layer that caches denials.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Micros, Verdict, Wait};

use crate::fingerprint::fingerprint;
use crate::{
    Call, Charge, Clock, Decision, Engine, EngineError, EngineFuture, Health, HoldId, Inspection,
    Key, Op, RuleLimit, Shards, Source,
};

/// An engine that caches the denials of another. Repeated requests of a denied key are denied from
/// the cache. Under an attack that is nearly every request.
///
/// A denial is cached until its `retry_after` has passed, and for at most a second. Until then a
/// check of the same cost gets exactly the store's verdict, and one of a higher cost a lower bound
/// of its wait. Smaller costs, concurrency slots and calls with an id always go to the store. A
/// call over several limits is denied from the cache only if each of them was part of a cached
/// denial; the numbers are those of that denial.
///
/// So the cache never admits more. What another process gives back or charges is noticed within a
/// second. What is given back through this engine (a refund, a reset, a settled hold), what is
/// charged or held through it (a record, a smaller cost that is allowed), which makes the wait
/// longer, and a changed limit take effect at once.
///
/// ```
/// use tidegate::{DenyCache, Limit, Limiter, Memory, Source};
/// # let redis = Memory::default();
///
/// let limiter = Limiter::new(DenyCache::new(redis), "1/h".parse::<Limit>()?);
/// assert!(limiter.check_now("user-42")?.allowed());
/// assert_eq!(limiter.check_now("user-42")?.source, Source::Memory);       // the store denies
/// assert_eq!(limiter.check_now("user-42")?.source, Source::DenyCache);    // the cache repeats it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DenyCache<E> {
    store: E,
    clock: Arc<dyn Clock>,
    sets: Box<[Mutex<CacheSet>]>,
    /// Counts changes through this engine, by the bits of a state's tag or of a key's fingerprint.
    /// Keys share counters, so a few denials are dropped without need.
    changes: Box<[AtomicU32]>,
}

/// The entries that a fingerprint can occupy.
type CacheSet = [Option<CachedDenial>; 2];

/// The verdict of one limit on one key in a denied call.
struct CachedDenial {
    fingerprint: u64,
    limit: Arc<RuleLimit>,
    cost: Cost,
    verdict: Verdict,
    received: Micros,
    until: Micros,
    changes: ChangeCounters,
}

/// Changes of the state and of the key, read before the call was sent.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ChangeCounters(u32, u32);

impl<E: Engine> DenyCache<E> {
    /// Longest time that a denial is cached.
    pub const MAX_TTL: Micros = Micros::from_secs(1);
    const SETS: usize = 1 << 14;
    /// Each allowed check counts, so that there are more than checks within a denial's time.
    const COUNTERS: usize = 1 << 16;

    /// An engine around `store`. It caches up to 32,768 denials in about 5 MB.
    pub fn new(store: E) -> Self {
        Self {
            clock: store.clock(),
            store,
            sets: (0..Self::SETS).map(|_| Mutex::default()).collect(),
            changes: (0..Self::COUNTERS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The cached verdicts of all charges, in order, if one of them is a denial.
    fn cached_decision(&self, call: &Call<'_>) -> Option<Decision> {
        if call.op != Op::Check || call.idempotency_key.is_some() || call.validate().is_err() {
            return None;
        }
        let now = self.clock.elapsed();
        let mut decision = Decision::new(Source::DenyCache, SmallVec::new());
        for charge in distinct(call.charges)? {
            decision.push(charge.limit, self.cached_verdict(charge, now)?);
        }
        (!decision.allowed()).then_some(decision)
    }

    /// The cached verdict of one charge.
    fn cached_verdict(&self, charge: &Charge<'_>, now: Micros) -> Option<Verdict> {
        if !is_cacheable(charge) {
            return None;
        }
        let fingerprint = fingerprint(charge.limit.tag(), charge.key);
        let set = lock(self.set(fingerprint));
        let denial = set.iter().flatten().find(|denial| denial.fingerprint == fingerprint)?;
        let is_valid = now < denial.until
            && denial.changes == self.changes_of(charge.limit, fingerprint)
            && denial.is_of(charge.limit);
        if is_valid { denial.verdict(charge.cost, now) } else { None }
    }

    fn cache(&self, charges: &[Charge<'_>], decision: &Decision, before: &CallSnapshot) {
        let Some(charges) = distinct(charges) else { return };
        let received = self.clock.elapsed();
        for ((charge, verdict), changes) in decision.pair_all(charges).zip(&before.changes) {
            let Some(verdict) = verdict.filter(|_| is_cacheable(charge)) else { continue };
            let span = match verdict.retry_after {
                _ if verdict.allowed => Self::MAX_TTL,
                Wait::For(span) => span.min(Self::MAX_TTL),
                Wait::Never => Self::MAX_TTL,
            };
            self.insert(CachedDenial {
                fingerprint: fingerprint(charge.limit.tag(), charge.key),
                limit: charge.limit.clone(),
                cost: charge.cost,
                verdict: *verdict,
                received,
                // From before it was sent: the store may have decided at once.
                until: before.at.saturating_add(span),
                changes: *changes,
            });
        }
    }

    fn insert(&self, denial: CachedDenial) {
        let mut set = lock(self.set(denial.fingerprint));
        let [one, other] = &mut *set;
        let of = |entry: &Option<CachedDenial>| entry.as_ref().map(|denial| denial.fingerprint);
        let until = |entry: &Option<CachedDenial>| entry.as_ref().map(|denial| denial.until);
        // Its present entry, or the one that expires first.
        let entry = match denial.fingerprint {
            own if of(one) == Some(own) => one,
            own if of(other) == Some(own) => other,
            _ if until(one) <= until(other) => one,
            _ => other,
        };
        *entry = Some(denial);
    }

    /// Invalidates denials that the call has made, or may have made, untrue.
    fn invalidate(&self, call: &Call<'_>, result: &Result<Decision, EngineError>) {
        let changes = |charge: &&Charge<'_>| call.op == Op::Reset || !charge.cost.is_zero();
        for charge in call.charges.iter().filter(changes) {
            self.count(fingerprint(charge.limit.tag(), charge.key));
        }
        // The key of a settled or renewed hold is not known, only its limits.
        for limit in result.iter().flat_map(Decision::held) {
            self.count(limit.tag().bits());
        }
    }

    fn changes_of(&self, limit: &RuleLimit, fingerprint: u64) -> ChangeCounters {
        let count = |bits| self.counter(bits).load(Ordering::Acquire);
        ChangeCounters(count(limit.tag().bits()), count(fingerprint))
    }

    fn count(&self, bits: u64) {
        self.counter(bits).fetch_add(1, Ordering::AcqRel);
    }

    fn counter(&self, bits: u64) -> &AtomicU32 {
        &self.changes[index(bits, Self::COUNTERS)]
    }

    fn set(&self, fingerprint: u64) -> &Mutex<CacheSet> {
        &self.sets[index(fingerprint, Self::SETS)]
    }

    fn snapshot(&self, call: &Call<'_>) -> CallSnapshot {
        let changes = |c: &Charge<'_>| self.changes_of(c.limit, fingerprint(c.limit.tag(), c.key));
        let is_cached = call.op == Op::Check && call.idempotency_key.is_none();
        let changes = call.charges.iter().take(if is_cached { usize::MAX } else { 0 }).map(changes);
        CallSnapshot { at: self.clock.elapsed(), changes: changes.collect() }
    }

    fn update(
        &self,
        call: &Call<'_>,
        before: &CallSnapshot,
        result: &Result<Decision, EngineError>,
    ) {
        match (call.op, result) {
            (Op::Check, Ok(decision)) if !decision.allowed() => {
                if call.idempotency_key.is_none() {
                    self.cache(call.charges, decision, before);
                }
            }
            // Nothing was charged.
            (Op::Hold(_), Ok(decision)) if !decision.allowed() => {}
            (Op::Peek, _) | (_, Err(EngineError::Refused(_) | EngineError::Unavailable(_))) => {}
            _ => self.invalidate(call, result),
        }
    }
}

/// Time and changes before the call was sent.
struct CallSnapshot {
    at: Micros,
    changes: SmallVec<[ChangeCounters; 2]>,
}

impl CachedDenial {
    /// Whether the denial is of this limit, and not of an earlier version.
    fn is_of(&self, limit: &Arc<RuleLimit>) -> bool {
        Arc::ptr_eq(&self.limit, limit) || self.limit.limit() == limit.limit()
    }

    /// The verdict for `cost` at `now`, if it follows from the cached one.
    fn verdict(&self, cost: Cost, now: Micros) -> Option<Verdict> {
        // A denied cost implies that higher costs are denied; an allowed cost, that lower ones are
        // allowed.
        let follows = if self.verdict.allowed { cost <= self.cost } else { cost >= self.cost };
        let passed = now.saturating_sub(self.received);
        let retry_after = match self.verdict.retry_after {
            _ if !self.verdict.allowed && cost.get() > self.verdict.limit => Wait::Never,
            Wait::For(span) => Wait::For(span.saturating_sub(passed)),
            Wait::Never => Wait::Never,
        };
        let reset_after = self.verdict.reset_after.saturating_sub(passed);
        follows.then_some(Verdict { retry_after, reset_after, ..self.verdict })
    }
}

/// Whether denials of this charge can be cached. Concurrency slots are released at any time, and a
/// peek takes nothing.
fn is_cacheable(charge: &Charge<'_>) -> bool {
    charge.cost > Cost::ZERO && charge.limit.limit().algorithm() != Algorithm::Concurrency
}

/// Index below `count`, by the upper half of the bits.
fn index(bits: u64, count: usize) -> usize {
    (((bits >> 32) * count as u64) >> 32) as usize
}

/// The charges, unless two are on the same state: then the verdict is of their sum.
fn distinct<'a, 'c>(charges: &'c [Charge<'a>]) -> Option<&'c [Charge<'a>]> {
    let same = |a: &Charge<'_>, b: &Charge<'_>| {
        a.limit.tag() == b.limit.tag() && a.key.parts().eq(b.key.parts())
    };
    let is_repeated =
        |(i, charge): (usize, &Charge<'_>)| charges[..i].iter().any(|c| same(c, charge));
    (!charges.iter().enumerate().any(is_repeated)).then_some(charges)
}

impl<E: Engine> Engine for DenyCache<E> {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        if let Some(decision) = self.cached_decision(&call) {
            return EngineFuture::Ready(Ok(decision));
        }
        let before = self.snapshot(&call);
        match self.store.decide(call) {
            EngineFuture::Ready(result) => {
                self.update(&call, &before, &result);
                EngineFuture::Ready(result)
            }
            EngineFuture::Pending(result) => EngineFuture::Pending(Box::pin(async move {
                let result = result.await;
                self.update(&call, &before, &result);
                result
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
        self.store.locate_hold(id, key)
    }

    fn shards(&self, call: &Call<'_>) -> Shards {
        self.store.shards(call)
    }

    fn health(&self) -> Health {
        let own = self.sets.len() * size_of::<Mutex<CacheSet>>()
            + self.changes.len() * size_of::<AtomicU32>();
        let mut health = self.store.health();
        health.memory_bytes += own as u64;
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }
}

impl<E> fmt::Debug for DenyCache<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenyCache").finish_non_exhaustive()
    }
}

/// A poisoned lock is ignored: no code under the lock is known to panic, and a lost denial does no
/// harm.
fn lock(set: &Mutex<CacheSet>) -> std::sync::MutexGuard<'_, CacheSet> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}
