//! What every door asks: one limiter, its present policy, and what is counted about both.

mod outlook;

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::policy::{About, Question, Request, Step};
use tidegate::{
    Asking, Clock, Cost, Decision, Engine, EngineError, Expiry, Health, HoldId, Inspection, Key,
    Limit, Limited, Limiter, Micros, Op, Outcome, ParseLimitError, Plan, Refusal, Rule, RuleLimit,
    Source, Verdict,
};

use crate::active::Active;
use crate::hottest::Hottest;
use crate::live::Live;
use crate::live::denials::Denied;
use crate::metrics::Metrics;
use crate::trace::{self, Note, Tracer};

pub use self::outlook::{Outlook, Recovered};

/// One limiter for all doors.
pub struct Service {
    limiter: Limiter,
    clock: Arc<dyn Clock>,
    active: RwLock<Arc<Active>>,
    metrics: Arc<Metrics>,
    hottest: Hottest,
    live: Arc<Live>,
    adhoc: Cache<Box<str>>,
    throttles: Cache<Throttle>,
    tracer: Option<Arc<Tracer>>,
}

/// One rule or limit, one key, one cost.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// What is asked.
    pub target: Target<'a>,
    /// Whom it concerns.
    pub key: Key<'a>,
    /// How much.
    pub cost: u64,
}

/// What a question is about.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// The rule of this name.
    Rule(&'a str),
    /// A limit in the notation, of the asker's own.
    Limit(&'a str),
    /// The limit of redis-cell's command.
    Throttle(Throttle),
    /// A rule that the door has found.
    Own(&'a Rule),
}

impl<'a> Ask<'a> {
    /// As the policy is asked it, with the rule that the asker brings along.
    fn about(&self, own: Option<&'a Rule>) -> Result<About<'a>, Failure> {
        match self.target {
            Target::Rule(name) => Ok(About::Rule(name)),
            Target::Own(rule) => Ok(About::Own(rule)),
            Target::Limit(_) | Target::Throttle(_) => own.map(About::Own).ok_or(Failure::NoAdhoc),
        }
    }
}

/// The numbers of `CL.THROTTLE`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Throttle {
    /// One less than what may pass at once.
    pub max_burst: u64,
    /// How many pass in a period.
    pub count: u64,
    /// The period in seconds.
    pub period: u64,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Charge if every limit allows it.
    Check,
    /// As a check, waiting for its turn at most so long.
    Wait(Duration),
    /// Tell what is left.
    Peek,
    /// Charge what has happened.
    Record,
    /// Give back.
    Refund,
    /// Forget what was used.
    Reset,
    /// Set aside, for the given time or as long as is usual.
    Reserve(Option<Duration>),
}

/// How a reservation is to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settle {
    /// It ends, and this is charged; without a number what was reserved.
    Commit(Option<u64>),
    /// It ends, and nothing is charged.
    Cancel,
    /// It lasts so long from now.
    Renew(Duration),
}

/// A decision and the limits that made it, in the order of its verdicts.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The decision.
    pub decision: Decision,
    /// The limits.
    pub limits: SmallVec<[Arc<RuleLimit>; 2]>,
    /// How long a reservation lasts that was made.
    pub ttl: Option<Micros>,
}

impl Answer {
    /// Each limit with its verdict.
    pub fn verdicts(&self) -> impl Iterator<Item = (&RuleLimit, &Verdict)> {
        self.verdicts_with_limits().map(|(limit, verdict)| (&**limit, verdict))
    }

    /// The answer of each limit for itself.
    pub fn each(&self) -> impl Iterator<Item = Self> {
        self.verdicts_with_limits().map(|(limit, verdict)| {
            let decision = Decision::new(self.decision.source, [*verdict].into_iter().collect());
            let limits = [limit.clone()].into_iter().collect();
            Self { decision, limits, ttl: None }
        })
    }

    fn verdicts_with_limits(&self) -> impl Iterator<Item = (&Arc<RuleLimit>, &Verdict)> {
        self.limits.iter().zip(&self.decision.verdicts)
    }

    /// The limit that speaks for all, with its verdict; none if no limit applies.
    pub fn speaker(&self) -> Option<(&RuleLimit, &Verdict)> {
        self.verdicts().nth(self.decision.speaker())
    }
}

/// Why a question has no answer.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The store gave none.
    NoAnswer(EngineError),
    /// It is not one that can be answered.
    Refused(Refusal),
    /// The limit is not one.
    Limit(ParseLimitError),
    /// The numbers make no limit.
    Throttle,
    /// Limits of the asker's own are turned off.
    NoAdhoc,
    /// There is no key, and what is asked about counts by one.
    NoKey,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(error) => error.fmt(f),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Limit(error) => error.fmt(f),
            Self::Throttle => f.write_str(
                "no such limit; count and period must be above 0, and small enough to count exactly",
            ),
            Self::NoKey => f.write_str("is missing; say whom it concerns"),
            Self::NoAdhoc => f.write_str("limits of your own are turned off; name a rule"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Refused(refusal) => Self::Refused(refusal),
            other => Self::NoAnswer(other),
        }
    }
}

impl Ask<'_> {
    /// Refuses to count everybody together where somebody has forgotten to say who it is. Only a
    /// rule that has no key means that.
    fn needs_key(&self, active: &Active) -> Result<(), Failure> {
        if self.key.parts().next().is_some() {
            return Ok(());
        }
        let counts_together = match self.target {
            Target::Rule(name) => {
                // Whoever looks for a rule that is not there says so.
                active.policy.rule(name).is_none_or(|rule| rule.key().is_empty())
            }
            Target::Limit(_) | Target::Throttle(_) | Target::Own(_) => false,
        };
        if counts_together { Ok(()) } else { Err(Failure::NoKey) }
    }
}

impl Service {
    /// How long a reservation lasts unless told otherwise.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(60);
    /// The most checks in one call.
    pub const MAX_CHECKS: usize = 16;

    /// A service on this engine, under what is active at first.
    pub fn new(engine: Arc<dyn Engine>, active: Active, metrics: Arc<Metrics>) -> Self {
        let clock = engine.clock();
        let live = Arc::new(Live::new(clock.elapsed()));
        Self {
            limiter: Limiter::with_policy(engine, active.policy.clone()),
            clock,
            active: RwLock::new(Arc::new(active)),
            metrics,
            hottest: Hottest::default(),
            live,
            adhoc: Cache::default(),
            throttles: Cache::default(),
            tracer: None,
        }
    }

    /// Has its calls traced.
    #[must_use]
    pub fn traced_by(self, tracer: Arc<Tracer>) -> Self {
        Self { tracer: Some(tracer), ..self }
    }

    /// What traces its calls, if anything does.
    pub fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.tracer.as_ref()
    }

    /// What is active now.
    pub fn active(&self) -> Arc<Active> {
        self.active.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another policy into force, in one step.
    pub fn activate(&self, active: Active) {
        let mut present = self.active.write().unwrap_or_else(PoisonError::into_inner);
        self.limiter.set_policy(active.policy.clone());
        *present = Arc::new(active);
    }

    /// What is counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Which keys are asked about most.
    pub fn hottest(&self) -> &Hottest {
        &self.hottest
    }

    /// What was seen lately.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// How the store is.
    pub fn health(&self) -> Health {
        self.limiter.engine().health()
    }

    /// The clock that the engine goes by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Answers questions that name their rules or limits, all in one step.
    pub async fn ask(
        &self,
        verb: Verb,
        asks: &[Ask<'_>],
        once: Option<&str>,
    ) -> Result<Answer, Failure> {
        loop {
            let active = self.active();
            if let Some(answer) = self.ask_under(&active, verb, asks, once).await? {
                return Ok(answer);
            }
        }
    }

    /// The same under one policy; `None` if another has come into force meanwhile.
    pub(crate) async fn ask_under(
        &self,
        active: &Arc<Active>,
        verb: Verb,
        asks: &[Ask<'_>],
        once: Option<&str>,
    ) -> Result<Option<Answer>, Failure> {
        let own = self.own_rules(asks, active)?;
        let mut questions: SmallVec<[Question<'_>; 2]> = SmallVec::new();
        for (ask, own) in asks.iter().zip(&own) {
            let about = ask.about(own.as_ref())?;
            ask.needs_key(active)?;
            let cost = if matches!(verb, Verb::Peek | Verb::Reset) { 0 } else { ask.cost };
            let cost = Cost::new(cost).map_err(Refusal::from)?;
            questions.push(Question { about, key: ask.key, cost });
        }
        let now = self.clock.now();
        let plan = match verb {
            Verb::Record | Verb::Refund | Verb::Reset => {
                active.policy.plan_changes(&questions, now)?
            }
            _ => active.policy.plan_questions(&questions, now)?,
        };
        let key = asks.first().filter(|_| asks.len() == 1).map(|ask| ask.key);
        self.carry_out(verb, &plan, Caller { once, key }, active, now).await
    }

    /// Answers for a request that the policy's rules are matched against. What it looks like may
    /// depend on what is active: on whose word counts about where it came from.
    pub async fn authorize<R: Request>(
        &self,
        describe: impl Fn(&Active) -> R,
    ) -> Result<Answer, Failure> {
        loop {
            let active = self.active();
            let now = self.clock.now();
            let plan = active.policy.plan_request(&describe(&active), now)?;
            if let Some(answer) =
                self.carry_out(Verb::Check, &plan, Caller::default(), &active, now).await?
            {
                return Ok(answer);
            }
        }
    }

    /// What would be answered, with the plan that it comes from; nothing is charged.
    pub(crate) async fn consider<T>(
        &self,
        ask: Ask<'_>,
        tell: impl Fn(&Plan<'_>, &Answer) -> T,
    ) -> Result<T, Failure> {
        loop {
            let active = self.active();
            let own = self.own_rules(&[ask], &active)?;
            ask.needs_key(&active)?;
            let about = ask.about(own.first().and_then(Option::as_ref))?;
            let questions = [Question { about, key: ask.key, cost: Cost::ZERO }];
            let now = self.clock.now();
            let plan = active.policy.plan_questions(&questions, now)?;
            if let Some(answer) =
                self.carry_out(Verb::Peek, &plan, Caller::default(), &active, now).await?
            {
                return Ok(tell(&plan, &answer));
            }
        }
    }

    /// The same for a request that the rules are matched against.
    pub(crate) async fn consider_request<T>(
        &self,
        request: impl Request,
        tell: impl Fn(&Plan<'_>, &Answer) -> T,
    ) -> Result<T, Failure> {
        loop {
            let active = self.active();
            let now = self.clock.now();
            let plan = active.policy.plan_request(&request, now)?;
            if let Some(answer) =
                self.carry_out(Verb::Peek, &plan, Caller::default(), &active, now).await?
            {
                return Ok(tell(&plan, &answer));
            }
        }
    }

    /// Ends a reservation, or lets it last longer.
    pub async fn settle(&self, id: HoldId, how: Settle) -> Result<Answer, Failure> {
        let reservation = self.limiter.reservation(id);
        let cost = |cost| Cost::new(cost).map_err(|invalid| Failure::Refused(invalid.into()));
        let answer = match how {
            Settle::Commit(Some(charged)) => {
                let charged = cost(charged)?;
                reservation.commit(charged.get()).await
            }
            Settle::Commit(None) => reservation.commit_all().await,
            Settle::Cancel => reservation.cancel().await,
            Settle::Renew(ttl) => reservation.renew(ttl).await,
        };
        let decision = answer.map_err(|error| self.count_error(error))?;
        let limits = decision.held().iter().cloned().collect();
        let ttl = match how {
            Settle::Renew(ttl) if !decision.expired() => Some(ttl.into()),
            _ => None,
        };
        Ok(self.noted(Answer { decision, limits, ttl }))
    }

    /// What is known about a key, one for each limit.
    pub async fn inspect(
        &self,
        ask: Ask<'_>,
    ) -> Result<Vec<(Arc<RuleLimit>, Inspection)>, Failure> {
        let active = self.active();
        let own = self.own_rules(&[ask], &active)?;
        let about = ask.about(own.first().and_then(Option::as_ref))?;
        let questions = [Question { about, key: ask.key, cost: Cost::ZERO }];
        let plan = active.policy.plan_changes(&questions, self.clock.now())?;
        let mut inspections = Vec::new();
        for step in plan.steps() {
            for limit in step.rule().limits() {
                let found = self.limiter.engine().inspect(limit, step.key()).await;
                let found = found.map_err(|error| self.count_error(error))?;
                inspections.push((limit.clone(), found));
            }
        }
        Ok(inspections)
    }

    /// Has a plan decided; `None` if another policy has come into force since it was made.
    async fn carry_out<'a>(
        &'a self,
        verb: Verb,
        plan: &'a Plan<'a>,
        caller: Caller<'a>,
        active: &'a Arc<Active>,
        now: Micros,
    ) -> Result<Option<Answer>, Failure> {
        let (op, ttl) = match verb {
            Verb::Check | Verb::Wait(_) => (Op::Check, None),
            Verb::Peek => (Op::Peek, None),
            Verb::Record => (Op::Record, None),
            Verb::Refund => (Op::Refund, None),
            Verb::Reset => (Op::Reset, None),
            Verb::Reserve(ttl) => {
                let ttl = ttl.map_or_else(|| usual_ttl(plan), Micros::from);
                (Op::Hold { id: HoldId::random()?, ttl, expiry: Expiry::Release }, Some(ttl))
            }
        };
        let mut asking = self.limiter.ask(op, plan);
        if let Some(id) = caller.once {
            asking = asking.once(id);
        }
        let answer = match verb {
            Verb::Wait(timeout) => match asking.wait(timeout).await {
                Ok(decision) => Ok(decision),
                Err(Limited::Denied(decision)) => Ok(*decision),
                Err(Limited::NoAnswer(error)) => Err(error),
            },
            _ => match self.decide_now(asking, active) {
                None => return Ok(None),
                Some(Err(EngineError::Refused(Refusal::NotImmediate))) => asking.await,
                Some(answer) => answer,
            },
        };
        let counts = matches!(verb, Verb::Check | Verb::Wait(_) | Verb::Reserve(_));
        let mut decision = match answer {
            Ok(decision) => decision,
            Err(error) => {
                if counts && error.refusal().is_none() {
                    let rules = plan.steps().iter().map(Step::rule);
                    each_once(rules).for_each(|rule| active.metrics(rule).count_error());
                }
                return Err(self.count_error(error));
            }
        };
        if counts {
            self.count(plan, &decision, caller, active, now);
            active.retry_jitter.iter().for_each(|most| decision.spread_retries(*most));
        }
        let limits = plan.deciding().cloned().collect();
        let ttl = ttl.filter(|_| decision.hold().is_some());
        Ok(Some(self.noted(Answer { decision, limits, ttl })))
    }

    /// Notes an answer where its call is traced.
    fn noted(&self, answer: Answer) -> Answer {
        if self.tracer.is_some() {
            trace::note(|| Note::decided(&answer));
        }
        answer
    }

    /// Decides while no other policy can come into force: otherwise one rule of a call could be
    /// counted by its new limit already, and another by its old one still. `None` if another policy
    /// is in force already. An engine that has to be waited for is left to the caller.
    fn decide_now(
        &self,
        asking: Asking<'_>,
        active: &Arc<Active>,
    ) -> Option<Result<Decision, EngineError>> {
        let present = self.active.read().unwrap_or_else(PoisonError::into_inner);
        Arc::ptr_eq(&present, active).then(|| asking.now())
    }

    /// Counts what each rule thought of a call: each once, however many keys it was asked about.
    fn count(
        &self,
        plan: &Plan<'_>,
        decision: &Decision,
        caller: Caller<'_>,
        active: &Active,
        now: Micros,
    ) {
        if let Some(rule) = plan.denied_by() {
            active.metrics(rule.rule()).count(Outcome::Never, decision.source);
            self.live.denied().note(now, Denied::Rule(rule.rule().name(), caller.key));
            return;
        }
        for rule in plan.exempted_by() {
            active.metrics(rule.rule()).count(Outcome::Allow, Source::Policy);
        }
        let (mut deciding, mut looking_on) = (decision.verdicts.iter(), decision.shadow().iter());
        let mut outcomes: SmallVec<[(&Rule, Outcome); 2]> = SmallVec::new();
        let mut would_deny: SmallVec<[&Rule; 2]> =
            plan.would_be_denied_by().iter().map(|rule| rule.rule()).collect();
        for step in plan.steps() {
            let (mut outcome, mut by) = (Outcome::Allow, None);
            for limit in step.limits() {
                if limit.is_shadow() {
                    let denied = looking_on.next().filter(|verdict| !verdict.allowed);
                    would_deny.extend(denied.map(|_| step.rule()));
                    if let Some(verdict) = denied.filter(|_| decision.allowed()) {
                        let denied = Denied::Limit(limit, step.key(), verdict.outcome());
                        self.live.would_deny().note(now, denied);
                    }
                } else if let Some(verdict) = deciding.next() {
                    let before = outcome;
                    outcome = worse(before, verdict.outcome());
                    by = if outcome == before { by } else { Some(limit) };
                }
            }
            if let Some(limit) = by {
                self.live.denied().note(now, Denied::Limit(limit, step.key(), outcome));
            }
            self.hottest.note(step.rule().name(), step.key(), outcome, now);
            match outcomes.iter_mut().find(|(rule, _)| rule.name() == step.rule().name()) {
                Some((_, before)) => *before = worse(*before, outcome),
                None => outcomes.push((step.rule(), outcome)),
            }
        }
        for (rule, outcome) in outcomes {
            active.metrics(rule).count(outcome, decision.source);
        }
        // What was denied anyway is nothing that a candidate would have changed.
        if decision.allowed() {
            for rule in plan.would_be_denied_by() {
                self.live.would_deny().note(now, Denied::Rule(rule.rule().name(), caller.key));
            }
            each_once(would_deny).for_each(|rule| active.metrics(rule).count_shadow_denied());
        }
    }

    fn count_error(&self, error: EngineError) -> Failure {
        if error.refusal().is_none() {
            self.metrics.count_store_error(&error);
            if self.tracer.is_some() {
                trace::note(Note::no_answer);
            }
        }
        error.into()
    }

    /// The rules that askers bring along, in the places of their asks.
    fn own_rules(
        &self,
        asks: &[Ask<'_>],
        active: &Active,
    ) -> Result<SmallVec<[Option<Rule>; 2]>, Failure> {
        let mut own = SmallVec::new();
        for ask in asks {
            let rule = match ask.target {
                Target::Rule(_) | Target::Own(_) => None,
                _ if !active.adhoc => return Err(Failure::NoAdhoc),
                Target::Limit(text) => Some(
                    self.adhoc
                        .get(text, || text.parse().map(Rule::adhoc).map_err(Failure::Limit))?,
                ),
                Target::Throttle(throttle) => {
                    Some(self.throttles.get(&throttle, || throttle.rule())?)
                }
            };
            own.push(rule);
        }
        Ok(own)
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl Throttle {
    fn rule(self) -> Result<Rule, Failure> {
        let period = Duration::from_secs(self.period);
        let burst = self.max_burst.checked_add(1).ok_or(Failure::Throttle)?;
        if self.count == 0 {
            return Err(Failure::Throttle);
        }
        let limit = Limit::per(self.count, period).burst(burst).build();
        limit.map(Rule::throttle).map_err(|_| Failure::Throttle)
    }
}

/// Who asks, beside what the plan tells.
#[derive(Clone, Copy, Default)]
struct Caller<'a> {
    /// The name under which it charges at most once.
    once: Option<&'a str>,
    /// Whom it concerns, if that is one.
    key: Option<Key<'a>>,
}

/// The shortest lease among the limits, or the default.
fn usual_ttl(plan: &Plan<'_>) -> Micros {
    let leases = plan.limits().filter_map(|limit| limit.limit().lease());
    leases.min().unwrap_or(Service::DEFAULT_TTL.into())
}

/// Each rule where it comes first.
fn each_once<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> impl Iterator<Item = &'a Rule> {
    let mut seen: SmallVec<[&str; 4]> = SmallVec::new();
    rules.into_iter().filter(move |rule| {
        let is_new = !seen.contains(&rule.name());
        if is_new {
            seen.push(rule.name());
        }
        is_new
    })
}

fn worse(one: Outcome, other: Outcome) -> Outcome {
    match (one, other) {
        (Outcome::Never, _) | (_, Outcome::Never) => Outcome::Never,
        (Outcome::RetryAfter(a), Outcome::RetryAfter(b)) => Outcome::RetryAfter(a.max(b)),
        (Outcome::Allow, other) => other,
        (one, Outcome::Allow) => one,
    }
}

/// Rules that were made for one call and are likely to be wanted by the next.
#[derive(Debug)]
struct Cache<K>(Mutex<HashMap<K, Rule>>);

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Eq + Hash> Cache<K> {
    const CAPACITY: usize = 1_024;

    fn get<Q>(&self, key: &Q, make: impl FnOnce() -> Result<Rule, Failure>) -> Result<Rule, Failure>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ToOwned + ?Sized,
        Q::Owned: Into<K>,
    {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rule) = lock().get(key) {
            return Ok(rule.clone());
        }
        let rule = make()?;
        let mut rules = lock();
        if rules.len() >= Self::CAPACITY {
            // Whoever sends a new limit with every call gains nothing by its being kept.
            rules.clear();
        }
        rules.insert(key.to_owned().into(), rule.clone());
        Ok(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded_whatever_is_asked() {
        let cache: Cache<Box<str>> = Cache::default();
        let len = || cache.0.lock().unwrap().len();
        let make =
            |text: &str| cache.get(text, || text.parse().map(Rule::adhoc).map_err(Failure::Limit));
        for count in 1..=3 * Cache::<Box<str>>::CAPACITY {
            make(&format!("{count}/s")).unwrap();
            assert!((1..=Cache::<Box<str>>::CAPACITY).contains(&len()));
        }
        let before = len();
        make("5/parsec").unwrap_err();
        assert_eq!(len(), before, "what is no limit is not kept");
        make("7/s").unwrap();
        let known = cache.get("7/s", || Err(Failure::NoAdhoc));
        assert_eq!(known.unwrap().limits()[0].limit().to_string(), "7/s");
    }
}
