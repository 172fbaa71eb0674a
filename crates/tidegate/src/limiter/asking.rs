//! One question to a limiter.

use std::future::IntoFuture;

use smallvec::SmallVec;
use tidegate_core::{Cost, InvalidCost};

use super::Limiter;
use crate::engine::Refusal;
use crate::{Answer, Call, CallId, Charge, Decision, EngineError, Key, Op, Rule};

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
}

#[derive(Clone, Copy, Debug)]
enum Target<'a> {
    /// Every limit of every rule.
    All { key: Key<'a>, cost: Result<Cost, InvalidCost> },
    /// Each rule that is named.
    Each(&'a [Ask<'a>]),
}

pub(super) type Charges<'a> = SmallVec<[Charge<'a>; 2]>;

impl<'a> Asking<'a> {
    pub(super) fn of_all(limiter: &'a Limiter, op: Op, key: Key<'a>) -> Self {
        let target = Target::All { key, cost: Ok(Cost::ONE) };
        Self { limiter, op, target, who: None, once: None, peeks: false }
    }

    pub(super) fn of_each(limiter: &'a Limiter, op: Op, asks: &'a [Ask<'a>]) -> Self {
        Self { limiter, op, target: Target::Each(asks), who: None, once: None, peeks: false }
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
        self.answer().now()
    }

    pub(super) fn op(&self) -> Op {
        self.op
    }

    pub(super) fn has_id(&self) -> bool {
        self.once.is_some()
    }

    pub(super) fn answer(self) -> Answer<'a, Decision> {
        let rules = self.limiter.rules();
        let immediate = match self.ask(&rules) {
            Ok(Answer::Ready(answer)) => Some(answer),
            // Not polled, so not begun: it is asked again below, where what it borrows can stay.
            Ok(Answer::Later(_)) => None,
            Err(error) => Some(Err(error)),
        };
        match immediate {
            Some(answer) => Answer::Ready(answer),
            None => Answer::Later(Box::pin(async move {
                let charges = self.charges(&rules)?;
                let call = Call { op: self.op, charges: &charges, once: self.call_id()? };
                self.limiter.engine().decide(call).await
            })),
        }
    }

    /// Asks; what comes later is only good for telling that it does.
    fn ask(&self, rules: &[Rule]) -> Result<Answer<'static, Decision>, EngineError> {
        let charges = self.charges(rules)?;
        let call = Call { op: self.op, charges: &charges, once: self.call_id()? };
        Ok(match self.limiter.engine().decide(call) {
            Answer::Ready(answer) => Answer::Ready(answer),
            Answer::Later(_) => Answer::Later(Box::pin(std::future::pending())),
        })
    }

    fn call_id(&self) -> Result<Option<CallId<'a>>, Refusal> {
        self.once.map(CallId::new).transpose()
    }

    pub(super) fn charges<'r>(&self, rules: &'r [Rule]) -> Result<Charges<'r>, Refusal>
    where
        'a: 'r,
    {
        let who = self.who;
        match self.target {
            Target::All { key, cost } => {
                let cost = if self.peeks { Cost::ZERO } else { cost? };
                let limits = rules.iter().flat_map(Rule::limits);
                Ok(limits.map(|limit| Charge { limit, key, cost, who }).collect())
            }
            Target::Each(asks) => {
                let mut charges = Charges::new();
                for &Ask { rule, key, cost } in asks {
                    let cost = if self.peeks { Cost::ZERO } else { cost? };
                    let named = rules.iter().find(|r| r.name() == rule);
                    let limits = named.ok_or(Refusal::UnknownRule(rule.into()))?.limits();
                    charges.extend(limits.iter().map(|limit| Charge { limit, key, cost, who }));
                }
                Ok(charges)
            }
        }
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
        let answer = self.0.now();
        self.0.limiter.shared.lines.nudge_heads();
        answer
    }
}

impl<'a> IntoFuture for Telling<'a> {
    type Output = Result<Decision, EngineError>;
    type IntoFuture = Answer<'a, Decision>;

    fn into_future(self) -> Answer<'a, Decision> {
        let lines = &self.0.limiter.shared.lines;
        match self.0.answer() {
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
}

impl<'a> IntoFuture for Asking<'a> {
    type Output = Result<Decision, EngineError>;
    type IntoFuture = Answer<'a, Decision>;

    fn into_future(self) -> Answer<'a, Decision> {
        self.answer()
    }
}
