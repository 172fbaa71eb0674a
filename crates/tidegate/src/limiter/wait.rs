//! Waiting until a check can pass, or a slot is free.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Micros, Wait};

use super::check::Check;
use super::hold_guard::HoldGuard;
use super::wait_hashes::{line_of, lines_of};
use super::wait_queue::QueueTicket;
use super::{Limited, Limiter};
use crate::engine::Refusal;
use crate::policy::Plan;
use crate::{Call, Charge, Decision, EngineError, Key, Op, Source};

/// Poll interval of the first waiter for a slot. Holders of this limiter wake it; those of other
/// processes cannot.
const SLOT_POLL_INTERVAL: Micros = Micros::from_millis(50);

impl Limiter {
    /// Waits until `key` may pass, at most `timeout`, first come, first served. Returns at once if
    /// the earliest possible time is later than that.
    ///
    /// Dropping the future leaves the queue and charges nothing. A `leaky-bucket .. queue` is
    /// charged when the turn comes, not before. The order holds among callers that wait for the
    /// same key in this limiter. A [`check`](Self::check) does not queue; while callers wait for
    /// its key, they get at least half of what is granted, and checks the rest.
    pub async fn acquire<'a>(
        &'a self,
        key: impl Into<Key<'a>>,
        timeout: Duration,
    ) -> Result<Decision, Limited> {
        self.check(key).wait(timeout).await
    }
}

impl Check<'_> {
    /// Waits until it may pass, at most `timeout`, first come, first served.
    ///
    /// For a check see [`Limiter::acquire`](crate::Limiter::acquire), for [`Op::enter`]
    /// [`Enter::wait`](crate::Enter::wait). Other holds wait as a check does; other operations
    /// cannot wait.
    pub async fn wait(self, timeout: Duration) -> Result<Decision, Limited> {
        if !self.op().takes() {
            return Err(EngineError::from(Refusal::OnlyChecksWait).into());
        }
        if self.op() != Op::Check && self.has_id() {
            return Err(EngineError::from(Refusal::EnterTakesNoId).into());
        }
        let clock = &self.limiter.shared.clock;
        let deadline = clock.elapsed().saturating_add(timeout.into());
        let FirstLook { peek, queue, cost, capacity } = self.first_look().await?;
        // Decided before under the same id, or by the policy alone.
        if peek.repeated() || (peek.allowed() && peek.source == Source::Policy) {
            clock.sleep_until(clock.elapsed().saturating_add(peek.delay())).await;
            return Ok(peek);
        }
        if peek.retry_after() == Wait::Never {
            return Err(Limited::denied(peek));
        }
        let Some(ticket) = self.limiter.shared.queues.join(queue, cost) else {
            return Err(Limited::denied(self.beyond_cap(queue).await?));
        };
        if let Some(ahead) = ticket.ahead() {
            let (decision, earliest) = self.earliest(ahead).await?;
            if clock.elapsed().saturating_add(earliest) > deadline {
                return Err(Limited::denied(denied(decision, earliest)));
            }
            if !completes_first(ticket.at_head(), clock.sleep_until(deadline)).await {
                let (decision, earliest) = self.earliest(ticket.ahead().unwrap_or(0)).await?;
                return Err(Limited::denied(denied(decision, earliest)));
            }
        }
        let decision = loop {
            if let Some(decision) = self.attempt(&ticket, deadline).await? {
                break decision;
            }
        };
        ticket.served(cost, capacity);
        drop(ticket);
        // A caller that is dropped while it waits for its turn releases its slot as well.
        let guard = match self.op() {
            Op::Hold(hold) => HoldGuard::of(self.limiter, &decision, hold.ttl),
            _ => None,
        };
        clock.sleep_until(clock.elapsed().saturating_add(decision.delay())).await;
        if let Some(mut guard) = guard {
            guard.keep();
        }
        Ok(decision)
    }

    /// The denial of a caller that finds its queue full: until the callers in it have passed.
    async fn beyond_cap(&self, queue: u128) -> Result<Decision, EngineError> {
        let ahead = self.limiter.shared.queues.granted_before_next(queue);
        let (decision, earliest) = self.earliest(ahead).await?;
        // The end of those that hold slots is not known.
        let is_known = earliest > Micros::ZERO;
        Ok(denied(decision, if is_known { earliest } else { SLOT_POLL_INTERVAL }))
    }

    /// Peeks, and finds the queue.
    async fn first_look(&self) -> Result<FirstLook, EngineError> {
        let policy = self.limiter.policy();
        let plan = self.plan(&policy)?;
        let (cost, capacity) = self.queue_cost(&plan);
        Ok(FirstLook {
            queue: self.fingerprint(&plan),
            cost,
            capacity,
            peek: self.with(Op::Peek).decide(&plan).await?,
        })
    }

    /// One attempt at the head of the queue, and the pause after it: the decision if it is allowed,
    /// an error if a later attempt would be too late.
    async fn attempt(
        &self,
        ticket: &QueueTicket<'_>,
        deadline: Micros,
    ) -> Result<Option<Decision>, Limited> {
        let clock = &self.limiter.shared.clock;
        // The instant after `span`, if it is before the deadline.
        let after =
            |span: Micros| Some(clock.elapsed().saturating_add(span)).filter(|&t| t <= deadline);
        let policy = self.limiter.policy();
        let plan = self.plan(&policy).map_err(EngineError::from)?;
        ticket.set_waits_for(lines_of(&plan));
        // The turn of a queue limit cannot be given back once a later turn is assigned. So it is
        // not taken before it comes: a caller that gives up while waiting has taken nothing. With
        // an id it may be taken at once, since a retry with the id gets the same turn.
        if plan.limits().any(|limit| limit.limit().is_queue()) {
            let peek = self.with(Op::Peek).decide(&plan).await?;
            let turn = after(peek.delay());
            let has_turn = peek.allowed() || min_wait(&plan, &peek) == Wait::NONE;
            if has_turn && turn.is_none() {
                let delay = peek.delay();
                return Err(Limited::denied(denied(peek, delay)));
            }
            if let (true, false, Some(turn)) = (peek.delay() > Micros::ZERO, self.has_id(), turn) {
                completes_first(ticket.notified(), clock.sleep_until(turn)).await;
                return Ok(None);
            }
        }
        let decision = self.decide_in_turn(&plan).await?;
        if decision.allowed() {
            return Ok(Some(decision));
        }
        let wait = min_wait(&plan, &decision);
        // A waiter for a slot leaves the permits to others.
        ticket.set_short(Some(line_of(&plan)).filter(|_| wait != Wait::NONE));
        let in_time = wait.span().and_then(after).is_some();
        if !in_time || clock.elapsed() >= deadline {
            return Err(Limited::denied(decision));
        }
        // Permits may be given back earlier than that.
        let again = clock.elapsed().saturating_add(next_try(&plan, &decision));
        completes_first(ticket.notified(), clock.sleep_until(again.min(deadline))).await;
        Ok(None)
    }

    /// A lower bound of the time until it can pass after `ahead` permits, and the present decision.
    pub(super) async fn earliest(&self, ahead: u64) -> Result<(Decision, Micros), EngineError> {
        let policy = self.limiter.policy();
        let plan = self.plan(&policy)?;
        let charges = self.charges(&plan);
        let split = |charge: &Charge<'_>| charge.limit.limit().split(charge.cost, ahead);
        let peeked: SmallVec<[Charge<'_>; 2]> =
            charges.iter().map(|charge| Charge { cost: split(charge).0, ..*charge }).collect();
        let call = Call { op: Op::Peek, charges: &peeked, idempotency_key: None };
        let decision = self.limiter.decide_call(call).await?;
        let waits = decision.pair(&charges).filter_map(|(charge, verdict)| {
            if charge.limit.limit().lease().is_some() {
                return None;
            }
            let wait = verdict.retry_after.span()?.saturating_add(verdict.delay);
            Some(charge.limit.limit().at_least(wait, split(charge).1))
        });
        let longest = waits.max().unwrap_or(Micros::ZERO);
        Ok((decision, longest))
    }
}

/// What a caller knows before it waits.
struct FirstLook {
    peek: Decision,
    /// Fingerprint of the queue.
    queue: u128,
    /// The smallest cost in any one limit.
    cost: u64,
    /// The smallest capacity of any one limit.
    capacity: u64,
}

/// A lower bound of the wait after a denial. A slot may be released at any time, so only rate
/// limits count, unless the cost can never fit.
fn min_wait(plan: &Plan<'_>, decision: &Decision) -> Wait {
    if decision.retry_after() == Wait::Never {
        return Wait::Never;
    }
    let charged = decision.pair(plan.limits()).filter(|(limit, _)| limit.limit().lease().is_none());
    charged.map(|(_, verdict)| verdict.retry_after).max().unwrap_or(Wait::NONE)
}

/// When to try again after a denial: not before it can pass, and often if it waits for a slot.
fn next_try(plan: &Plan<'_>, decision: &Decision) -> Micros {
    let [least, longest] = [min_wait(plan, decision), decision.retry_after()];
    let [least, longest] = [least, longest].map(|wait| wait.span().unwrap_or(Micros::MAX));
    least.max(longest.min(SLOT_POLL_INTERVAL))
}

/// The decision as a denial for at least `span`.
pub(super) fn denied(mut decision: Decision, span: Micros) -> Decision {
    let wait = Wait::For(span);
    for verdict in &mut decision.verdicts {
        verdict.allowed = false;
        verdict.retry_after = verdict.retry_after.max(wait);
    }
    decision
}

/// Whether `first` completes before `second`.
async fn completes_first(
    first: impl Future<Output = ()>,
    second: impl Future<Output = ()>,
) -> bool {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| {
        if first.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        second.as_mut().poll(cx).map(|()| false)
    })
    .await
}
