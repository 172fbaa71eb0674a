//! What becomes of a request.

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use smallvec::SmallVec;
use tidegate::policy::Enforcement;
use tidegate::{Decision, EngineError, Micros, Op, Refusal, RuleLimit, Sleep, Slot};

use super::body::Guard;
use super::denial::{Denial, Reason};
use super::gate::{Gate, OnNoAnswer, Telling};
use super::settle::{Settle, Spent};
use crate::headers::RateLimitHeaders;

/// A request about which was decided.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// The request.
    pub request: &'a Parts,
    /// The decision, or why there is none.
    pub decision: Result<&'a Decision, &'a EngineError>,
    /// Does it go on to the service?
    pub passes: bool,
}

/// What becomes of a request.
pub(super) enum Outcome {
    Pass(Passed),
    Deny(Response<Bytes>),
}

/// What a request that passes takes along.
#[derive(Default)]
pub(super) struct Passed {
    pub(super) headers: Option<RateLimitHeaders>,
    /// Most take nothing else, so that is kept small.
    pub(super) more: Option<Box<More>>,
}

/// What only some take along.
#[derive(Default)]
pub(super) struct More {
    /// To be waited for before it goes on.
    pub(super) turn: Option<Sleep>,
    /// To be kept until the response has ended.
    pub(super) guard: Option<Guard>,
    /// For the service to tell in what it has cost.
    pub(super) spent: Option<Spent>,
}

impl Passed {
    pub(super) fn has_turn(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.turn.is_some())
    }

    pub(super) async fn wait_for_turn(&mut self) {
        if let Some(turn) = self.more.as_mut().and_then(|more| more.turn.take()) {
            turn.await;
        }
    }
}

impl Gate {
    /// What follows from a decision. `limits` are those that it has verdicts of.
    pub(super) fn decided(
        &self,
        request: &Parts,
        limits: &[&RuleLimit],
        op: Op,
        decision: &Decision,
    ) -> Outcome {
        // Before anybody else is called: whatever happens then, the place is given back.
        let guard = self.guard(op, decision);
        let allowed = decision.allowed();
        let passes = allowed || self.enforcement == Enforcement::Shadow;
        self.tell(Decided { request, decision: Ok(decision), passes });
        if !passes {
            let mut decision = decision.clone();
            self.retry_jitter.iter().for_each(|most| decision.spread_retries(*most));
            let verdicts = || limits.iter().copied().zip(&decision.verdicts);
            let violated = verdicts().filter(|(_, verdict)| !verdict.allowed);
            let violated: SmallVec<[&str; 4]> = violated.map(|(limit, _)| limit.policy()).collect();
            let headers = RateLimitHeaders::new(verdicts(), &decision);
            let reason = Reason::Limited(&decision);
            return self.deny(&Denial { request, reason, violated: &violated }, Some(&headers));
        }
        let verdicts = || limits.iter().copied().zip(&decision.verdicts);
        let tells = allowed
            && self.telling == Telling::Limits
            && self.enforcement == Enforcement::Enforce
            && !decision.verdicts.is_empty();
        let turn = self.turn(decision);
        let spent = match &guard {
            Some(guard) => guard.spent(),
            None => self.settle.as_ref().and_then(Settle::account),
        };
        let has_more = guard.is_some() || turn.is_some() || spent.is_some();
        Outcome::Pass(Passed {
            headers: tells.then(|| RateLimitHeaders::new(verdicts(), decision)),
            more: has_more.then(|| Box::new(More { turn, guard, spent })),
        })
    }

    /// The turn that a queue has given, unless it was waited for already.
    fn turn(&self, decision: &Decision) -> Option<Sleep> {
        let to_come = self.enforcement == Enforcement::Enforce && self.wait.is_none();
        let delay = Some(decision.delay()).filter(|&delay| to_come && delay > Micros::ZERO)?;
        let clock = self.limiter.clock();
        Some(clock.sleep_until(clock.elapsed().saturating_add(delay)))
    }

    fn guard(&self, op: Op, decision: &Decision) -> Option<Guard> {
        let (_, ttl, _) = op.hold()?;
        let slot = Slot::of(&self.limiter, decision, ttl)?;
        Some(Guard::new(slot, self.settle.clone()))
    }

    /// What becomes of a request that is not limited. The service may count on its account.
    pub(super) fn unlimited(&self) -> Outcome {
        let account = self.settle.as_ref().and_then(Settle::account);
        let more = account.map(|spent| Box::new(More { spent: Some(spent), ..More::default() }));
        Outcome::Pass(Passed { headers: None, more })
    }

    /// There is no decision.
    pub(super) fn unanswered(&self, request: &Parts, error: &EngineError) -> Outcome {
        let refused = error.refusal().is_some();
        let passes = self.enforcement == Enforcement::Shadow
            || (!refused && self.on_no_answer == OnNoAnswer::Pass);
        self.tell(Decided { request, decision: Err(error), passes });
        if passes {
            return self.unlimited();
        }
        let reason = match error.refusal() {
            Some(Refusal::KeyTooLong) => Reason::KeyTooLong,
            _ => Reason::NoAnswer(error),
        };
        self.deny(&Denial { request, reason, violated: &[] }, None)
    }

    /// Nobody can be asked about the request.
    pub(super) fn uncounted(&self, request: &Parts, reason: Reason<'static>) -> Box<Outcome> {
        let passes = self.enforcement == Enforcement::Shadow;
        let answer = reason.without_asking();
        self.tell(Decided { request, decision: answer.as_ref(), passes });
        Box::new(match passes {
            true => self.unlimited(),
            false => self.deny(&Denial { request, reason, violated: &[] }, None),
        })
    }

    fn deny(&self, denial: &Denial<'_>, headers: Option<&RateLimitHeaders>) -> Outcome {
        let mut response = match &self.render {
            _ if denial.is_grpc() => denial.grpc(),
            Some(render) => render(denial),
            None => denial.response(),
        };
        if let Some(headers) = headers {
            match self.telling {
                Telling::Limits => headers.write(response.headers_mut()),
                Telling::Quiet => headers.write_denial(response.headers_mut()),
            }
        }
        Outcome::Deny(response)
    }

    fn tell(&self, decided: Decided<'_>) {
        if let Some(see) = &self.on_decision {
            see(&decided);
        }
    }
}
