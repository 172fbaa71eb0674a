//! What programs use: rules over an engine.
//!
//! # Layout
//!
//! - `asking`: one question, built step by step and then awaited.
//! - `waiting`: standing in a queue until it is one's turn. `line`: the queue.
//! - `reservation`: permits set aside, to be committed or cancelled. `held`: what ends with its keeper.
//! - `entering`: passing and taking a place in one step. `slot`: the place, kept while work goes on.
//! - `global`: the limiter of the process. `site`: a function under a limit.

mod asking;
mod entering;
mod global;
mod held;
mod line;
mod reservation;
#[cfg(feature = "macros")]
pub mod site;
mod slot;
mod waiting;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_core::{Cost, Limit, Verdict};

pub use self::asking::{Ask, Asking, Telling};
pub use self::entering::{Entered, Entering};
pub use self::global::GlobalInUse;
use self::line::Lines;
pub use self::reservation::{Reservation, Reserve};
pub use self::slot::Slot;
use crate::engine::Refusal;
use crate::key::Fingerprints;
use crate::policy::Lists;
use crate::{
    Charge, Clock, Decision, Engine, EngineError, HoldId, Inspection, InvalidRule, Key, Op, Plan,
    Policy, PolicyRule, Rule, Source,
};

/// Rules over an engine. Clones are the same limiter.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limit, Limiter, Memory};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Memory::default(), "100/s burst 20".parse::<Limit>()?);
/// let decision = limiter.check("user-42").await?;
/// assert!(decision.allowed());
/// assert_eq!(decision.remaining(), 19);
///
/// limiter.acquire("user-42", Duration::from_secs(1)).await?;
/// let reserved = limiter.reserve("user-42", 10).await?;
/// reserved.commit(3).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    policy: ArcSwap<Policy>,
    /// Held by whoever puts another policy in the place of the present one.
    changing: Mutex<()>,
    lines: Lines,
    fingerprints: Fingerprints,
}

impl Limiter {
    /// The name of the rule that [`Limiter::new`] makes.
    pub const DEFAULT_RULE: &'static str = "default";

    /// A limiter of one limit.
    ///
    /// Its state goes by the limit itself: two limiters of the same limit on one engine count
    /// together, two of different limits do not. To choose a name, make a [`Rule`].
    ///
    /// A limit in a time zone that does not exist is refused with every call; to be told at
    /// once, make a [`Rule`].
    pub fn new(engine: impl Engine, limit: Limit) -> Self {
        let state = format!("{}:{limit}", Self::DEFAULT_RULE);
        let rule = Rule::named(Self::DEFAULT_RULE, state, limit);
        // One rule has no other to share its name with.
        Self::with_policy(engine, Policy::new([PolicyRule::from(rule)]).unwrap_or_default())
    }

    /// A limiter of several rules, each with a name of its own.
    pub fn with_rules(
        engine: impl Engine,
        rules: impl IntoIterator<Item = Rule>,
    ) -> Result<Self, InvalidRule> {
        let policy = Policy::new(rules.into_iter().map(PolicyRule::from))?;
        let limits = policy.limits().count();
        if limits == 0 || limits > crate::Call::MAX_CHARGES {
            return Err(InvalidRule::LimitCount(limits));
        }
        Ok(Self::with_policy(engine, policy))
    }

    /// A limiter of a whole policy.
    pub fn with_policy(engine: impl Engine, policy: impl Into<Arc<Policy>>) -> Self {
        let policy = policy.into();
        policy.enact();
        let shared = Shared {
            clock: engine.clock(),
            engine: Arc::new(engine),
            policy: ArcSwap::new(policy),
            changing: Mutex::new(()),
            lines: Lines::default(),
            fingerprints: Fingerprints::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// May `key` pass now? Every limit of every rule is asked, and charged if all allow it.
    pub fn check<'a>(&'a self, key: impl Into<Key<'a>>) -> Asking<'a> {
        Asking::of_all(self, Op::Check, key.into())
    }

    /// As [`check`](Self::check), without a runtime; refused by an engine that has to wait.
    pub fn check_now<'a>(&'a self, key: impl Into<Key<'a>>) -> Result<Decision, EngineError> {
        let key = key.into();
        match self.check_one(key, Cost::ONE, None) {
            Some((source, verdict)) => Ok(Decision::of_one(source, verdict)),
            None => self.check(key).now(),
        }
    }

    /// A check of a policy that is a single limit needs no plan, if the engine answers at once.
    #[inline(always)]
    fn check_one(&self, key: Key<'_>, cost: Cost, who: Option<&str>) -> Option<(Source, Verdict)> {
        let policy = self.shared.policy.load();
        let limit = policy.plain_limit().filter(|_| key.is_valid())?;
        self.engine().check_one(&Charge { limit, key, cost, who })
    }

    /// May all of these pass now? Each names its rule, its key and its cost; all or none.
    pub fn check_each<'a>(&'a self, asks: &'a [Ask<'a>]) -> Asking<'a> {
        Asking::of_each(self, Op::Check, asks)
    }

    /// Does `op` with what a policy has planned. See [`Policy::plan_request`] and
    /// [`Policy::plan_questions`]; a plan that needs no engine answers with its own decision.
    pub fn ask<'a>(&'a self, op: Op, plan: &'a Plan<'a>) -> Asking<'a> {
        Asking::of_plan(self, op, plan)
    }

    /// Charges what has happened already, be there room for it or not.
    pub fn record<'a>(&'a self, key: impl Into<Key<'a>>, cost: u64) -> Telling<'a> {
        Telling::new(self, Op::Record, key.into(), cost)
    }

    /// Gives back at most `cost` of what `key` has used.
    pub fn refund<'a>(&'a self, key: impl Into<Key<'a>>, cost: u64) -> Telling<'a> {
        Telling::new(self, Op::Refund, key.into(), cost)
    }

    /// Forgets what `key` has used, and its reservations.
    pub fn reset<'a>(&'a self, key: impl Into<Key<'a>>) -> Telling<'a> {
        Telling::new(self, Op::Reset, key.into(), 0)
    }

    /// Waits until `key` may pass, first come first served, but no longer than `timeout`. Answers
    /// at once if even the earliest possible turn is later than that.
    ///
    /// Dropping the future leaves the line and charges nothing. A `leaky-bucket .. queue` is charged
    /// when the turn has come, not before. The order is kept among those who
    /// wait for the same key in this limiter; [`check`](Self::check) does not stand in line.
    pub async fn acquire<'a>(
        &'a self,
        key: impl Into<Key<'a>>,
        timeout: Duration,
    ) -> Result<Decision, Limited> {
        self.check(key).wait(timeout).await
    }

    /// Lets `key` pass and gives it a place, if every limit allows it: those that count requests are
    /// charged, those that count holders (`concurrency`) have one holder more, whatever the cost. The
    /// place is kept for as long as the [`Slot`] lives; dropped, it is given back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Memory, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rule = Rule::new("reports", ["100/h".parse()?, "concurrency 1 lease 30s".parse()?])?;
    /// let limiter = Limiter::with_rules(Memory::default(), [rule])?;
    /// let entered = limiter.enter("user-42").cost(5).await?;
    /// assert!(limiter.enter("user-42").await.is_err(), "one at a time");
    /// drop(entered);
    /// limiter.enter("user-42").wait(Duration::from_secs(1)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn enter<'a>(&'a self, key: impl Into<Key<'a>>) -> Entering<'a> {
        Entering::new(Asking::of_entry(self, key.into()))
    }

    /// Sets `cost` aside for `key`, to be committed or cancelled. Dropped, it is cancelled.
    pub fn reserve<'a>(&'a self, key: impl Into<Key<'a>>, cost: u64) -> Reserve<'a> {
        Reserve::new(Asking::of_all(self, Op::Peek, key.into()).cost(cost))
    }

    /// The reservation of this id, made here or by another process on the same store.
    pub fn reservation(&self, id: HoldId) -> Reservation {
        Reservation::found(self, id)
    }

    /// What is known about `key`, one for each limit of every rule.
    pub async fn inspect(&self, key: impl Into<Key<'_>>) -> Result<Vec<Inspection>, EngineError> {
        let (key, policy) = (key.into(), self.policy());
        let mut inspections = Vec::new();
        let plan = policy.plan_all(key, Cost::ZERO, Lists::Ignore, self.shared.clock.now())?;
        for step in plan.steps() {
            for limit in step.limits() {
                inspections.push(self.shared.engine.inspect(limit, step.key()).await?);
            }
        }
        Ok(inspections)
    }

    /// Puts `rule` in the place of the rule of the same name, with all that belongs to it: a plain
    /// [`Rule`] matches every request, counts by the key that is named, and has no lists or overrides.
    /// Consumption is kept: it is brought to
    /// now at the old rate, rounded up, and at most the new limit.
    ///
    /// Limits keep their state by algorithm and position: the n-th token bucket of the rule before is
    /// the n-th after. Changing the order of limits of one algorithm, or leaving out one that is not
    /// the last, hands their consumption to each other.
    pub fn set_rule(&self, rule: impl Into<PolicyRule>) -> Result<(), Refusal> {
        let rule: Arc<PolicyRule> = Arc::new(rule.into());
        let refused = |_| Refusal::UnknownRule(rule.name().into());
        let changing = self.shared.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let policy = self.policy();
        if policy.rule(rule.name()).is_none() {
            return Err(Refusal::UnknownRule(rule.name().into()));
        }
        let changed = policy.with_rule(rule.clone()).map_err(refused)?;
        let limits = changed.limits().count();
        if limits > crate::Call::MAX_CHARGES {
            return Err(Refusal::ChargeCount(limits));
        }
        rule.enact();
        self.shared.policy.store(Arc::new(changed));
        drop(changing);
        self.shared.lines.nudge_heads();
        Ok(())
    }

    /// Puts a whole policy in the place of the present one, in one step: a call is decided by the
    /// one or by the other. Consumption is kept as [`set_rule`](Self::set_rule) keeps it.
    pub fn set_policy(&self, policy: impl Into<Arc<Policy>>) {
        let policy = policy.into();
        let changing = self.shared.changing.lock().unwrap_or_else(PoisonError::into_inner);
        policy.enact();
        self.shared.policy.store(policy);
        drop(changing);
        self.shared.lines.nudge_heads();
    }

    /// Changes the limit of a limiter made by [`Limiter::new`]. See [`set_rule`](Self::set_rule).
    pub fn set_limit(&self, limit: Limit) -> Result<(), Refusal> {
        let policy = self.policy();
        let old = policy.rule(Self::DEFAULT_RULE);
        let same = old.map(|rule| &rule.rule().limits()[0]);
        let same = same.filter(|old| old.limit().algorithm() == limit.algorithm());
        let state = match same {
            Some(old) => old.state().to_string(),
            None => format!("{}:{limit}", Self::DEFAULT_RULE),
        };
        self.set_rule(Rule::named(Self::DEFAULT_RULE, state, limit))
    }

    /// The names and limits of the rules as they are now.
    pub fn rules(&self) -> Vec<Rule> {
        self.policy().rules().iter().map(|rule| rule.rule().clone()).collect()
    }

    /// The policy as it is now.
    pub fn policy(&self) -> Arc<Policy> {
        self.shared.policy.load_full()
    }

    /// What `read` makes of the policy as it is now; cheaper than having it.
    pub fn read_policy<T>(&self, read: impl FnOnce(&Policy) -> T) -> T {
        read(&self.shared.policy.load())
    }

    /// The clock by which its callers wait.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    /// The engine that decides.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.shared.engine
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("policy", &self.policy()).finish_non_exhaustive()
    }
}

/// Why something that had to pass did not.
#[derive(Clone, Debug)]
pub enum Limited {
    /// A limit denied it; the decision says when to come back.
    Denied(Box<Decision>),
    /// There is no decision.
    NoAnswer(EngineError),
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(decision) => match decision.retry_after().span() {
                Some(span) => write!(f, "rate limited; retry after {:?}", Duration::from(span)),
                None => f.write_str("rate limited; the cost is larger than the whole limit"),
            },
            Self::NoAnswer(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Limited {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Denied(_) => None,
            // It speaks with the error's own words, so what comes next is the error's cause.
            Self::NoAnswer(error) => error.source(),
        }
    }
}

impl Limited {
    pub(crate) fn denied(decision: Decision) -> Self {
        Self::Denied(Box::new(decision))
    }
}

impl From<EngineError> for Limited {
    fn from(error: EngineError) -> Self {
        Self::NoAnswer(error)
    }
}
