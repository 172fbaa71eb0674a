//! A hold that is settled on drop.

use tidegate_core::{Cost, Micros};

use super::Limiter;
use super::hold_settlement::{HoldContents, HoldSettlement, OwnedCosts, needs_retry};
use super::poll_once::poll_once;
use crate::policy::Plan;
use crate::{Call, Costs, Decision, EngineError, Extension, HoldId, HoldSpec, Op};

/// A hold that is settled on drop, unless it is kept.
pub(super) struct HoldGuard {
    limiter: Limiter,
    id: HoldId,
    /// How long the hold lasts at most after the drop; `None` leaves it as it is.
    settle_within: Option<Micros>,
    costs_on_drop: OwnedCosts,
    contents: HoldContents,
}

impl HoldGuard {
    /// Guards the hold of `decision`, if it made one, for `ttl` or renewed for `ttl` at a time;
    /// settled on drop.
    pub(super) fn of(limiter: &Limiter, decision: &Decision, ttl: Micros) -> Option<Self> {
        let mut guard = Self::from_id(limiter, decision.hold()?);
        guard.settle_within = Some(ttl);
        guard.contents = HoldContents::of(decision);
        Some(guard)
    }

    /// Refers to an existing hold by its id; not settled on drop.
    pub(super) fn from_id(limiter: &Limiter, id: HoldId) -> Self {
        Self {
            limiter: limiter.clone(),
            id,
            settle_within: None,
            costs_on_drop: OwnedCosts::All(Cost::ZERO),
            contents: HoldContents::default(),
        }
    }

    /// Records the costs under the limits of `plan`, by which `hold` was made, if the store has
    /// lost the hold by its end. `granted` is what it was granted of its quantity.
    pub(super) fn set_charges(
        &mut self,
        hold: HoldSpec<'_>,
        granted: Option<Cost>,
        plan: &Plan<'_>,
    ) {
        self.contents.set_charges(hold, granted, plan);
    }

    pub(super) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(super) fn id(&self) -> HoldId {
        self.id
    }

    /// Keeps the hold beyond this value, until it is settled by its id or expires.
    pub(super) fn keep(&mut self) -> HoldId {
        self.settle_within = None;
        self.id
    }

    /// Sets the costs charged on drop; zero by default.
    pub(super) fn set_costs_on_drop(&mut self, costs: Costs<'_>) {
        self.costs_on_drop = costs.into();
    }

    /// Extends the hold to `ttl` from now.
    pub(super) async fn renew(&self, ttl: Micros) -> Result<Decision, EngineError> {
        let op = Op::Renew { id: self.id, ttl };
        self.limiter.decide_call(Call { op, charges: &[], idempotency_key: None }).await
    }

    /// Holds more, if every limit allows it.
    pub(super) async fn extend(&mut self, to: Extension<'_>) -> Result<Decision, EngineError> {
        let op = Op::Extend { id: self.id, to };
        let call = Call { op, charges: &[], idempotency_key: None };
        let decision = self.limiter.decide_call(call).await?;
        if decision.allowed() {
            self.contents.extend(to.totals, &decision);
            if let (Some(within), Some(ttl)) = (&mut self.settle_within, to.ttl) {
                *within = ttl;
            }
        }
        Ok(decision)
    }

    pub(super) async fn settle(mut self, costs: OwnedCosts) -> Result<Decision, EngineError> {
        let contents = std::mem::take(&mut self.contents);
        let result = HoldSettlement::new(self.id, costs, contents).attempt(&self.limiter).await;
        if !needs_retry(&result) {
            self.keep();
        }
        result
    }
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        let Some(ttl) = self.settle_within else { return };
        let (limiter, contents) = (&self.limiter, std::mem::take(&mut self.contents));
        let costs = contents.unrefusable(self.costs_on_drop.clone());
        let mut settlement = HoldSettlement::new(self.id, costs, contents);
        let is_synchronous = limiter.engine().is_synchronous();
        if is_synchronous {
            match poll_once(settlement.attempt(limiter)) {
                Some(result) if needs_retry(&result) => {}
                _ => return,
            }
        }
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                let lines = settlement.contents.lines().to_vec();
                runtime.spawn(settlement.run(limiter.clone(), ttl));
                // The next caller is sent right behind, not a round trip later.
                limiter.shared.queues.wake(lines);
            }
            // Without a runtime an engine that has to wait cannot be called; the hold expires by
            // itself.
            Err(_) if is_synchronous || settlement.settle_now(limiter).is_err() => {
                limiter.shared.settlements.give_up();
            }
            Err(_) => {}
        }
    }
}
