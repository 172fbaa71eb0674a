//! Waiting for one's turn.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tidegate_core::{Micros, Wait};

use super::Limited;
use super::asking::{Asking, Charges};
use crate::{Call, Charge, Decision, EngineError, Op};

impl Asking<'_> {
    /// Waits until it may pass, first come first served, but no longer than `timeout`.
    ///
    /// See [`Limiter::acquire`](crate::Limiter::acquire).
    pub async fn wait(self, timeout: Duration) -> Result<Decision, Limited> {
        let clock = &self.limiter.shared.clock;
        let deadline = clock.now().saturating_add(timeout.into());
        if self.can_never_pass()? {
            return Err(Limited::Denied(self.with(Op::Peek).await?));
        }
        let ticket = self.limiter.shared.lines.join(self.fingerprint(), self.wanted()?);
        if let Some(ahead) = ticket.ahead() {
            let (decision, earliest) = self.earliest(ahead).await?;
            if earliest > deadline {
                return Err(Limited::Denied(denied(decision, earliest, clock.now())));
            }
            if !before(ticket.turn(), clock.sleep_until(deadline)).await {
                let (decision, earliest) = self.earliest(ticket.ahead().unwrap_or(0)).await?;
                return Err(Limited::Denied(denied(decision, earliest, clock.now())));
            }
        }
        loop {
            // A queue's turn cannot be given back once somebody stands behind it. So it is not
            // taken before it has come: whoever gives up while waiting has taken nothing. Under an
            // id it may be taken, since whoever comes back with the id gets the same turn.
            if self.gives_turns() {
                let look = self.with(Op::Peek).await?;
                let turn = clock.now().saturating_add(look.delay());
                if look.allowed() && turn > deadline {
                    return Err(Limited::Denied(denied(look, turn, clock.now())));
                }
                if look.delay() > Micros::ZERO && !self.has_id() {
                    clock.sleep_until(turn).await;
                    continue;
                }
            }
            let decision = self.await?;
            if decision.allowed() {
                drop(ticket);
                clock.sleep_until(clock.now().saturating_add(decision.delay())).await;
                return Ok(decision);
            }
            let Some(span) = decision.retry_after().span() else {
                return Err(Limited::Denied(decision));
            };
            let again = clock.now().saturating_add(span);
            if again > deadline {
                return Err(Limited::Denied(decision));
            }
            clock.sleep_until(again).await;
        }
    }

    fn can_never_pass(&self) -> Result<bool, EngineError> {
        let rules = self.limiter.rules();
        let charges = self.charges(&rules)?;
        Ok(charges.iter().any(|charge| charge.cost.get() > charge.limit.limit().capacity()))
    }

    /// What it wants at least from any one limit.
    fn wanted(&self) -> Result<u64, EngineError> {
        let rules = self.limiter.rules();
        Ok(self.charges(&rules)?.iter().map(|charge| charge.cost.get()).min().unwrap_or(0))
    }

    fn gives_turns(&self) -> bool {
        let rules = self.limiter.rules();
        rules.iter().flat_map(crate::Rule::limits).any(|limit| limit.limit().is_queue())
    }

    /// The earliest instant at which it can pass after `ahead` has, and what is the case now.
    async fn earliest(&self, ahead: u64) -> Result<(Decision, Micros), EngineError> {
        let rules = self.limiter.rules();
        let charges = self.charges(&rules)?;
        let split = |charge: &Charge<'_>| charge.limit.limit().split(charge.cost, ahead);
        let asked: Charges<'_> =
            charges.iter().map(|charge| Charge { cost: split(charge).0, ..*charge }).collect();
        let call = Call { op: Op::Peek, charges: &asked, once: None };
        let decision = self.limiter.engine().decide(call).await?;
        let waits = charges.iter().zip(&decision.verdicts).filter_map(|(charge, verdict)| {
            let wait = verdict.retry_after.span()?.saturating_add(verdict.delay);
            Some(charge.limit.limit().at_least(wait, split(charge).1))
        });
        let longest = waits.max().unwrap_or(Micros::ZERO);
        Ok((decision, self.limiter.shared.clock.now().saturating_add(longest)))
    }
}

/// The decision as a denial until the instant `again`.
fn denied(mut decision: Decision, again: Micros, now: Micros) -> Decision {
    let wait = Wait::For(again.saturating_sub(now));
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
