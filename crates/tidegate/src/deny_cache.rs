//! Denials that are still good need not be asked for again.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Micros, Verdict, Wait};

use crate::fingerprint::fingerprint;
use crate::{
    Answer, Call, Charge, Clock, Decision, Engine, EngineError, Health, Inspection, Key, Op,
    RuleLimit, Shards, Source,
};

/// An engine around another that remembers denials: whoever is denied and asks again at once is told so
/// from here. Under an attack nearly every answer is such a one.
///
/// A denial is remembered until its `retry_after` is over, and for at most a second. Until then a
/// check of the same cost is answered exactly as the store would, and one of a higher cost with a lower
/// bound of its wait. Smaller costs, places among holders (`concurrency`) and calls with an id always
/// go to the store; a call over several limits is answered from here only if every one of them
/// was part of a denial that is remembered, and its numbers are those of that denial.
///
/// So it never lets more pass. What another process gives back is noticed a second late at most; what is
/// given back through this engine (a refund, a reset, a hold that is settled) and a changed limit, at
/// once.
pub struct DenyCache<E> {
    store: E,
    clock: Arc<dyn Clock>,
    sets: Box<[Mutex<Set>]>,
    /// How often something was given back, by the bits of a state's tag or of a key's fingerprint. Many
    /// share one; a denial too many is forgotten then.
    given_back: Box<[AtomicU32]>,
}

/// Where a fingerprint may lie.
type Set = [Option<Denial>; 2];

/// What one limit said about one key in a call that was denied.
struct Denial {
    fingerprint: u64,
    limit: Arc<RuleLimit>,
    cost: Cost,
    verdict: Verdict,
    received: Micros,
    until: Micros,
    stamp: Stamp,
}

/// What had been given back before the store was asked: of the whole state, and to the key.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp(u32, u32);

impl<E: Engine> DenyCache<E> {
    /// How long a denial is remembered at most.
    pub const LONGEST: Micros = Micros::from_secs(1);
    const SETS: usize = 1 << 14;
    const COUNTERS: usize = 1 << 12;

    /// An engine that asks `store`. It remembers up to 32,768 denials, in about 5 MB.
    pub fn new(store: E) -> Self {
        Self {
            clock: store.clock(),
            store,
            sets: (0..Self::SETS).map(|_| Mutex::default()).collect(),
            given_back: (0..Self::COUNTERS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// What is remembered of each charge, in order, if one of them is denied for that.
    fn remembered(&self, call: &Call<'_>) -> Option<Decision> {
        if call.op != Op::Check || call.once.is_some() || call.validate().is_err() {
            return None;
        }
        let now = self.clock.elapsed();
        let mut decision = Decision::new(Source::DenyCache, SmallVec::new());
        for charge in distinct(call.charges)? {
            decision.push(charge.limit, self.verdict(charge, now)?);
        }
        (!decision.allowed()).then_some(decision)
    }

    /// What is remembered of a charge.
    fn verdict(&self, charge: &Charge<'_>, now: Micros) -> Option<Verdict> {
        if !is_remembered(charge) {
            return None;
        }
        let fingerprint = fingerprint(charge.limit.tag(), charge.key);
        let set = lock(self.set(fingerprint));
        let denial = set.iter().flatten().find(|denial| denial.fingerprint == fingerprint)?;
        let good = now < denial.until
            && denial.stamp == self.stamp(charge.limit, fingerprint)
            && denial.is_of(charge.limit);
        if good { denial.verdict(charge.cost, now) } else { None }
    }

    /// Remembers a denial.
    fn learn(&self, charges: &[Charge<'_>], decision: &Decision, asked: &Asked) {
        if decision.allowed() {
            return;
        }
        let Some(charges) = distinct(charges) else { return };
        let received = self.clock.elapsed();
        let (mut verdicts, mut shadow) = (decision.verdicts.iter(), decision.shadow().iter());
        for (charge, stamp) in charges.iter().zip(&asked.stamps) {
            let verdict = if charge.limit.is_shadow() { shadow.next() } else { verdicts.next() };
            let Some(verdict) = verdict.filter(|_| is_remembered(charge)) else { continue };
            let span = match verdict.retry_after {
                _ if verdict.allowed => Self::LONGEST,
                Wait::For(span) => span.min(Self::LONGEST),
                Wait::Never => Self::LONGEST,
            };
            self.remember(Denial {
                fingerprint: fingerprint(charge.limit.tag(), charge.key),
                limit: charge.limit.clone(),
                cost: charge.cost,
                verdict: *verdict,
                received,
                // From when it was asked for: the store may have answered at once.
                until: asked.at.saturating_add(span),
                stamp: *stamp,
            });
        }
    }

    fn remember(&self, denial: Denial) {
        let mut set = lock(self.set(denial.fingerprint));
        let [one, other] = &mut *set;
        let of = |place: &Option<Denial>| place.as_ref().map(|denial| denial.fingerprint);
        let until = |place: &Option<Denial>| place.as_ref().map(|denial| denial.until);
        // Its own place, or that of whichever ends first.
        let place = match denial.fingerprint {
            own if of(one) == Some(own) => one,
            own if of(other) == Some(own) => other,
            _ if until(one) <= until(other) => one,
            _ => other,
        };
        *place = Some(denial);
    }

    /// Forgets what the call has made untrue, or may have.
    fn forget(&self, call: &Call<'_>, answer: &Result<Decision, EngineError>) {
        for charge in call.charges {
            self.count(fingerprint(charge.limit.tag(), charge.key));
        }
        // Whose hold it was is not known, but of which limits.
        for limit in answer.iter().flat_map(Decision::held) {
            self.count(limit.tag().bits());
        }
    }

    fn stamp(&self, limit: &RuleLimit, fingerprint: u64) -> Stamp {
        let count = |bits| self.counter(bits).load(Ordering::Acquire);
        Stamp(count(limit.tag().bits()), count(fingerprint))
    }

    fn count(&self, bits: u64) {
        self.counter(bits).fetch_add(1, Ordering::AcqRel);
    }

    fn counter(&self, bits: u64) -> &AtomicU32 {
        &self.given_back[place(bits, Self::COUNTERS)]
    }

    fn set(&self, fingerprint: u64) -> &Mutex<Set> {
        &self.sets[place(fingerprint, Self::SETS)]
    }

    fn ask(&self, call: &Call<'_>) -> Asked {
        let stamp = |c: &Charge<'_>| self.stamp(c.limit, fingerprint(c.limit.tag(), c.key));
        let learns = call.op == Op::Check && call.once.is_none();
        let stamps = call.charges.iter().take(if learns { usize::MAX } else { 0 }).map(stamp);
        Asked { at: self.clock.elapsed(), stamps: stamps.collect() }
    }

    fn answered(&self, call: &Call<'_>, asked: &Asked, answer: &Result<Decision, EngineError>) {
        match (call.op, answer) {
            (Op::Check, Ok(decision)) if call.once.is_none() => {
                self.learn(call.charges, decision, asked);
            }
            (Op::Refund | Op::Reset | Op::Settle { .. }, answer) => self.forget(call, answer),
            _ => {}
        }
    }
}

/// How things stood when the store was asked.
struct Asked {
    at: Micros,
    stamps: SmallVec<[Stamp; 2]>,
}

impl Denial {
    /// Is it of this limit, and not of one that it had before?
    fn is_of(&self, limit: &Arc<RuleLimit>) -> bool {
        Arc::ptr_eq(&self.limit, limit) || self.limit.limit() == limit.limit()
    }

    /// What the limit would say to `cost` by now, if that follows.
    fn verdict(&self, cost: Cost, now: Micros) -> Option<Verdict> {
        // What was denied is denied at any higher cost, what was allowed is allowed at any lower one.
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

/// Is a denial of this charge worth remembering? Places are given back at any time, and a peek takes
/// nothing.
fn is_remembered(charge: &Charge<'_>) -> bool {
    charge.cost > Cost::ZERO && charge.limit.limit().algorithm() != Algorithm::Concurrency
}

/// One of `count` places, by the upper half of the bits.
fn place(bits: u64, count: usize) -> usize {
    (((bits >> 32) * count as u64) >> 32) as usize
}

/// The charges, unless two of them are added up: then what was said is of their sum.
fn distinct<'a, 'c>(charges: &'c [Charge<'a>]) -> Option<&'c [Charge<'a>]> {
    let same = |a: &Charge<'_>, b: &Charge<'_>| {
        a.limit.tag() == b.limit.tag() && a.key.parts().eq(b.key.parts())
    };
    let twice = |(i, charge): (usize, &Charge<'_>)| charges[..i].iter().any(|c| same(c, charge));
    (!charges.iter().enumerate().any(twice)).then_some(charges)
}

impl<E: Engine> Engine for DenyCache<E> {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        if let Some(decision) = self.remembered(&call) {
            return Answer::Ready(Ok(decision));
        }
        let asked = self.ask(&call);
        match self.store.decide(call) {
            Answer::Ready(answer) => {
                self.answered(&call, &asked, &answer);
                Answer::Ready(answer)
            }
            Answer::Later(answer) => Answer::Later(Box::pin(async move {
                let answer = answer.await;
                self.answered(&call, &asked, &answer);
                answer
            })),
        }
    }

    fn check_one(&self, charge: &Charge<'_>) -> Option<(Source, Verdict)> {
        match self.verdict(charge, self.clock.elapsed()) {
            Some(verdict) if !verdict.allowed && !charge.limit.is_shadow() => {
                Some((Source::DenyCache, verdict))
            }
            _ => self.store.check_one(charge),
        }
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        self.store.inspect(limit, key)
    }

    fn shards(&self, call: &Call<'_>) -> Shards {
        self.store.shards(call)
    }

    fn health(&self) -> Health {
        let own = self.sets.len() * size_of::<Mutex<Set>>()
            + self.given_back.len() * size_of::<AtomicU32>();
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

/// Nothing in here panics, as far as we know, and a denial that is forgotten does no harm.
fn lock(set: &Mutex<Set>) -> std::sync::MutexGuard<'_, Set> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}
