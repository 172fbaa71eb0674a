//! One question to a limiter.

use std::future::IntoFuture;
use std::ops::Deref;

use smallvec::SmallVec;
use tidegate_core::{Cost, InvalidCost, Verdict};

use super::Limiter;
use crate::engine::Refusal;
use crate::policy::{About, Charges, Lists, Question};
use crate::{Answer, Call, CallId, Decision, EngineError, Key, Op, Plan, Policy, Source};

/// One rule, one key, one cost, for [`Limiter::check_each`].
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    rule: &'a str,
    key: Key<'a>,
    cost: Result<Cost, InvalidCost>,
}

impl<'a> Ask<'a> {
    /// Asks `rule` about `key`, at a cost of 1.
    pub fn new(rule: &'a str, key: impl Into<Key<'a>>) -> Self {
        Self { rule, key: key.into(), cost: Ok(Cost::ONE) }
    }

    /// Asks for this much.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = Cost::new(cost);
        self
    }
}

/// A question that is asked when it is awaited, or at once by [`now`](Self::now).
#[must_use = "nothing is asked before it is awaited"]
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    pub(super) limiter: &'a Limiter,
    op: Op,
    target: Target<'a>,
    who: Option<&'a str>,
    once: Option<&'a str>,
    /// Whatever the costs are, it asks for nothing.
    peeks: bool,
    /// Whatever the cost is, it asks for one place where holders are counted.
    enters: bool,
}

#[derive(Clone, Copy, Debug)]
enum Target<'a> {
    /// Every limit of every rule.
    All { key: Key<'a>, cost: Result<Cost, InvalidCost> },
    /// Each rule that is named.
    Each(&'a [Ask<'a>]),
    /// What a policy has planned.
    Plan(&'a Plan<'a>),
}

/// A plan made now, or before.
pub(super) enum Planned<'r> {
    Now(Plan<'r>),
    Before(&'r Plan<'r>),
}

impl<'r> Deref for Planned<'r> {
    type Target = Plan<'r>;

    fn deref(&self) -> &Plan<'r> {
        match self {
            Self::Now(plan) => plan,
            Self::Before(plan) => plan,
        }
    }
}

impl<'a> Asking<'a> {
    pub(super) fn of_all(limiter: &'a Limiter, op: Op, key: Key<'a>) -> Self {
        Self::new(limiter, op, Target::All { key, cost: Ok(Cost::ONE) })
    }

    /// To be asked with [`Op::Enter`].
    pub(super) fn of_entry(limiter: &'a Limiter, key: Key<'a>) -> Self {
        Self { enters: true, ..Self::of_all(limiter, Op::Peek, key) }
    }

    pub(super) fn of_each(limiter: &'a Limiter, op: Op, asks: &'a [Ask<'a>]) -> Self {
        Self::new(limiter, op, Target::Each(asks))
    }

    pub(super) fn of_plan(limiter: &'a Limiter, op: Op, plan: &'a Plan<'a>) -> Self {
        Self::new(limiter, op, Target::Plan(plan))
    }

    fn new(limiter: &'a Limiter, op: Op, target: Target<'a>) -> Self {
        Self { limiter, op, target, who: None, once: None, peeks: false, enters: false }
    }

    /// Asks for this much instead of 1. Has no effect where every ask has its own cost.
    pub fn cost(mut self, permits: u64) -> Self {
        if let Target::All { cost, .. } = &mut self.target {
            *cost = Cost::new(permits);
        }
        self
    }

    /// Asks without taking: allowed unless in debt, and when a cost of 1 could pass.
    pub fn peek(self) -> Self {
        Self { peeks: true, ..self.with(Op::Peek) }
    }

    /// Keeps `who` with the entry of a `sliding-log`.
    pub fn who(mut self, who: &'a str) -> Self {
        self.who = Some(who);
        self
    }

    /// Charges at most once under `id`, however often it is asked within an hour. Scoped to the
    /// first rule and key.
    pub fn once(mut self, id: &'a str) -> Self {
        self.once = Some(id);
        self
    }

    /// The same question about the same, for another purpose.
    pub(super) fn with(self, op: Op) -> Self {
        Self { op, ..self }
    }

    /// The answer without waiting for it; refused by an engine that has to wait.
    pub fn now(self) -> Result<Decision, EngineError> {
        match self.check_one() {
            Some((source, verdict)) => Ok(Decision::of_one(source, verdict)),
            None => self.answer().now(),
        }
    }

    pub(super) fn op(&self) -> Op {
        self.op
    }

    pub(super) fn has_id(&self) -> bool {
        self.once.is_some()
    }

    /// Asks. Whoever waits is told when something may have been given back.
    pub(super) fn answer(self) -> Answer<'a, Decision> {
        let may_give_back = matches!(self.op, Op::Record | Op::Refund | Op::Reset);
        let lines = &self.limiter.shared.lines;
        match self.plain_answer() {
            answer if !may_give_back => answer,
            Answer::Ready(answer) => {
                lines.nudge_heads();
                Answer::Ready(answer)
            }
            Answer::Later(answer) => Answer::Later(Box::pin(async move {
                let answer = answer.await;
                lines.nudge_heads();
                answer
            })),
        }
    }

    fn plain_answer(self) -> Answer<'a, Decision> {
        if let Target::Plan(plan) = self.target {
            return self.plan_answer(plan);
        }
        if let Some((source, verdict)) = self.check_one() {
            return Answer::Ready(Ok(Decision::of_one(source, verdict)));
        }
        let policy = self.limiter.policy();
        let immediate = match self.plan(&policy).map(|plan| self.ask(&plan)) {
            Ok(Answer::Ready(answer)) => Some(answer),
            // Not polled, so not begun: it is asked again below, where what it borrows can stay.
            Ok(Answer::Later(_)) => None,
            Err(refusal) => Some(Err(refusal.into())),
        };
        match immediate {
            Some(answer) => Answer::Ready(answer),
            None => Answer::Later(Box::pin(async move {
                let plan = self.plan(&policy)?;
                self.decide(&plan).await
            })),
        }
    }

    /// A check of a policy that is a single limit needs no plan, if the engine answers at once.
    #[inline(always)]
    fn check_one(&self) -> Option<(Source, Verdict)> {
        let (Op::Check, Target::All { key, cost: Ok(cost) }) = (self.op, self.target) else {
            return None;
        };
        match self.once {
            None => self.limiter.check_one(key, cost, self.who),
            Some(_) => None,
        }
    }

    fn plan_answer(self, plan: &'a Plan<'a>) -> Answer<'a, Decision> {
        match self.ask(plan) {
            Answer::Ready(answer) => Answer::Ready(answer),
            Answer::Later(_) => Answer::Later(Box::pin(async move { self.decide(plan).await })),
        }
    }

    /// Asks about a plan, and waits for the answer.
    pub(super) async fn decide(self, plan: &Plan<'_>) -> Result<Decision, EngineError> {
        if let Some(decision) = plan.decision() {
            return Ok(decision);
        }
        let charges = self.charges(plan);
        let call = Call { op: self.op, charges: &charges, once: self.call_id()? };
        self.limiter.engine().decide(call).await
    }

    /// Asks; what comes later is only good for telling that it does.
    fn ask(&self, plan: &Plan<'_>) -> Answer<'static, Decision> {
        if let Some(decision) = plan.decision() {
            return Answer::Ready(Ok(decision));
        }
        let charges = self.charges(plan);
        let once = match self.call_id() {
            Ok(once) => once,
            Err(refusal) => return Answer::Ready(Err(refusal.into())),
        };
        let call = Call { op: self.op, charges: &charges, once };
        match self.limiter.engine().decide(call) {
            Answer::Ready(answer) => Answer::Ready(answer),
            Answer::Later(_) => Answer::Later(Box::pin(std::future::pending())),
        }
    }

    fn call_id(&self) -> Result<Option<CallId<'a>>, Refusal> {
        self.once.map(CallId::new).transpose()
    }

    /// What the policy makes of it.
    pub(super) fn plan<'r>(&self, policy: &'r Policy) -> Result<Planned<'r>, Refusal>
    where
        'a: 'r,
    {
        let now = || self.limiter.shared.clock.now();
        let lists = match self.op {
            Op::Record | Op::Refund | Op::Reset => Lists::Ignore,
            _ => Lists::Count,
        };
        let cost_of =
            |cost: Result<Cost, InvalidCost>| if self.peeks { Ok(Cost::ZERO) } else { cost };
        match self.target {
            Target::All { key, cost } => {
                let plan = policy.plan_all(key, cost_of(cost)?, lists, now())?;
                Ok(Planned::Now(if self.enters { plan.entering()? } else { plan }))
            }
            Target::Each(asks) => {
                let question = |&Ask { rule, key, cost }: &Ask<'a>| {
                    Ok(Question { about: About::Rule(rule), key, cost: cost_of(cost)? })
                };
                let questions: SmallVec<[Question<'r>; 2]> =
                    asks.iter().map(question).collect::<Result<_, Refusal>>()?;
                Ok(Planned::Now(match lists {
                    Lists::Count => policy.plan_questions(&questions, now())?,
                    Lists::Ignore => policy.plan_changes(&questions, now())?,
                }))
            }
            Target::Plan(plan) => Ok(Planned::Before(plan)),
        }
    }

    /// The charges of a plan, for this purpose.
    pub(super) fn charges<'r>(&self, plan: &'r Plan<'_>) -> Charges<'r>
    where
        'a: 'r,
    {
        let mut charges = plan.charges_with(self.who);
        if self.peeks {
            charges.iter_mut().for_each(|charge| charge.cost = Cost::ZERO);
        }
        charges
    }

    /// Stands for whom it asks about: those who wait for the same stand in one line.
    pub(super) fn fingerprint(&self) -> u128 {
        let fingerprints = &self.limiter.shared.fingerprints;
        match self.target {
            Target::All { key, .. } => fingerprints.of(key),
            Target::Each(asks) => {
                let named: Vec<_> = asks.iter().map(|ask| (ask.rule, ask.key)).collect();
                fingerprints.of(named)
            }
            Target::Plan(plan) => {
                let named: Vec<_> =
                    plan.steps().iter().map(|step| (step.rule().name(), step.key())).collect();
                fingerprints.of(named)
            }
        }
    }
}

/// Something to be told to a limiter when it is awaited, or at once by [`now`](Self::now): a record,
/// a refund, a reset.
#[must_use = "nothing is told before it is awaited"]
#[derive(Clone, Copy, Debug)]
pub struct Telling<'a>(Asking<'a>);

impl<'a> Telling<'a> {
    pub(super) fn new(limiter: &'a Limiter, op: Op, key: Key<'a>, cost: u64) -> Self {
        Self(Asking::of_all(limiter, op, key).cost(cost))
    }

    /// Keeps `who` with the entry of a `sliding-log`.
    pub fn who(self, who: &'a str) -> Self {
        Self(self.0.who(who))
    }

    /// Does it at most once under `id`, however often it is told within an hour.
    pub fn once(self, id: &'a str) -> Self {
        Self(self.0.once(id))
    }

    /// Does it without waiting for the answer; refused by an engine that has to wait.
    pub fn now(self) -> Result<Decision, EngineError> {
        self.0.now()
    }
}

impl<'a> IntoFuture for Telling<'a> {
    type Output = Result<Decision, EngineError>;
    type IntoFuture = Answer<'a, Decision>;

    fn into_future(self) -> Answer<'a, Decision> {
        self.0.answer()
    }
}

impl<'a> IntoFuture for Asking<'a> {
    type Output = Result<Decision, EngineError>;
    type IntoFuture = Answer<'a, Decision>;

    fn into_future(self) -> Answer<'a, Decision> {
        self.answer()
    }
}
