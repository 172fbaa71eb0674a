//! Waiting for one's turn, or for a place.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tidegate_core::{Micros, Wait};

use super::Limited;
use super::asking::Asking;
use super::held::Held;
use crate::engine::Refusal;
use crate::policy::{Charges, Plan};
use crate::{Call, Charge, Decision, EngineError, Op};

/// How often whoever is first in line looks for a place. Holders that leave this limiter say so, those
/// in other processes cannot.
const LOOK_AGAIN: Micros = Micros::from_millis(50);

impl Asking<'_> {
    /// Waits until it may pass, first come first served, but no longer than `timeout`.
    ///
    /// For a check see [`Limiter::acquire`](crate::Limiter::acquire), for [`Op::Enter`]
    /// [`Entering::wait`](crate::Entering::wait). [`Op::Hold`] waits as a check does; nothing else can.
    pub async fn wait(self, timeout: Duration) -> Result<Decision, Limited> {
        if !self.op().takes() {
            return Err(EngineError::from(Refusal::OnlyChecksWait).into());
        }
        if self.op() != Op::Check && self.has_id() {
            return Err(EngineError::from(Refusal::EnterTakesNoId).into());
        }
        let clock = &self.limiter.shared.clock;
        let deadline = clock.elapsed().saturating_add(timeout.into());
        // How long until `span` from now, and is that in time?
        let after =
            |span: Micros| Some(clock.elapsed().saturating_add(span)).filter(|&t| t <= deadline);
        let look = self.with(Op::Peek).await?;
        if look.repeated() {
            clock.sleep_until(clock.elapsed().saturating_add(look.delay())).await;
            return Ok(look);
        }
        if look.retry_after() == Wait::Never {
            return Err(Limited::denied(look));
        }
        let ticket = self.limiter.shared.lines.join(self.fingerprint(), self.wanted()?);
        if let Some(ahead) = ticket.ahead() {
            let (decision, earliest) = self.earliest(ahead).await?;
            if after(earliest).is_none() {
                return Err(Limited::denied(denied(decision, earliest)));
            }
            if !before(ticket.turn(), clock.sleep_until(deadline)).await {
                let (decision, earliest) = self.earliest(ticket.ahead().unwrap_or(0)).await?;
                return Err(Limited::denied(denied(decision, earliest)));
            }
        }
        loop {
            let policy = self.limiter.policy();
            let plan = self.plan(&policy).map_err(EngineError::from)?;
            // A queue's turn cannot be given back once somebody stands behind it. So it is not
            // taken before it has come: whoever gives up while waiting has taken nothing. Under an
            // id it may be taken, since whoever comes back with the id gets the same turn.
            if plan.limits().any(|limit| limit.limit().is_queue()) {
                let look = self.with(Op::Peek).decide(&plan).await?;
                let turn = after(look.delay());
                let has_turn = look.allowed() || at_least(&plan, &look) == Wait::NONE;
                if has_turn && turn.is_none() {
                    let delay = look.delay();
                    return Err(Limited::denied(denied(look, delay)));
                }
                if let (true, false, Some(turn)) =
                    (look.delay() > Micros::ZERO, self.has_id(), turn)
                {
                    before(ticket.nudge(), clock.sleep_until(turn)).await;
                    continue;
                }
            }
            let decision = self.decide(&plan).await?;
            if decision.allowed() {
                drop(ticket);
                // Whoever gives up while it waits for its turn leaves its place as well.
                let held = decision.hold().map(|id| Held::made(self.limiter, id));
                clock.sleep_until(clock.elapsed().saturating_add(decision.delay())).await;
                if let Some(mut held) = held {
                    held.keep();
                }
                return Ok(decision);
            }
            let in_time = at_least(&plan, &decision).span().and_then(after).is_some();
            if !in_time || clock.elapsed() >= deadline {
                return Err(Limited::denied(decision));
            }
            // Something may be given back earlier than that.
            let again = clock.elapsed().saturating_add(next_look(&plan, &decision));
            before(ticket.nudge(), clock.sleep_until(again.min(deadline))).await;
        }
    }

    /// What it wants at least from any one limit.
    fn wanted(&self) -> Result<u64, EngineError> {
        let policy = self.limiter.policy();
        let plan = self.plan(&policy)?;
        Ok(self.charges(&plan).iter().map(|charge| charge.cost.get()).min().unwrap_or(0))
    }

    /// How long it takes at least until it can pass after `ahead` has, and what is the case now.
    async fn earliest(&self, ahead: u64) -> Result<(Decision, Micros), EngineError> {
        let policy = self.limiter.policy();
        let plan = self.plan(&policy)?;
        let charges = self.charges(&plan);
        let split = |charge: &Charge<'_>| charge.limit.limit().split(charge.cost, ahead);
        let asked: Charges<'_> =
            charges.iter().map(|charge| Charge { cost: split(charge).0, ..*charge }).collect();
        let call = Call { op: Op::Peek, charges: &asked, once: None };
        let decision = self.limiter.engine().decide(call).await?;
        let deciding = charges.iter().filter(|charge| !charge.limit.is_shadow());
        let waits = deciding.zip(&decision.verdicts).filter_map(|(charge, verdict)| {
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

/// How long it takes at least after a denial until it can pass. A place may come free at any time,
/// so that only the limits that are charged count, unless there will never be enough places.
fn at_least(plan: &Plan<'_>, decision: &Decision) -> Wait {
    if decision.retry_after() == Wait::Never {
        return Wait::Never;
    }
    let deciding = plan.limits().filter(|limit| !limit.is_shadow()).zip(&decision.verdicts);
    let charged = deciding.filter(|(limit, _)| limit.limit().lease().is_none());
    charged.map(|(_, verdict)| verdict.retry_after).max().unwrap_or(Wait::NONE)
}

/// When to look again after a denial: no sooner than it can pass, and often if it is for a place.
fn next_look(plan: &Plan<'_>, decision: &Decision) -> Micros {
    let [least, longest] = [at_least(plan, decision), decision.retry_after()];
    let [least, longest] = [least, longest].map(|wait| wait.span().unwrap_or(Micros::MAX));
    least.max(longest.min(LOOK_AGAIN))
}

/// The decision as a denial for as long as `span`.
fn denied(mut decision: Decision, span: Micros) -> Decision {
    let wait = Wait::For(span);
    for verdict in &mut decision.verdicts {
        verdict.allowed = false;
        verdict.retry_after = verdict.retry_after.max(wait);
    }
    decision
}

/// Does `first` complete before `second`?
async fn before(first: impl Future<Output = ()>, second: impl Future<Output = ()>) -> bool {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| {
        if first.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        second.as_mut().poll(cx).map(|()| false)
    })
    .await
}
