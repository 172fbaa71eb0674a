//! The limiter behind every transport: check, authorize, settle, inspect.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::policy::{ListMode, Request, RuleTarget};
use tidegate::{
    Clock, Costs, Decision, Engine, EngineError, Expiry, Health, HoldId, HoldKind, HoldSpec,
    IdempotencyKey, Inspection, Key, Limited, Limiter, MemoryUse, Micros, Op, Plan, Policy,
    Quantity, Refusal, RuleCheck, RuleCost, RuleLimit, Settled,
};

use super::accounting::Accounting;
use super::active_policy::ActivePolicy;
use super::adhoc::AdhocRules;
use super::decision::{CheckDecision, CheckError, MissingKey};
use super::request::{Operation, ReserveOptions, SettleAction, Throttle};
use super::wait_limits::{WaitCount, WaitLimits, WaitPermit};
use crate::observe::hot_keys::HotKeys;
use crate::observe::metrics::{ListenerKind, Metrics, OutcomeLabel};
use crate::observe::otlp::Tracer;
use crate::observe::traffic::TrafficStats;

/// One limiter with its active policy and its statistics, shared by all listeners.
pub struct CheckService {
    /// Without rules of its own: it gets plans of the active policy.
    pub(super) limiter: Limiter,
    pub(super) clock: Arc<dyn Clock>,
    active: RwLock<Arc<ActivePolicy>>,
    pub(super) accounting: Accounting,
    adhoc: AdhocRules,
    wait_limits: WaitLimits,
    /// Those of all connections.
    waits: WaitCount,
    /// How long ids are kept, in microseconds, as of the last look at the memory.
    id_retention: AtomicU64,
}

impl CheckService {
    /// The TTL of a reservation that names none and whose limits have no lease.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(60);
    /// The maximum number of checks in one call.
    pub const MAX_CHECKS: usize = 16;
    /// The maximum number of independent checks in one call.
    pub const MAX_INDEPENDENT: usize = 256;

    /// A service on this engine that starts with the policy `active`.
    pub fn new(engine: Arc<dyn Engine>, active: ActivePolicy, metrics: Arc<Metrics>) -> Self {
        let clock = engine.clock();
        let traffic = Arc::new(TrafficStats::new(clock.elapsed()));
        let hot_keys = HotKeys::default();
        let limiter = Limiter::with_engine(engine, Policy::default());
        limiter.activate(&active.policy);
        Self {
            limiter,
            clock,
            active: RwLock::new(Arc::new(active)),
            accounting: Accounting { metrics, hot_keys, traffic, tracer: None },
            adhoc: AdhocRules::default(),
            wait_limits: WaitLimits::default(),
            waits: WaitCount::default(),
            id_retention: AtomicU64::new(IdempotencyKey::TTL.get()),
        }
        .with_wait_limits(WaitLimits::default())
    }

    /// Lets at most so many requests wait.
    #[must_use]
    pub fn with_wait_limits(mut self, limits: WaitLimits) -> Self {
        self.limiter = self.limiter.max_waiting_per_key(limits.per_key);
        self.wait_limits = limits;
        self
    }

    /// Traces its calls with `tracer`.
    #[must_use]
    pub fn with_tracer(mut self, tracer: Arc<Tracer>) -> Self {
        self.accounting.tracer = Some(tracer);
        self
    }

    /// The tracer of its calls, if tracing is on.
    pub fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.accounting.tracer.as_ref()
    }

    /// The policy of this instant; a reload replaces it and leaves this one as it is.
    pub fn active(&self) -> Arc<ActivePolicy> {
        self.read().clone()
    }

    fn read(&self) -> RwLockReadGuard<'_, Arc<ActivePolicy>> {
        self.active.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The active policy, which cannot change meanwhile, if the engine decides without waiting. A
    /// call is planned and decided under it. Otherwise one rule of a call could be counted by its
    /// new limit, and another by its old one. An engine that has to wait decides under the policy
    /// that was active when the call came in.
    pub(crate) fn lock_policy(&self) -> Option<RwLockReadGuard<'_, Arc<ActivePolicy>>> {
        self.limiter.engine().is_synchronous().then(|| self.read())
    }

    /// Activates another policy in one step.
    pub fn set_policy(&self, active: ActivePolicy) {
        let mut current = self.active.write().unwrap_or_else(PoisonError::into_inner);
        self.limiter.activate(&active.policy);
        active.set_metrics(self.metrics());
        *current = Arc::new(active);
    }

    /// The counters of the server.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.accounting.metrics
    }

    /// The counters of the server in the text format of Prometheus.
    pub fn render_metrics(&self, health: &Health) -> String {
        let (waiting, refused) = (self.limiter.waiting() as u64, self.limiter.refused_waits());
        self.metrics().set_waits(waiting, refused);
        self.metrics().render(health)
    }

    /// The keys with the most calls.
    pub fn hot_keys(&self) -> &HotKeys {
        &self.accounting.hot_keys
    }

    /// Counts of the last minutes and recent denials.
    pub fn traffic(&self) -> &Arc<TrafficStats> {
        &self.accounting.traffic
    }

    /// The health of the store.
    pub fn health(&self) -> Health {
        self.limiter.engine().health()
    }

    /// The memory of the engine. Called every second: replies report the retention of ids as it was
    /// then.
    pub(crate) fn look_at_memory(&self) -> MemoryUse {
        let memory = self.health().memory;
        self.id_retention.store(memory.id_retention.get(), Ordering::Relaxed);
        memory
    }

    /// How long ids are kept, if that is less than an hour.
    fn short_id_retention(&self) -> Option<Micros> {
        let retention = Micros::new(self.id_retention.load(Ordering::Relaxed));
        Some(retention).filter(|retention| *retention < IdempotencyKey::TTL)
    }

    /// The clock of the engine.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// An ad-hoc limit in the notation, for example `10/s`.
    pub fn adhoc_limit(&self, limit: &str) -> Result<RuleTarget<'static>, CheckError> {
        // Refused first: without permission, an invalid limit is not explained.
        if !self.read().adhoc {
            return Err(CheckError::AdhocDisabled);
        }
        self.adhoc.limit(limit).map(RuleTarget::Adhoc)
    }

    /// The limit of redis-cell's `CL.THROTTLE`.
    pub fn throttle(&self, throttle: Throttle) -> Result<RuleTarget<'static>, CheckError> {
        if !self.read().adhoc {
            return Err(CheckError::AdhocDisabled);
        }
        self.adhoc.throttle(throttle).map(RuleTarget::Adhoc)
    }

    /// A check that waits up to `timeout`, and the permit to hold meanwhile; one that does not wait
    /// if too many requests wait already.
    pub(crate) fn begin_wait(
        &self,
        timeout: Duration,
        connection: &WaitCount,
    ) -> (Operation, Option<WaitPermit>) {
        let counts = [connection, &self.waits];
        let permit = WaitPermit::new(self.wait_limits, counts, self.metrics());
        let timeout = if permit.is_some() { timeout } else { Duration::ZERO };
        (Operation::Wait(timeout), permit)
    }

    /// Runs one operation on checks that name their rules or limits, as one atomic call.
    pub async fn run(
        &self,
        operation: Operation,
        checks: &[RuleCheck<'_>],
        idempotency_key: Option<&str>,
    ) -> Result<CheckDecision, CheckError> {
        if !matches!(operation, Operation::Wait(_))
            && let Some(active) = self.lock_policy()
        {
            return poll_now(self.run_under(&active, operation, checks, idempotency_key));
        }
        let active = self.active();
        self.run_under(&active, operation, checks, idempotency_key).await
    }

    /// The same under a given policy.
    pub(crate) async fn run_under(
        &self,
        active: &ActivePolicy,
        operation: Operation,
        checks: &[RuleCheck<'_>],
        idempotency_key: Option<&str>,
    ) -> Result<CheckDecision, CheckError> {
        let now = self.clock.now();
        let mut plan = active.plan(checks, operation.op(), now)?;
        if let Some(range) = operation.quantity() {
            plan = plan.with_quantity(range.min())?;
        }
        let key = checks.first().filter(|_| checks.len() == 1).map(|check| check.key);
        self.decide(active, operation, &plan, CallContext { idempotency_key, key, now }).await
    }

    /// Decides independent checks in their order, each as [`run`](Self::run) would alone: one
    /// without a cost peeks. The results are in the same order.
    pub async fn check_many(
        &self,
        checks: &[RuleCheck<'_>],
    ) -> Vec<Result<CheckDecision, CheckError>> {
        if let Some(active) = self.lock_policy() {
            let decided = poll_now(async { Ok(self.check_many_under(&active, checks).await) });
            return decided.unwrap_or_else(|error: CheckError| vec![Err(error); checks.len()]);
        }
        let active = self.active();
        self.check_many_under(&active, checks).await
    }

    async fn check_many_under(
        &self,
        active: &ActivePolicy,
        checks: &[RuleCheck<'_>],
    ) -> Vec<Result<CheckDecision, CheckError>> {
        let now = self.clock.now();
        let operation = |check: &RuleCheck<'_>| match check.cost {
            0 => Operation::Peek,
            _ => Operation::Check,
        };
        let plan = |check| {
            let op = operation(check).op();
            Ok((op, active.plan(std::slice::from_ref(check), op, now)?))
        };
        let plans: Vec<Result<(Op<'_>, Plan<'_>), CheckError>> = checks.iter().map(plan).collect();
        let planned: Vec<(Op<'_>, &Plan<'_>)> =
            plans.iter().flatten().map(|(op, plan)| (*op, plan)).collect();
        let mut results = self.limiter.decide_many(&planned).await.into_iter();
        let decided = |(check, planned): (&RuleCheck<'_>, Result<(_, Plan<'_>), CheckError>)| {
            let (_, plan) = planned?;
            let context = CallContext { idempotency_key: None, key: Some(check.key), now };
            let result = results.next().unwrap_or(Err(Refusal::NotImmediate.into()));
            self.decided(active, operation(check), &plan, context, result)
        };
        checks.iter().zip(plans).map(decided).collect()
    }

    /// Checks a request that the rules of the policy are matched against. `describe` gets the
    /// active policy because the client address depends on its trusted proxies.
    pub async fn authorize<R: Request>(
        &self,
        describe: impl Fn(&ActivePolicy) -> R,
    ) -> Result<CheckDecision, CheckError> {
        if let Some(active) = self.lock_policy() {
            return poll_now(self.authorize_under(&active, &describe(&active)));
        }
        let active = self.active();
        self.authorize_under(&active, &describe(&active)).await
    }

    async fn authorize_under(
        &self,
        active: &ActivePolicy,
        request: &impl Request,
    ) -> Result<CheckDecision, CheckError> {
        let context = CallContext { idempotency_key: None, key: None, now: self.clock.now() };
        let plan = active.policy.plan_request(request, context.now)?;
        self.decide(active, Operation::Check, &plan, context).await
    }

    /// Passes the plan of a check and its decision to `read`; nothing is charged.
    pub(crate) async fn peek<T>(
        &self,
        check: RuleCheck<'_>,
        read: impl Fn(&Plan<'_>, &CheckDecision) -> T,
    ) -> Result<T, CheckError> {
        let active = self.active();
        let plan = active.plan(&[check], Op::Peek, self.clock.now())?;
        self.peek_plan(&active, &plan, read).await
    }

    /// The same for a request that the rules are matched against.
    pub(crate) async fn peek_request<T>(
        &self,
        request: impl Request,
        read: impl Fn(&Plan<'_>, &CheckDecision) -> T,
    ) -> Result<T, CheckError> {
        let active = self.active();
        let plan = active.policy.plan_request(&request, self.clock.now())?;
        self.peek_plan(&active, &plan, read).await
    }

    async fn peek_plan<T>(
        &self,
        active: &ActivePolicy,
        plan: &Plan<'_>,
        read: impl Fn(&Plan<'_>, &CheckDecision) -> T,
    ) -> Result<T, CheckError> {
        let context = CallContext { idempotency_key: None, key: None, now: self.clock.now() };
        Ok(read(plan, &self.decide(active, Operation::Peek, plan, context).await?))
    }

    /// Ends a named hold whose first charge is of `key`. Refused with [`Refusal::UnknownHold`] if
    /// there is none.
    pub async fn settle_named(
        &self,
        active: &ActivePolicy,
        name: HoldId,
        key: Key<'_>,
        costs: &[RuleCost<'_>],
    ) -> Result<CheckDecision, CheckError> {
        let id = self.limiter.engine().locate_hold(name.with_tag(NAMED_TAG), key).await;
        let id = id.map_err(|error| self.accounting.count_error(error))?;
        let result = self.limiter.reservation(id).commit_each(costs).await;
        let action = SettleAction::Commit(Costs::Each(costs));
        self.settled(active, id, action, result.map(Settled::into_decision))
    }

    /// Ends the hold of a decision, which may be named, and charges nothing.
    pub(crate) async fn cancel(&self, id: HoldId) {
        // If the store does not reply, the hold ends by itself.
        let _ = self.limiter.reservation(id).cancel().await;
    }

    /// Ends a reservation, renews it or extends it. Only an extension can be denied. The id of a
    /// named hold can be computed, so it is unknown here.
    pub async fn settle(
        &self,
        id: HoldId,
        action: SettleAction<'_>,
    ) -> Result<CheckDecision, CheckError> {
        if id.tag() == NAMED_TAG {
            return Err(Refusal::UnknownHold.into());
        }
        let active = &*self.active();
        let mut reservation = self.limiter.reservation(id);
        let result = match action {
            SettleAction::Commit(Costs::AsHeld) => reservation.commit_all().await,
            SettleAction::Commit(Costs::All(cost)) => reservation.commit(cost.get()).await,
            SettleAction::Commit(Costs::Each(each)) => {
                let keys = counted_keys(active, each);
                reservation.commit_each(&with_keys(each, &keys)).await
            }
            SettleAction::Cancel => reservation.cancel().await,
            SettleAction::Renew(ttl) => {
                let decision = reservation.renew(ttl).await;
                return self.settled(active, id, action, decision);
            }
            SettleAction::Extend(to) => {
                let keys = counted_keys(active, to.totals);
                let totals = with_keys(to.totals, &keys);
                let mut extend = reservation.extend_to(&totals);
                if let Some(min) = to.min {
                    extend = extend.at_least(min.get());
                }
                if let Some(ttl) = to.ttl {
                    extend = extend.ttl(ttl.into());
                }
                let decision = or_denied(extend.await);
                return self.settled(active, id, action, decision);
            }
        };
        self.settled(active, id, action, result.map(Settled::into_decision))
    }

    /// Does not lock the policy: the caller may hold the lock.
    fn settled(
        &self,
        active: &ActivePolicy,
        id: HoldId,
        action: SettleAction<'_>,
        result: Result<Decision, EngineError>,
    ) -> Result<CheckDecision, CheckError> {
        let mut decision = result.map_err(|error| self.accounting.count_error(error))?;
        if let SettleAction::Extend(to) = action {
            self.accounting.count_extension(&to, &decision);
            active.retry_jitter.iter().for_each(|jitter| decision.jitter_retry_after(*jitter));
        }
        let model = active.reserved_model(id).unwrap_or(Metrics::OTHER);
        let mut before = None;
        for (limit, cost) in decision.held().iter().zip(decision.settled()) {
            if !cost.uncharged.is_zero() {
                self.metrics().rule(limit.rule()).count_uncharged(cost.uncharged.get());
            }
            // Once for each rule, and not for what the settlement does not decide.
            let is_new = before.replace(limit.rule()) != Some(limit.rule());
            if is_new && !decision.repeated() && active.is_settled_later(limit) {
                let (charged, reserved) = (cost.charged.get(), cost.reserved.get());
                self.metrics().observe_settled(limit.rule(), model, charged, reserved);
            }
        }
        let limits = decision.held().iter().cloned().collect();
        let ttl = match action {
            SettleAction::Renew(ttl) if !decision.expired() => Some(ttl.into()),
            SettleAction::Extend(to) => to.ttl.filter(|_| decision.allowed()),
            _ => None,
        };
        let (id_retention, granted, headers) = (None, None, active.headers);
        let missing_key = None;
        let decision =
            CheckDecision { decision, limits, ttl, id_retention, granted, headers, missing_key };
        self.accounting.trace(&decision);
        Ok(decision)
    }

    /// The stored state of a key, one for each limit.
    pub async fn inspect(
        &self,
        check: RuleCheck<'_>,
    ) -> Result<Vec<(Arc<RuleLimit>, Inspection)>, CheckError> {
        let active = self.active();
        let plan = active.policy.plan_checks(&[check], ListMode::Ignore, self.clock.now())?;
        let mut inspections = Vec::new();
        for step in plan.steps() {
            for limit in step.rule().limits() {
                let found = self.limiter.engine().inspect(limit, step.key()).await;
                let found = found.map_err(|error| self.accounting.count_error(error))?;
                inspections.push((limit.clone(), found));
            }
        }
        Ok(inspections)
    }

    /// Counts a request that came in on a listener, if it asks for permits and is valid.
    pub(crate) fn count_request(
        &self,
        listener: ListenerKind,
        operation: Operation,
        result: &Result<CheckDecision, CheckError>,
    ) {
        let outcome = match result {
            _ if !operation.is_counted() => return,
            Ok(decision) if decision.decision.allowed() => OutcomeLabel::Allow,
            Ok(_) => OutcomeLabel::Deny,
            Err(CheckError::Store(_)) => OutcomeLabel::Error,
            Err(_) => return,
        };
        self.metrics().count_request(listener, outcome);
    }

    /// Decides a plan of `active`, and counts the decision.
    async fn decide(
        &self,
        active: &ActivePolicy,
        operation: Operation,
        plan: &Plan<'_>,
        context: CallContext<'_>,
    ) -> Result<CheckDecision, CheckError> {
        let range = operation.quantity();
        let units = range.map_or_else(Vec::new, |_| plan.unit_charges());
        let quantity =
            range.map(|range| Quantity { min: range.min(), want: range.want(), charges: &units });
        let (op, ttl) = match operation {
            Operation::Reserve(options) => {
                let ttl = options.ttl.map_or_else(|| default_ttl(plan), Micros::from);
                let hold = HoldSpec { quantity: quantity.as_ref(), ..hold_spec(options, ttl)? };
                (Op::Hold(hold), Some(ttl))
            }
            _ => (operation.op(), None),
        };
        let mut check = self.limiter.decide(op, plan);
        if let Some(id) = context.idempotency_key {
            check = check.idempotency_key(id);
        }
        let result = match operation {
            Operation::Wait(timeout) => or_denied(check.wait(timeout).await),
            _ => check.await,
        };
        let decided = self.decided(active, operation, plan, context, result)?;
        let (ttl, decision) =
            (ttl.filter(|_| decided.decision.hold().is_some()), &decided.decision);
        // Without a limit that counts it, an exempt key is granted everything.
        let granted = range.filter(|_| decision.allowed());
        let granted = granted.map(|range| decision.granted().unwrap_or(range.want()));
        Ok(CheckDecision { ttl, granted, ..decided })
    }

    /// Counts the result of a plan of `active`.
    fn decided(
        &self,
        active: &ActivePolicy,
        operation: Operation,
        plan: &Plan<'_>,
        context: CallContext<'_>,
        result: Result<Decision, EngineError>,
    ) -> Result<CheckDecision, CheckError> {
        let mut decision = match result {
            Ok(decision) => decision,
            Err(error) => {
                if operation.is_counted() {
                    self.accounting.count_failed_call(plan, &error, active);
                }
                return Err(self.accounting.count_error(error));
            }
        };
        if operation.is_counted() {
            self.accounting.count(plan, &decision, context.key, active, context.now);
            active.retry_jitter.iter().for_each(|jitter| decision.jitter_retry_after(*jitter));
        }
        let (limits, headers) = (plan.limits().cloned().collect(), active.headers);
        let id_retention = context.idempotency_key.and_then(|_| self.short_id_retention());
        let (granted, ttl, missing_key) = (None, None, MissingKey::of(plan));
        let decision =
            CheckDecision { decision, limits, ttl, id_retention, granted, headers, missing_key };
        self.accounting.trace(&decision);
        Ok(decision)
    }
}

/// The result of a future that a synchronous engine completes at the first poll.
pub(crate) fn poll_now<T, E: From<CheckError>>(
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(CheckError::from(Refusal::NotImmediate).into()),
    }
}

impl fmt::Debug for CheckService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckService").finish_non_exhaustive()
    }
}

/// The decision, whether or not it is a denial.
fn or_denied(result: Result<Decision, Limited>) -> Result<Decision, EngineError> {
    match result {
        Ok(decision) => Ok(decision),
        Err(Limited::Denied(decision)) => Ok(*decision),
        Err(Limited::NoAnswer(error)) => Err(error),
    }
}

/// The keys of these costs as their rules count them, if they differ.
fn counted_keys(active: &ActivePolicy, costs: &[RuleCost<'_>]) -> Vec<Option<Vec<String>>> {
    costs.iter().map(|cost| active.policy.counted_key(cost.rule, cost.key?)).collect()
}

/// The same costs with these keys.
fn with_keys<'a>(costs: &[RuleCost<'a>], keys: &'a [Option<Vec<String>>]) -> Vec<RuleCost<'a>> {
    let costs = costs.iter().zip(keys).map(|(cost, counted)| {
        let key = counted.as_deref().map(Key::from).or(cost.key);
        RuleCost { key, ..*cost }
    });
    costs.collect()
}

/// What a call has in addition to its plan.
#[derive(Clone, Copy)]
struct CallContext<'a> {
    idempotency_key: Option<&'a str>,
    /// The key of the request, if it has exactly one.
    key: Option<Key<'a>>,
    now: Micros,
}

/// The [tag](HoldId::tag) of named holds, and of no others.
const NAMED_TAG: u32 = u32::from_be_bytes(*b"name");

/// The hold of a reservation.
fn hold_spec(options: ReserveOptions, ttl: Micros) -> Result<HoldSpec<'static>, EngineError> {
    let ReserveOptions { charge_on_expiry, tag, name, .. } = options;
    let expiry = if charge_on_expiry { Expiry::Charge } else { Expiry::Release };
    let random = HoldId::random()?;
    let (id, kind) = match name {
        Some(name) => {
            let attempt = u64::try_from(random.get() >> 64).unwrap_or_default();
            (name.with_tag(NAMED_TAG), HoldKind::Named { attempt })
        }
        None => {
            let tag = tag.unwrap_or(random.tag());
            let tag = if tag == NAMED_TAG { !tag } else { tag };
            (random.with_tag(tag), HoldKind::Reservation)
        }
    };
    Ok(HoldSpec { id, ttl, expiry, kind, quantity: None })
}

/// The shortest lease among the limits, or the default.
fn default_ttl(plan: &Plan<'_>) -> Micros {
    let leases = plan.limits().filter_map(|limit| limit.limit().lease());
    leases.min().unwrap_or(CheckService::DEFAULT_TTL.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::counting_engine::CountingEngine;

    #[tokio::test]
    async fn a_call_enters_the_engine_once() {
        for is_synchronous in [true, false] {
            let (engine, service) =
                CountingEngine::service(is_synchronous, &["100/s", "fixed-window 50/1h"]);
            let check = RuleCheck::new("api", "key");
            let operations = [
                Operation::Check,
                Operation::Peek,
                Operation::Record,
                Operation::Reserve(None.into()),
            ];
            for operation in operations {
                service.run(operation, std::slice::from_ref(&check), None).await.unwrap();
                assert_eq!(engine.take_decisions(), 1, "{operation:?}, {is_synchronous}");
            }
        }
    }

    #[tokio::test]
    async fn the_id_of_a_named_hold_settles_it_only_by_its_name() {
        let (_, service) = CountingEngine::service(true, &["100/s"]);
        let (check, name) = (RuleCheck::new("api", "key"), HoldId::from(7));
        let options = ReserveOptions { name: Some(name), ..ReserveOptions::default() };
        let reserve = Operation::Reserve(options);
        let made = service.run(reserve, std::slice::from_ref(&check), None).await.unwrap();
        let id = made.decision.hold().unwrap();
        let refused = service.settle(id, SettleAction::Cancel).await.unwrap_err();
        assert!(matches!(refused, CheckError::Refused(Refusal::UnknownHold)));
        service.settle_named(&service.active(), name, check.key, &[]).await.unwrap();
    }

    /// A policy change that waits for the lock lets no further reader pass.
    #[test]
    fn a_commit_by_name_does_not_lock_the_policy_again() {
        let (_, service) = CountingEngine::service(true, &["100/s"]);
        let (check, name) = (RuleCheck::new("api", "key"), HoldId::from(7));
        let options = ReserveOptions { name: Some(name), ..ReserveOptions::default() };
        let checks = std::slice::from_ref(&check);
        poll_now(service.run(Operation::Reserve(options), checks, None)).unwrap();
        let active = service.lock_policy().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(service.active.write()));
            while service.active.try_read().is_ok() {
                std::thread::yield_now();
            }
            poll_now(service.settle_named(&active, name, check.key, &[])).unwrap();
            drop(active);
        });
    }
}
