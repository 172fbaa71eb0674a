//! The end of a hold: sent again until the store confirms it, or the hold has expired.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Micros};

use super::Limiter;
use crate::engine::{OwnedCharge, Refusal};
use crate::policy::Plan;
use crate::{Call, Charge, Decision, EngineError, HoldId, Op};

/// Pause before the first retry; doubled each time.
const FIRST_PAUSE: Micros = Micros::from_millis(50);

/// Longest pause: a store that is back gets what it missed within this time.
const MAX_PAUSE: Micros = Micros::from_millis(250);

/// How a hold is to be settled.
pub(super) struct HoldSettlement {
    pub(super) id: HoldId,
    /// The cost to charge; `None` charges what was held.
    pub(super) cost: Option<Cost>,
    /// Recorded if the store has lost the hold.
    pub(super) contents: HoldContents,
    /// An attempt without a reply may have settled the hold. The result of a hold for one request
    /// is not stored, so a settled hold is unknown, as a lost one is.
    may_be_settled: bool,
}

/// What is known about a hold; nothing by default.
#[derive(Default)]
pub(super) struct HoldContents {
    /// What it holds of limits that are charged.
    charges: Box<[(OwnedCharge, Cost)]>,
    is_charged_at_expiry: bool,
    /// Fingerprints of its limits and keys, for callers that wait for them.
    lines: SmallVec<[u64; 1]>,
}

impl HoldContents {
    /// What the decision that made the hold knows.
    pub(super) fn of(decision: &Decision) -> Self {
        let (is_charged_at_expiry, lines) = (decision.is_charged_at_expiry(), decision.lines());
        Self { charges: Box::default(), is_charged_at_expiry, lines: lines.into() }
    }

    /// Sets the charges to those of the plan by which the hold was made.
    pub(super) fn set_charges(&mut self, plan: &Plan<'_>) {
        let charges = plan.charges(None);
        let charged = charges.iter().filter(|charge| charge.limit.limit().lease().is_none());
        self.charges = charged.map(|charge| (OwnedCharge::of(charge), charge.cost)).collect();
    }

    pub(super) fn lines(&self) -> &[u64] {
        &self.lines
    }

    /// What is due at the actual cost if the store has lost the hold; `None` is what was held.
    fn due(&self, cost: Option<Cost>) -> SmallVec<[Charge<'_>; 2]> {
        let charges = self.charges.iter().map(|(owned, held)| {
            let charged = if self.is_charged_at_expiry { *held } else { Cost::ZERO };
            owned.charge(cost.unwrap_or(*held).saturating_sub(charged))
        });
        charges.filter(|charge| !charge.cost.is_zero()).collect()
    }
}

impl HoldSettlement {
    pub(super) fn new(id: HoldId, cost: Option<Cost>, contents: HoldContents) -> Self {
        Self { id, cost, contents, may_be_settled: false }
    }

    pub(super) fn call(&self) -> Call<'static> {
        let op = Op::Settle { id: self.id, cost: self.cost };
        Call { op, charges: &[], idempotency_key: None }
    }

    /// One attempt. The cost of a hold that the store has lost is recorded: the work was done.
    pub(super) async fn attempt(&mut self, limiter: &Limiter) -> Result<Decision, EngineError> {
        let mut result = limiter.settle(self.call(), self.contents.lines()).await;
        let is_unknown = matches!(result, Err(EngineError::Refused(Refusal::UnknownHold)));
        let lost = self.contents.due(self.cost);
        if is_unknown && !self.may_be_settled && !lost.is_empty() {
            let record = Call { op: Op::Record, charges: &lost, idempotency_key: None };
            let enforced = lost.iter().filter(|charge| !charge.limit.is_shadow());
            result = limiter.decide_call(record).await.map(|mut decision| {
                let details = decision.details_mut();
                details.expired = true;
                details.held = enforced.map(|charge| Arc::clone(charge.limit)).collect();
                decision
            });
        }
        self.may_be_settled |= matches!(result, Err(EngineError::Ambiguous(_)));
        result
    }

    /// Attempts until the store replies, at most for `ttl`.
    pub(super) async fn run(mut self, limiter: Limiter, ttl: Micros) {
        let (clock, counts) = (limiter.clock(), &limiter.shared.settlements);
        let expires = clock.elapsed().saturating_add(ttl);
        let (mut pause, mut retried) = (FIRST_PAUSE, None);
        while needs_retry(&self.attempt(&limiter).await) {
            let next = clock.elapsed().saturating_add(pause);
            retried = retried.or_else(|| counts.begin_retries());
            if retried.is_none() || next >= expires {
                return counts.give_up();
            }
            clock.sleep_until(next).await;
            pause = pause.saturating_add(pause).min(MAX_PAUSE);
        }
    }
}

/// Whether there was no reply. A refusal is one.
pub(super) fn needs_retry(result: &Result<Decision, EngineError>) -> bool {
    matches!(result, Err(EngineError::Unavailable(_) | EngineError::Ambiguous(_)))
}
