//! The end of a hold: sent again until the store confirms it, or the hold has expired.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Expiry, Micros};

use super::Limiter;
use crate::engine::{OwnedCharge, OwnedKey, Refusal};
use crate::policy::Plan;
use crate::{
    Call, Charge, Costs, Decision, EngineError, HeldPart, HoldId, HoldSpec, Op, RuleCost,
    SettledCost,
};

/// Pause before the first retry; doubled each time.
const FIRST_PAUSE: Micros = Micros::from_millis(50);

/// Longest pause: a store that is back gets what it missed within this time.
const MAX_PAUSE: Micros = Micros::from_millis(250);

/// How a hold is to be settled.
pub(super) struct HoldSettlement {
    pub(super) id: HoldId,
    costs: OwnedCosts,
    /// Recorded if the store has lost the hold.
    pub(super) contents: HoldContents,
    /// An attempt without a reply may have settled the hold. The result of a hold for one request
    /// is not stored, so a settled hold is unknown, as a lost one is.
    may_be_settled: bool,
}

/// [`Costs`] that outlive the call.
#[derive(Clone, Debug)]
pub(super) enum OwnedCosts {
    AsHeld,
    All(Cost),
    Each(Box<[OwnedCost]>),
}

/// A [`RuleCost`] that outlives the call.
#[derive(Clone, Debug)]
pub(super) struct OwnedCost {
    rule: Box<str>,
    key: Option<OwnedKey>,
    cost: Cost,
    if_held: bool,
}

impl From<Costs<'_>> for OwnedCosts {
    fn from(costs: Costs<'_>) -> Self {
        match costs {
            Costs::AsHeld => Self::AsHeld,
            Costs::All(cost) => Self::All(cost),
            Costs::Each(each) => {
                let owned = |one: &RuleCost<'_>| OwnedCost {
                    rule: one.rule.into(),
                    key: one.key.map(OwnedKey::of),
                    cost: one.cost,
                    if_held: one.if_held,
                };
                Self::Each(each.iter().map(owned).collect())
            }
        }
    }
}

impl OwnedCosts {
    /// The costs by rule, for [`costs`](Self::costs).
    fn each(&self) -> SmallVec<[RuleCost<'_>; 2]> {
        let Self::Each(each) = self else { return SmallVec::new() };
        let borrowed = each.iter().map(|OwnedCost { rule, key, cost, if_held }| {
            let key = key.as_ref().map(OwnedKey::key);
            RuleCost { rule, key, cost: *cost, if_held: *if_held }
        });
        borrowed.collect()
    }

    fn costs<'a>(&self, each: &'a [RuleCost<'a>]) -> Costs<'a> {
        match self {
            Self::AsHeld => Costs::AsHeld,
            Self::All(cost) => Costs::All(*cost),
            Self::Each(_) => Costs::Each(each),
        }
    }
}

/// What is known about a hold; nothing by default.
#[derive(Default)]
pub(super) struct HoldContents {
    charges: Box<[HeldCharge]>,
    /// Fingerprints of its limits and keys, for callers that wait for them.
    lines: SmallVec<[u64; 1]>,
}

/// What a hold has of a limit that is charged.
struct HeldCharge {
    of: OwnedCharge,
    cost: Cost,
    expiry: Expiry,
}

impl HoldContents {
    /// What the decision that made the hold knows.
    pub(super) fn of(decision: &Decision) -> Self {
        Self { charges: Box::default(), lines: decision.lines().into() }
    }

    /// Sets the charges to those of the plan by which `hold` was made.
    pub(super) fn set_charges(
        &mut self,
        hold: HoldSpec<'_>,
        granted: Option<Cost>,
        plan: &Plan<'_>,
    ) {
        let charges = plan.charges(None);
        let held = charges
            .iter()
            .filter(|charge| hold.holds(charge.limit) && charge.limit.limit().lease().is_none());
        let held = held.map(|charge| {
            let expiry = hold.expiry_of(charge.limit);
            let cost = match hold.quantity.zip(granted) {
                Some((quantity, granted)) => quantity.cost(
                    charge.cost,
                    quantity.per_unit(charge.limit.state(), charge.key),
                    granted,
                ),
                None => charge.cost,
            };
            HeldCharge { of: OwnedCharge::of(charge), cost, expiry }
        });
        self.charges = held.collect();
    }

    /// The costs of a hold that is dropped, when no caller receives a refusal: one cost is that of
    /// each rule, whatever was held, and rules that are not held are left out.
    pub(super) fn unrefusable(&self, costs: OwnedCosts) -> OwnedCosts {
        let key_of = |held: &'_ HeldCharge| OwnedKey::of(held.of.charge(Cost::ZERO).key);
        match costs {
            OwnedCosts::All(cost) if !cost.is_zero() => {
                let is_first = |(i, held): &(usize, &HeldCharge)| {
                    let same = |other: &HeldCharge| {
                        other.of.limit().rule() == held.of.limit().rule()
                            && other.of.charge(Cost::ZERO).key == held.of.charge(Cost::ZERO).key
                    };
                    !self.charges[..*i].iter().any(same)
                };
                let rules = self.charges.iter().enumerate().filter(is_first);
                let each = rules.map(|(_, held)| OwnedCost {
                    rule: held.of.limit().rule().into(),
                    key: Some(key_of(held)),
                    cost,
                    if_held: false,
                });
                let each: Box<[_]> = each.collect();
                if each.len() > 1 { OwnedCosts::Each(each) } else { OwnedCosts::All(cost) }
            }
            OwnedCosts::Each(each) if !self.charges.is_empty() => {
                let is_held =
                    |rule: &str| self.charges.iter().any(|held| held.of.limit().rule() == rule);
                OwnedCosts::Each(each.into_iter().filter(|one| is_held(&one.rule)).collect())
            }
            costs => costs,
        }
    }

    /// Sets what is held after an extension to `totals` that was granted.
    pub(super) fn extend(&mut self, totals: &[RuleCost<'_>], decision: &Decision) {
        let granted = decision.reserved().iter().max().copied().unwrap_or_default();
        for held in &mut self.charges {
            let is_meant = |total: &&RuleCost<'_>| {
                let is_key = |key| held.of.charge(Cost::ZERO).key == key;
                total.rule == held.of.limit().rule() && total.key.is_none_or(is_key)
            };
            if let Some(total) = totals.iter().find(is_meant) {
                held.cost = held.cost.max(total.cost.min(granted));
            }
        }
    }

    pub(super) fn lines(&self) -> &[u64] {
        &self.lines
    }

    /// What is due at the actual costs if the store has lost the hold, with what was held. Nothing
    /// if that is not known.
    fn due(&self, costs: Costs<'_>) -> Result<SmallVec<[(Charge<'_>, Cost); 2]>, Refusal> {
        if self.charges.is_empty() {
            return Ok(SmallVec::new());
        }
        let parts = self.charges.iter().map(|held| HeldPart {
            limit: held.of.limit(),
            cost: held.cost,
            is_held: true,
        });
        let is_of = |i: usize, key| self.charges[i].of.charge(Cost::ZERO).key == key;
        let actual = costs.of_parts(&parts.collect::<SmallVec<[_; 2]>>(), is_of)?;
        let due = self.charges.iter().zip(actual).map(|(held, actual)| {
            let charged = if held.expiry == Expiry::Charge { held.cost } else { Cost::ZERO };
            let due = actual.unwrap_or(held.cost).saturating_sub(charged);
            (held.of.charge(due), held.cost)
        });
        Ok(due.filter(|(charge, _)| !charge.cost.is_zero()).collect())
    }
}

impl HoldSettlement {
    pub(super) fn new(id: HoldId, costs: OwnedCosts, contents: HoldContents) -> Self {
        Self { id, costs, contents, may_be_settled: false }
    }

    /// Settles without waiting; refused by an engine that has to wait.
    pub(super) fn settle_now(&self, limiter: &Limiter) -> Result<Decision, EngineError> {
        let each = self.costs.each();
        let op = Op::Settle { id: self.id, costs: self.costs.costs(&each) };
        limiter.decide_call_now(&Call { op, charges: &[], idempotency_key: None })
    }

    /// One attempt. The cost of a hold that the store has lost is recorded: the work was done.
    pub(super) async fn attempt(&mut self, limiter: &Limiter) -> Result<Decision, EngineError> {
        let Self { id, costs, contents, may_be_settled } = self;
        let each = costs.each();
        let costs = costs.costs(&each);
        let settle =
            Call { op: Op::Settle { id: *id, costs }, charges: &[], idempotency_key: None };
        let mut result = limiter.settle(settle, contents.lines()).await;
        let is_unknown = matches!(result, Err(EngineError::Refused(Refusal::UnknownHold)));
        if is_unknown && !*may_be_settled {
            let lost = contents.due(costs)?;
            if !lost.is_empty() {
                result = record_lost(limiter, &lost).await;
            }
        }
        *may_be_settled |= matches!(result, Err(EngineError::Ambiguous(_)));
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

/// Records what was held by a hold that the store has lost; each with the cost that was held.
async fn record_lost(
    limiter: &Limiter,
    lost: &[(Charge<'_>, Cost)],
) -> Result<Decision, EngineError> {
    let charges: SmallVec<[Charge<'_>; 2]> = lost.iter().map(|(charge, _)| *charge).collect();
    let record = Call { op: Op::Record, charges: &charges, idempotency_key: None };
    let mut decision = limiter.decide_call(record).await?;
    let enforced = || lost.iter().filter(|(charge, _)| !charge.limit.is_shadow());
    let details = decision.details_mut();
    details.expired = true;
    details.held = enforced().map(|(charge, _)| Arc::clone(charge.limit)).collect();
    let settled = enforced().map(|(charge, held)| SettledCost {
        reserved: *held,
        charged: charge.cost,
        uncharged: Cost::ZERO,
    });
    details.settled = settled.collect();
    Ok(decision)
}

/// Whether there was no reply. A refusal is one.
pub(super) fn needs_retry(result: &Result<Decision, EngineError>) -> bool {
    matches!(result, Err(EngineError::Unavailable(_) | EngineError::Ambiguous(_)))
}
