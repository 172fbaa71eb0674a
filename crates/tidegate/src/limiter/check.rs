//! Builder of a check.

use std::borrow::Cow;
use std::future::IntoFuture;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Cost;

use super::Limiter;
use crate::engine::Refusal;
use crate::policy::{ListMode, Plan, Policy, RuleCheck};
use crate::{
    Call, Charge, Decision, EngineError, EngineFuture, IdempotencyKey, Key, Op, RuleLimit,
};

impl Limiter {
    /// Checks `key` under every limit of every rule; charges all if all allow it, else none.
    #[inline]
    pub fn check<'a>(&'a self, key: impl Into<Key<'a>>) -> Check<'a> {
        Check::of_all(self, Op::Check, key.into())
    }

    /// As [`check`](Self::check), without a runtime; refused by an engine that has to wait.
    #[inline]
    pub fn check_now<'a>(&'a self, key: impl Into<Key<'a>>) -> Result<Decision, EngineError> {
        let key = key.into();
        self.check_plain(key, Cost::ONE, None, || self.check(key))
    }

    /// Whether [`check_now`](Self::check_now) allows `key`, for callers that need nothing else.
    ///
    /// ```
    /// use tidegate::{Limiter, Memory};
    /// let limiter = Limiter::new(Memory::default(), "1/min".parse()?);
    /// assert!(limiter.allow("user-42")?);
    /// assert!(!limiter.allow("user-42")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn allow<'a>(&'a self, key: impl Into<Key<'a>>) -> Result<bool, EngineError> {
        let key = key.into();
        match self.first_limit().filter(|limit| self.is_plain(limit, key)) {
            Some(limit) => {
                let charges = &[Charge { limit, key, cost: Cost::ONE, caller: None }];
                self.engine().allow_now(&Call { op: Op::Check, charges, idempotency_key: None })
            }
            None => self.check_now(key).map(|decision| decision.allowed()),
        }
    }

    /// Fast path: a check under a single plain limit needs no plan. Without such a limit, `check`
    /// is planned. The decision of the engine is returned as it is, so that it is not copied.
    #[inline(always)]
    fn check_plain<'a>(
        &'a self,
        key: Key<'a>,
        cost: Cost,
        caller: Option<&'a str>,
        check: impl FnOnce() -> Check<'a>,
    ) -> Result<Decision, EngineError> {
        let decide = |limit: &Arc<RuleLimit>| {
            let charges = &[Charge { limit, key, cost, caller }];
            self.engine().decide_now(&Call { op: Op::Check, charges, idempotency_key: None })
        };
        if let Some(limit) = self.first_limit().filter(|limit| self.is_plain(limit, key)) {
            return decide(limit);
        }
        self.read_policy(|policy| match self.plain_limit(policy, key) {
            Some(limit) => decide(limit),
            None => {
                let check = check();
                check.decide_now(&*check.plan(policy)?)
            }
        })
    }

    /// Checks several rules and keys: all or none.
    pub fn check_each<'a>(&'a self, checks: &'a [RuleCheck<'a>]) -> Check<'a> {
        Check::new(self, Op::Check, CheckTarget::Each(checks))
    }

    /// Applies `op` to a plan. See [`Policy::plan_request`] and [`Policy::plan_checks`]; a plan
    /// that needs no engine returns its decision. [`Decision::pair`] pairs its verdicts with the
    /// limits.
    pub fn decide<'a>(&'a self, op: Op<'a>, plan: &'a Plan<'a>) -> Check<'a> {
        Check::new(self, op, CheckTarget::Plan(plan))
    }
}

/// A check; sent when awaited, or by [`now`](Self::now).
#[must_use = "does nothing unless awaited"]
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    pub(super) limiter: &'a Limiter,
    op: Op<'a>,
    target: CheckTarget<'a>,
    caller: Option<&'a str>,
    idempotency_key: Option<&'a str>,
    /// Costs count as 0.
    is_peek: bool,
    /// Each `concurrency` limit is charged one slot, whatever the cost.
    is_entry: bool,
}

#[derive(Clone, Copy, Debug)]
enum CheckTarget<'a> {
    /// Every limit of every rule.
    All {
        key: Key<'a>,
        cost: u64,
    },
    Each(&'a [RuleCheck<'a>]),
    /// A plan of a policy.
    Plan(&'a Plan<'a>),
}

impl<'a> Check<'a> {
    #[inline]
    pub(super) fn of_all(limiter: &'a Limiter, op: Op<'a>, key: Key<'a>) -> Self {
        Self::new(limiter, op, CheckTarget::All { key, cost: 1 })
    }

    /// A check to be sent as [`Op::enter`].
    pub(super) fn of_entry(limiter: &'a Limiter, key: Key<'a>) -> Self {
        Self { is_entry: true, ..Self::of_all(limiter, Op::Peek, key) }
    }

    #[inline]
    fn new(limiter: &'a Limiter, op: Op<'a>, target: CheckTarget<'a>) -> Self {
        Self {
            limiter,
            op,
            target,
            caller: None,
            idempotency_key: None,
            is_peek: false,
            is_entry: false,
        }
    }

    /// Sets the cost; 1 by default. Has no effect on [`Limiter::check_each`], where every item has
    /// a cost.
    pub fn cost(mut self, permits: u64) -> Self {
        if let CheckTarget::All { cost, .. } = &mut self.target {
            *cost = permits;
        }
        self
    }

    /// Reads without charging: allowed unless in debt, with the wait for a cost of 1.
    pub fn peek(self) -> Self {
        Self { is_peek: true, ..self.with(Op::Peek) }
    }

    /// Stores `caller` with the entry of a `sliding-log`.
    pub fn caller(mut self, caller: &'a str) -> Self {
        self.caller = Some(caller);
        self
    }

    /// Charges at most once under `id`, however often it is sent within an hour. Scoped to the
    /// first rule and key.
    pub fn idempotency_key(mut self, id: &'a str) -> Self {
        self.idempotency_key = Some(id);
        self
    }

    /// The same check as another operation.
    pub(super) fn with(self, op: Op<'a>) -> Self {
        Self { op, ..self }
    }

    pub(super) fn op(&self) -> Op<'a> {
        self.op
    }

    pub(super) fn has_id(&self) -> bool {
        self.idempotency_key.is_some()
    }

    /// Sends the check without waiting; refused by an engine that has to wait.
    #[inline]
    pub fn now(self) -> Result<Decision, EngineError> {
        match (self.op, self.target, self.idempotency_key) {
            (Op::Check, CheckTarget::All { key, cost }, None) if cost <= Cost::MAX.get() => {
                self.limiter.check_plain(key, Cost::total(cost), self.caller, || self)
            }
            _ => self.limiter.read_policy(|policy| self.decide_now(&*self.plan(policy)?)),
        }
    }

    /// Decides a plan without waiting.
    #[inline(never)]
    fn decide_now(&self, plan: &Plan<'_>) -> Result<Decision, EngineError> {
        match plan.decision() {
            Some(decision) => Ok(decision),
            None if self.may_be_behind(plan) => self.decide_behind_now(plan),
            None => self.limiter.decide_call_now(&self.call(&self.charges(plan))?),
        }
    }

    /// Waits for the decision of a plan.
    pub(super) async fn decide(&self, plan: &Plan<'_>) -> Result<Decision, EngineError> {
        match self.may_be_behind(plan) {
            // Boxed, so that the future of every other check is small.
            true => Box::pin(self.decide_behind(plan)).await,
            false => self.decide_in_turn(plan).await,
        }
    }

    /// The same for a caller that has waited for its turn.
    pub(super) async fn decide_in_turn(&self, plan: &Plan<'_>) -> Result<Decision, EngineError> {
        match plan.decision() {
            Some(decision) => Ok(decision),
            None => self.limiter.decide_call(self.call(&self.charges(plan))?).await,
        }
    }

    fn call<'r>(&self, charges: &'r [Charge<'r>]) -> Result<Call<'r>, Refusal>
    where
        'a: 'r,
    {
        let idempotency_key = self.idempotency_key.map(IdempotencyKey::new).transpose()?;
        Ok(Call { op: self.op, charges, idempotency_key })
    }

    /// The plan that the policy makes of the check.
    pub(super) fn plan<'r>(&self, policy: &'r Policy) -> Result<Cow<'r, Plan<'r>>, Refusal>
    where
        'a: 'r,
    {
        let now = || self.limiter.shared.clock.now();
        let lists = ListMode::of(self.op);
        let plan = match self.target {
            CheckTarget::Plan(plan) => return Ok(Cow::Borrowed(plan)),
            CheckTarget::Each(checks) => policy.plan_checks(checks, lists, now())?,
            CheckTarget::All { key, cost } => {
                let cost = if self.is_peek { Cost::ZERO } else { Cost::new(cost)? };
                policy.plan_key(key, cost, lists, now())?
            }
        };
        Ok(Cow::Owned(if self.is_entry { plan.with_slots()? } else { plan }))
    }

    /// The charges of a plan, with this caller and, for a peek, without costs.
    pub(super) fn charges<'r>(&self, plan: &'r Plan<'_>) -> SmallVec<[Charge<'r>; 2]>
    where
        'a: 'r,
    {
        let mut charges = plan.charges(self.caller);
        if self.is_peek {
            charges.iter_mut().for_each(|charge| charge.cost = Cost::ZERO);
        }
        charges
    }

    /// The smallest cost in any one limit, and the smallest capacity: what queues count.
    pub(super) fn queue_cost(&self, plan: &Plan<'_>) -> (u64, u64) {
        let charges = self.charges(plan);
        let cost = charges.iter().map(|charge| charge.cost.get()).min();
        let capacity = charges.iter().map(|charge| charge.limit.limit().capacity()).min();
        (cost.unwrap_or(0), capacity.unwrap_or(0))
    }

    /// Hash of rules and keys: callers that wait for the same share a queue.
    pub(super) fn fingerprint(&self, plan: &Plan<'_>) -> u128 {
        let fingerprints = &self.limiter.shared.fingerprints;
        if let CheckTarget::All { key, .. } = self.target {
            return fingerprints.of(key);
        }
        let named = plan.steps().iter().map(|step| (step.rule().name(), step.key()));
        fingerprints.of(named.collect::<Vec<_>>())
    }
}

impl<'a> IntoFuture for Check<'a> {
    type Output = Result<Decision, EngineError>;
    type IntoFuture = EngineFuture<'a, Decision>;

    fn into_future(self) -> EngineFuture<'a, Decision> {
        let is_synchronous = self.limiter.engine().is_synchronous();
        match self.target {
            CheckTarget::Plan(plan) if is_synchronous => EngineFuture::Ready(self.decide_now(plan)),
            CheckTarget::Plan(plan) => {
                EngineFuture::Pending(Box::pin(async move { self.decide(plan).await }))
            }
            _ if is_synchronous => EngineFuture::Ready(self.now()),
            _ => EngineFuture::Pending(Box::pin(async move {
                let policy = self.limiter.policy();
                self.decide(&*self.plan(&policy)?).await
            })),
        }
    }
}
