//! Holds of a quantity in several slots, without an idempotency key.
//!
//! What is left is read in every slot, and the largest quantity that fits in all of them is taken
//! at fixed costs. Other calls may take some in between: then less is tried, at last the minimum.
//! So one quantity is granted, which fits in every slot, but it may be less than what would have
//! fitted at one instant.

use tidegate::{Cost, Decision, EngineError, UnitCost};

use crate::connection::timing::join_all;
use crate::cross_slot::merge::MergedVerdicts;
use crate::cross_slot::slot_request::{CrossSlotCall, SlotRequest, SlotRole};
use crate::cross_slot::take;
use crate::protocol::request::{LimitCharge, ScriptOp};

/// The largest quantity of an attempt, by those of the attempts before that were denied.
#[derive(Default)]
pub(super) struct DeniedQuantities(Vec<Cost>);

impl DeniedQuantities {
    /// After so many denied attempts the minimum is tried.
    const MAX_ATTEMPTS: usize = 2;

    /// The call at the costs of the largest quantity that fits what these verdicts have left. None
    /// if it names no quantity.
    pub(super) fn fitted<'a>(
        &self,
        call: &CrossSlotCall<'a>,
        verdicts: &MergedVerdicts<'_>,
    ) -> Option<CrossSlotCall<'a>> {
        let quantity = call.call.op.quantity()?;
        let below = match self.0.last() {
            None => quantity.want,
            Some(_) if self.0.len() >= Self::MAX_ATTEMPTS => quantity.min,
            Some(denied) => denied.saturating_sub(Cost::ONE).max(quantity.min),
        };
        let left = verdicts
            .enforced_parts()
            .map(|(part, verdict)| (part.cost, part.per_unit, verdict.remaining));
        let granted = quantity.fitting(left).min(below);
        let part = |part: &LimitCharge| LimitCharge {
            cost: quantity.cost(part.cost, part.per_unit, granted),
            // The costs are fixed from here on.
            per_unit: UnitCost::ZERO,
            ..part.clone()
        };
        let (parts, indexes) = (call.parts.iter().map(part).collect(), call.indexes.clone());
        Some(CrossSlotCall { parts, indexes, granted: Some(granted), ..*call })
    }

    /// Whether a smaller quantity than the one that was denied can be tried.
    pub(super) fn retry(&mut self, denied: &CrossSlotCall<'_>) -> bool {
        let min = denied.call.op.quantity().map(|quantity| quantity.min);
        match denied.granted {
            Some(granted) if Some(granted) > min => {
                self.0.push(granted);
                true
            }
            _ => false,
        }
    }
}

/// Takes the largest quantity that fits.
pub(super) async fn take(call: &CrossSlotCall<'_>) -> Result<Decision, EngineError> {
    let mut denied = DeniedQuantities::default();
    loop {
        let verdicts = look(call).await?;
        let Some(fitted) = denied.fitted(call, &verdicts).filter(|_| verdicts.allowed()) else {
            return Ok(verdicts.decision());
        };
        let decision = take::take(&fitted).await?;
        if decision.allowed() || !denied.retry(&fitted) {
            return Ok(decision);
        }
    }
}

/// The verdicts of all slots on the minimum.
async fn look<'a>(call: &'a CrossSlotCall<'a>) -> Result<MergedVerdicts<'a>, EngineError> {
    let slots = call.slots.iter();
    let look =
        |slot: &Vec<usize>| SlotRequest::new(call, slot.clone(), ScriptOp::Peek, SlotRole::Look);
    let requests: Vec<SlotRequest> = slots.map(look).collect();
    let replies = requests.iter().map(|one| call.executor.request(one.request.clone(), call.until));
    let mut verdicts = MergedVerdicts::new(call);
    for (slot, reply) in requests.iter().zip(join_all(replies.collect()).await) {
        verdicts.set(slot, &reply?);
    }
    Ok(verdicts)
}
