//! The interface for programs. Imports: clock, engine, fingerprint, key, memory, network, policy.
//!
//! - `check`, `update`: builders of a check and of an update. `check_many`: independent checks at
//!   once. `wait`: waiting until a check can pass. `wait_queue`: FIFO queues of waiting callers.
//!   `waiter_filter`, `wait_hashes`: keys that others wait for. `plain_check`: checks of such keys.
//!   `poll_once`: futures that are ready.
//! - `reservation`: permits reserved, then committed or cancelled. `hold_guard`: hold that is
//!   settled on drop. `hold_settlement`: the end of a hold, sent until the store confirms it.
//!   `settlement_counts`: those that it did not confirm.
//! - `enter`: check and concurrency slot in one step. `slot`: a held slot, renewed in the
//!   background.
//! - `global`: the process-wide limiter. `attribute`: runtime of `#[rate_limit]`.
//!
//! The methods of [`Limiter`] that make a builder are next to the builder: this file imports none.

#[cfg(feature = "macros")]
pub mod attribute;
mod check;
mod check_many;
mod enter;
mod global;
mod hold_guard;
mod hold_settlement;
mod plain_check;
mod poll_once;
mod reservation;
mod settlement;
mod settlement_counts;
mod slot;
mod update;
mod wait;
mod wait_hashes;
mod wait_queue;
mod waiter_filter;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tidegate_core::{Cost, Limit};

pub use self::check::Check;
pub use self::enter::{Enter, Entered};
pub use self::global::GlobalInUse;
pub use self::reservation::{Extend, Reservation, Reserve};
pub use self::settlement::Settled;
use self::settlement_counts::SettlementCounts;
pub use self::slot::Slot;
pub use self::update::Update;
use self::wait_hashes::line_of_charge;
use self::wait_queue::WaitQueues;
use crate::engine::Refusal;
use crate::key::Fingerprints;
use crate::policy::ListMode;
use crate::{
    Call, Clock, Decision, Engine, EngineError, Inspection, InvalidRule, Key, Op, Policy,
    PolicyRule, Rule, RuleLimit,
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
    shared: Arc<LimiterInner>,
}

struct LimiterInner {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    policy: ArcSwap<Policy>,
    /// The [plain limit](Policy::plain_limit) of the first policy, in force until `is_replaced`.
    /// Most programs never replace their policy, and reading it there takes a fence.
    first_limit: Option<Arc<RuleLimit>>,
    is_replaced: AtomicBool,
    /// Held while the policy is replaced.
    changing: Mutex<()>,
    queues: WaitQueues,
    settlements: SettlementCounts,
    fingerprints: Fingerprints,
}

impl Limiter {
    /// The name of the rule that [`Limiter::new`] makes.
    pub const DEFAULT_RULE: &'static str = "default";

    /// A limiter of one limit.
    ///
    /// The name of its state is the limit itself: two limiters of the same limit on one engine
    /// share counts, two of different limits do not. To choose a name, make a [`Rule`].
    ///
    /// A limit in an unknown time zone is refused with every call; a [`Rule`] reports it at once.
    pub fn new(engine: impl Engine, limit: Limit) -> Self {
        let state = format!("{}:{limit}", Self::DEFAULT_RULE);
        let rule = Rule::named(Self::DEFAULT_RULE, state, limit);
        // A single rule cannot have a duplicate name.
        Self::with_policy(engine, Policy::new([PolicyRule::from(rule)]).unwrap_or_default())
    }

    /// A limiter of several rules with distinct names.
    pub fn with_rules(
        engine: impl Engine,
        rules: impl IntoIterator<Item = Rule>,
    ) -> Result<Self, InvalidRule> {
        let policy = Policy::new(rules.into_iter().map(PolicyRule::from))?;
        let limits = policy.limits().count();
        if limits == 0 || limits > Call::MAX_CHARGES {
            return Err(InvalidRule::LimitCount(limits));
        }
        Ok(Self::with_policy(engine, policy))
    }

    /// A limiter of a whole policy.
    pub fn with_policy(engine: impl Engine, policy: impl Into<Arc<Policy>>) -> Self {
        Self::with_engine(Arc::new(engine), policy)
    }

    /// As [`with_policy`](Self::with_policy), on an engine that is shared with others or was chosen
    /// at run time.
    pub fn with_engine(engine: Arc<dyn Engine>, policy: impl Into<Arc<Policy>>) -> Self {
        let policy = policy.into();
        policy.activate();
        let shared = LimiterInner {
            clock: engine.clock(),
            engine,
            first_limit: policy.plain_limit().cloned(),
            is_replaced: AtomicBool::new(false),
            policy: ArcSwap::new(policy),
            changing: Mutex::new(()),
            queues: WaitQueues::default(),
            settlements: SettlementCounts::default(),
            fingerprints: Fingerprints::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sets how many callers of this limiter and its clones may wait for one key at the same time;
    /// 4,096 by default, at least 1. Beyond that, a caller is denied at once, with the time until
    /// those that wait have passed.
    ///
    /// ```
    /// use tidegate::{Limiter, Memory};
    /// let limiter = Limiter::new(Memory::default(), "1/s".parse()?).max_waiting_per_key(64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn max_waiting_per_key(self, max: usize) -> Self {
        self.shared.queues.set_max_per_key(max.max(1));
        self
    }

    /// Holds that this limiter could not settle. At the end of a request a slot is released and a
    /// cost charged in the background, with retries until the hold expires. If the store replies to
    /// none of them, the slot was taken until then, and the cost is not charged.
    pub fn unsettled_holds(&self) -> u64 {
        self.shared.settlements.given_up()
    }

    /// Callers that wait at present.
    pub fn waiting(&self) -> usize {
        self.shared.queues.waiting()
    }

    /// Callers that were denied at once because too many waited for their key; see
    /// [`max_waiting_per_key`](Self::max_waiting_per_key).
    pub fn refused_waits(&self) -> u64 {
        self.shared.queues.refused()
    }

    /// The state of `key`, one entry per limit of every rule.
    pub async fn inspect(&self, key: impl Into<Key<'_>>) -> Result<Vec<Inspection>, EngineError> {
        let (key, policy) = (key.into(), self.policy());
        let mut inspections = Vec::new();
        let plan = policy.plan_key(key, Cost::ZERO, ListMode::Ignore, self.shared.clock.now())?;
        for step in plan.steps() {
            for limit in step.limits() {
                inspections.push(self.shared.engine.inspect(limit, step.key()).await?);
            }
        }
        Ok(inspections)
    }

    /// Replaces the rule of the same name, with everything that belongs to it: a plain [`Rule`]
    /// matches every request, counts by the key of the call, and has no lists or overrides.
    /// Consumption is kept: it is brought to now at the old rate, rounded up, and at most the new
    /// limit.
    ///
    /// Limits keep their state by algorithm and position: the n-th token bucket of the old rule is
    /// the n-th of the new one. Reordering limits of one algorithm, or removing one that is not the
    /// last, swaps their consumption.
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
        if limits > Call::MAX_CHARGES {
            return Err(Refusal::ChargeCount(limits));
        }
        rule.activate();
        self.replace(changed.into());
        drop(changing);
        self.shared.queues.wake_all();
        Ok(())
    }

    /// Replaces the whole policy in one step: each call is decided by the old or by the new one.
    /// Consumption is kept as by [`set_rule`](Self::set_rule).
    pub fn set_policy(&self, policy: impl Into<Arc<Policy>>) {
        let policy = policy.into();
        let changing = self.shared.changing.lock().unwrap_or_else(PoisonError::into_inner);
        policy.activate();
        self.replace(policy);
        drop(changing);
        self.shared.queues.wake_all();
    }

    fn replace(&self, policy: Arc<Policy>) {
        self.shared.policy.store(policy);
        self.shared.is_replaced.store(true, Ordering::Release);
    }

    /// The plain limit of the first policy, as long as that is in force.
    #[inline(always)]
    fn first_limit(&self) -> Option<&Arc<RuleLimit>> {
        let limit = self.shared.first_limit.as_ref()?;
        (!self.shared.is_replaced.load(Ordering::Acquire)).then_some(limit)
    }

    /// Makes the limits of `policy` newer than those of every earlier one, for a program that keeps
    /// its policy elsewhere and passes [plans](Self::decide). Call it before the policy is used.
    pub fn activate(&self, policy: &Policy) {
        policy.activate();
        self.shared.queues.wake_all();
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

    /// The present names and limits of the rules.
    pub fn rules(&self) -> Vec<Rule> {
        self.policy().rules().iter().map(|rule| rule.rule().clone()).collect()
    }

    /// The present policy.
    pub fn policy(&self) -> Arc<Policy> {
        self.shared.policy.load_full()
    }

    /// Applies `read` to the present policy; cheaper than [`policy`](Self::policy).
    #[inline(always)]
    pub fn read_policy<T>(&self, read: impl FnOnce(&Policy) -> T) -> T {
        read(&self.shared.policy.load())
    }

    /// The clock by which callers wait.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    /// The engine that decides.
    #[inline]
    pub fn engine(&self) -> &dyn Engine {
        &*self.shared.engine
    }

    /// Every decision of a limiter is made here or, without waiting, by
    /// [`decide_call_now`](Self::decide_call_now).
    async fn decide_call(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        let mut result = self.engine().decide(call).await;
        self.after(&call, &mut result);
        result
    }

    #[inline]
    fn decide_call_now(&self, call: &Call<'_>) -> Result<Decision, EngineError> {
        let mut result = self.engine().decide_now(call);
        self.after(call, &mut result);
        result
    }

    /// Settles a hold of these limits and keys; `lines` is empty if they are not known.
    async fn settle(&self, call: Call<'_>, lines: &[u64]) -> Result<Decision, EngineError> {
        if lines.is_empty() {
            return self.decide_call(call).await;
        }
        let result = self.engine().decide(call).await;
        self.shared.queues.wake(lines.iter().copied());
        result
    }

    /// Wakes waiting callers if the call may have given permits back, and notes what a hold holds.
    #[inline]
    fn after(&self, call: &Call<'_>, result: &mut Result<Decision, EngineError>) {
        match (call.op, result) {
            (Op::Check | Op::Peek | Op::Renew { .. } | Op::Extend { .. }, _)
            | (Op::Hold(_), Err(_)) => {}
            (Op::Hold(_), Ok(decision)) => note_hold(call, decision),
            (Op::Record | Op::Refund | Op::Reset, _) => {
                self.shared.queues.wake(call.charges.iter().map(line_of_charge));
            }
            (Op::Settle { .. }, result) => self.wake_after_settling(result),
        }
    }

    /// Wakes callers that wait for what was settled: for its limits and keys if the engine knows
    /// them, as the one in memory does, otherwise for any key of its limits.
    fn wake_after_settling(&self, result: &Result<Decision, EngineError>) {
        let queues = &self.shared.queues;
        match result {
            Ok(decision) if !decision.lines().is_empty() => {
                queues.wake(decision.lines().iter().copied());
            }
            Ok(decision) => queues.wake(decision.held().iter().map(|limit| limit.tag().bits())),
            Err(EngineError::Ambiguous(_)) => queues.wake_all(),
            Err(_) => {}
        }
    }
}

/// Notes what the hold of a decision holds, if it made one.
fn note_hold(call: &Call<'_>, decision: &mut Decision) {
    if decision.hold().is_some() {
        let held = call.charges.iter().filter(|charge| call.op.holds(charge.limit));
        decision.details_mut().lines = held.map(line_of_charge).collect();
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("policy", &self.policy()).finish_non_exhaustive()
    }
}

/// Why a request did not pass.
#[derive(Clone, Debug)]
pub enum Limited {
    /// A limit denied it; the decision has `retry_after`.
    Denied(Box<Decision>),
    /// There is no decision: the engine returned an error.
    NoAnswer(EngineError),
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(decision) => match decision.retry_after().span() {
                Some(span) => write!(f, "rate limited; retry after {span}"),
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
            // Display prints the error itself, so the next source is the error's cause.
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
