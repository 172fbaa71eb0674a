//! The limiters compared, each used as its documentation recommends.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota};
use smallvec::SmallVec;
use tidegate::{Call, Charge, Cost, Decision, Engine, Limiter, Memory, Op, Rule, RuleLimit};

use crate::keys::Part;

/// A limiter under test.
pub(crate) trait Contender: Sync {
    /// Checks each of these keys once, and returns how many pass.
    fn allowed(&self, keys: Part<'_>) -> usize;
}

/// The limit of every key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// More than is used: one permit a minute, and 50 million at once.
    Ample,
    /// One permit a day, and one at once.
    Once,
}

impl Allowance {
    const AMPLE: u32 = 50_000_000;

    pub(crate) fn notation(self) -> String {
        match self {
            Self::Ample => format!("1/min burst {}", Self::AMPLE),
            Self::Once => "1/d".to_owned(),
        }
    }

    fn period(self) -> Duration {
        Duration::from_secs(if self == Self::Ample { 60 } else { 86_400 })
    }

    fn burst(self) -> u32 {
        if self == Self::Ample { Self::AMPLE } else { 1 }
    }
}

/// Makes a contender with its limit.
pub(crate) type Make = fn(Allowance) -> Box<dyn Contender>;

/// All contenders by name.
pub(crate) const ALL: [(&str, Make); 6] = [
    ("table", |allowance| Box::new(Table::new(&allowance.notation()))),
    ("limiter", |allowance| Box::new(Whole::new(&allowance.notation()))),
    ("governor", |allowance| Box::new(Governor::new(allowance))),
    ("allow", |allowance| Box::new(Allow(Whole::new(&allowance.notation())))),
    ("gcra", |allowance| Box::new(Gcra::new(allowance))),
    ("many", |allowance| Box::new(Many(Table::new(&allowance.notation())))),
];

/// Enough for every case except the flood.
const CAP: usize = 4 << 30;

/// The memory engine alone, called with a charge.
pub(crate) struct Table {
    memory: Arc<Memory>,
    limit: Arc<RuleLimit>,
}

impl Table {
    pub(crate) fn new(notation: &str) -> Self {
        Self::on(&Memory::builder().cap_bytes(CAP).build().into(), "bench", notation)
    }

    pub(crate) fn on(memory: &Arc<Memory>, rule: &str, notation: &str) -> Self {
        let rule = Rule::new(rule, [notation.parse().unwrap()]).unwrap();
        Self { memory: memory.clone(), limit: rule.limits()[0].clone() }
    }

    #[inline]
    pub(crate) fn check(&self, key: &[u8]) -> bool {
        let charge = Charge { limit: &self.limit, key: key.into(), cost: Cost::ONE, caller: None };
        let call = Call { op: Op::Check, charges: &[charge], idempotency_key: None };
        // The whole verdict has to be computed, as for a caller that reads all of it.
        black_box(self.memory.decide_now(&call)).unwrap().allowed()
    }
}

impl Contender for Table {
    fn allowed(&self, keys: Part<'_>) -> usize {
        match keys {
            Part::Numbers(keys) => count(keys, |key| self.check(&key.to_ne_bytes())),
            Part::Texts(keys) => count(keys, |key| self.check(key.as_bytes())),
        }
    }
}

/// The memory engine alone, called with 16 charges at a time.
struct Many(Table);

impl Many {
    const AT_ONCE: usize = 16;

    fn count<'k>(&self, keys: impl Iterator<Item = tidegate::Key<'k>>) -> usize {
        let Self(Table { memory, limit }) = self;
        let charge = |key| [Charge { limit, key, cost: Cost::ONE, caller: None }];
        let charges: SmallVec<[[Charge<'_>; 1]; Self::AT_ONCE]> = keys.map(charge).collect();
        let call = |charges| Call { op: Op::Check, charges, idempotency_key: None };
        let calls: SmallVec<[Call<'_>; Self::AT_ONCE]> =
            charges.iter().map(|charges| call(charges.as_slice())).collect();
        let decided = black_box(memory.decide_many(&calls).now().unwrap());
        decided.iter().filter(|one| one.as_ref().is_ok_and(Decision::allowed)).count()
    }
}

impl Contender for Many {
    fn allowed(&self, keys: Part<'_>) -> usize {
        match keys {
            Part::Numbers(keys) => {
                let bytes = |keys: &[u64]| -> SmallVec<[[u8; 8]; Self::AT_ONCE]> {
                    keys.iter().map(|key| key.to_ne_bytes()).collect()
                };
                let group = |keys| self.count(bytes(keys).iter().map(|key| key.as_slice().into()));
                keys.chunks(Self::AT_ONCE).map(group).sum()
            }
            Part::Texts(keys) => {
                let group = |keys: &[String]| self.count(keys.iter().map(Into::into));
                keys.chunks(Self::AT_ONCE).map(group).sum()
            }
        }
    }
}

/// The whole limiter.
struct Whole(Limiter);

impl Whole {
    fn new(notation: &str) -> Self {
        let memory = Memory::builder().cap_bytes(CAP).build();
        Self(Limiter::new(memory, notation.parse().unwrap()))
    }
}

impl Contender for Whole {
    fn allowed(&self, keys: Part<'_>) -> usize {
        let Self(limiter) = self;
        match keys {
            Part::Numbers(keys) => count(keys, |key| {
                black_box(limiter.check_now(&key.to_ne_bytes())).unwrap().allowed()
            }),
            Part::Texts(keys) => {
                count(keys, |key| black_box(limiter.check_now(key)).unwrap().allowed())
            }
        }
    }
}

/// The whole limiter, asked for yes or no.
struct Allow(Whole);

impl Contender for Allow {
    fn allowed(&self, keys: Part<'_>) -> usize {
        let Self(Whole(limiter)) = self;
        match keys {
            Part::Numbers(keys) => count(keys, |key| limiter.allow(&key.to_ne_bytes()).unwrap()),
            Part::Texts(keys) => count(keys, |key| limiter.allow(key).unwrap()),
        }
    }
}

/// `governor` with its default store, a `DashMap`, and its default clock.
struct Governor {
    numbers: DefaultKeyedRateLimiter<u64>,
    texts: DefaultKeyedRateLimiter<String>,
}

impl Governor {
    fn new(allowance: Allowance) -> Self {
        let quota = Quota::with_period(allowance.period()).unwrap();
        let quota = quota.allow_burst(NonZeroU32::new(allowance.burst()).unwrap());
        let numbers = DefaultKeyedRateLimiter::keyed(quota);
        Self { numbers, texts: DefaultKeyedRateLimiter::keyed(quota) }
    }
}

impl Contender for Governor {
    fn allowed(&self, keys: Part<'_>) -> usize {
        match keys {
            Part::Numbers(keys) => count(keys, |key| self.numbers.check_key(key).is_ok()),
            Part::Texts(keys) => count(keys, |key| self.texts.check_key(key).is_ok()),
        }
    }
}

/// `gcra`, a `DashMap` too, with a hash that is not collision-resistant. It takes keys by value, so
/// a string is copied for every check, which the counting allocator makes slightly slower.
struct Gcra {
    limit: gcra::RateLimit,
    numbers: gcra::RateLimiter<u64>,
    texts: gcra::RateLimiter<String>,
}

impl Gcra {
    fn new(allowance: Allowance) -> Self {
        let burst = allowance.burst();
        let limit = gcra::RateLimit::new(burst, allowance.period() * burst);
        let (numbers, texts) = (gcra::RateLimiter::new(0), gcra::RateLimiter::new(0));
        Self { limit, numbers, texts }
    }
}

impl Contender for Gcra {
    fn allowed(&self, keys: Part<'_>) -> usize {
        let limit = &self.limit;
        match keys {
            Part::Numbers(keys) => {
                count(keys, |key| at_once(self.numbers.check(*key, limit, 1)).is_ok())
            }
            Part::Texts(keys) => {
                count(keys, |key| at_once(self.texts.check(key.clone(), limit, 1)).is_ok())
            }
        }
    }
}

#[inline]
fn count<K>(keys: &[K], check: impl Fn(&K) -> bool) -> usize {
    keys.iter().filter(|key| check(key)).count()
}

/// The result of a future that does not wait.
#[inline]
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the future waits"),
    }
}
