//! Merges the replies of several slots into one decision.

use tidegate::{Decision, Source, Verdict, Wait};

use crate::cross_slot::abandoned_holds::EndingReply;
use crate::cross_slot::slot_request::{CrossSlotCall, SlotRequest, SlotRole};
use crate::protocol::reply::{PartReply, ScriptDecision};
use crate::protocol::request::LimitCharge;

/// The verdicts of all parts of a call.
pub(super) struct MergedVerdicts<'a> {
    call: &'a CrossSlotCall<'a>,
    verdicts: Vec<Option<Verdict>>,
}

impl<'a> MergedVerdicts<'a> {
    pub(super) fn new(call: &'a CrossSlotCall<'a>) -> Self {
        Self { call, verdicts: vec![None; call.parts.len()] }
    }

    /// The same verdicts of the call at other costs.
    pub(super) fn at<'b>(self, call: &'b CrossSlotCall<'b>) -> MergedVerdicts<'b> {
        MergedVerdicts { call, verdicts: self.verdicts }
    }

    /// Sets the verdicts of one slot.
    pub(super) fn set(&mut self, slot: &SlotRequest, reply: &ScriptDecision) {
        for (index, part) in slot.indexes.iter().zip(&reply.parts) {
            self.verdicts[*index] = Some(part.verdict);
        }
    }

    /// The enforced parts with their verdicts.
    pub(super) fn enforced_parts(&self) -> impl Iterator<Item = (&LimitCharge, &Verdict)> {
        let parts = self.call.parts.iter().zip(&self.verdicts);
        let enforced = parts.filter(|(part, _)| !part.limit.is_shadow());
        enforced.filter_map(|(part, verdict)| Some((part, verdict.as_ref()?)))
    }

    /// Whether all enforced limits allow the call.
    pub(super) fn allowed(&self) -> bool {
        self.enforced_parts().all(|(_, verdict)| verdict.allowed)
    }

    /// Whether any of the caller's holds was made.
    pub(super) fn holds(&self, slots: &[SlotRequest]) -> bool {
        let own = slots.iter().filter(|slot| slot.role == SlotRole::Hold);
        let mut indexes = own.flat_map(|slot| &slot.indexes);
        indexes.any(|index| self.verdicts[*index].is_some_and(|verdict| verdict.allowed))
    }

    /// Updates the verdicts after the holds were dropped.
    pub(super) fn set_dropped(&mut self, slots: &[SlotRequest], ended: &[EndingReply]) {
        for (slot, ended) in slots.iter().zip(ended) {
            let reply = ended.as_ref().and_then(|reply| reply.as_ref().ok());
            let reply = |nth: usize| reply.and_then(|reply| reply.parts.get(nth));
            for (nth, index) in slot.indexes.iter().enumerate() {
                let cost = self.call.parts[*index].cost.get();
                let Some(verdict) = self.verdicts[*index].as_mut() else { continue };
                match reply(nth) {
                    Some(now) => set_state(verdict, now),
                    // It will be dropped later.
                    None if ended.is_some() && verdict.allowed => verdict.remaining += cost,
                    None => {}
                }
            }
        }
    }

    /// Updates the verdicts after the holds were charged.
    pub(super) fn set_charged(&mut self, slots: &[SlotRequest], ended: &[EndingReply]) {
        for (slot, ended) in slots.iter().zip(ended) {
            let Some(reply) = ended else { continue };
            for (nth, index) in slot.indexes.iter().enumerate() {
                let Some(verdict) = self.verdicts[*index].as_mut().filter(|v| v.allowed) else {
                    continue;
                };
                let mut delay = None;
                if let Ok(reply) = reply
                    && let Some(now) = reply.parts.get(nth)
                {
                    set_state(verdict, now);
                    delay = Some(now.verdict.delay).filter(|_| !reply.expired);
                }
                // A hold that is charged when it expires is behind everything queued now.
                let is_queue = self.call.parts[*index].limit.limit().is_queue();
                verdict.delay = match delay {
                    Some(delay) => delay,
                    None if is_queue => verdict.reset_after,
                    None => verdict.delay,
                };
            }
        }
    }

    /// Sets the stored verdicts of the enforced limits of one slot. False if the rule has got other
    /// limits since they were stored.
    pub(super) fn set_stored(&mut self, slot: &SlotRequest, stored: &[Verdict]) -> bool {
        let enforced = |index: &&usize| !self.call.parts[**index].limit.is_shadow();
        let indexes: Vec<usize> = slot.indexes.iter().filter(enforced).copied().collect();
        if indexes.len() != stored.len() {
            return false;
        }
        for (index, verdict) in indexes.into_iter().zip(stored) {
            self.verdicts[index] = Some(*verdict);
        }
        true
    }

    /// The verdicts of the enforced limits of one slot.
    pub(super) fn enforced(&self, slot: &SlotRequest) -> Vec<Verdict> {
        let enforced = |index: &&usize| !self.call.parts[**index].limit.is_shadow();
        slot.indexes.iter().filter(enforced).filter_map(|index| self.verdicts[*index]).collect()
    }

    pub(super) fn allow_all(&mut self) {
        self.verdicts.iter_mut().flatten().for_each(allow);
    }

    pub(super) fn decision(&self) -> Decision {
        let mut decision = Decision::new(Source::Redis, Default::default());
        for (charge, index) in self.call.call.charges.iter().zip(&self.call.indexes) {
            if let Some(verdict) = self.verdicts[*index] {
                decision.push(charge.limit, verdict);
            }
        }
        if let Some(granted) = self.call.granted.filter(|_| decision.allowed()) {
            decision.details_mut().granted = Some(granted);
        }
        decision
    }
}

/// Updates what a verdict reports about the state.
fn set_state(verdict: &mut Verdict, now: &PartReply) {
    let Verdict { remaining, reset_after, .. } = now.verdict;
    (verdict.remaining, verdict.reset_after) = (remaining, reset_after);
}

/// A charged call was allowed, even if it would be denied now.
pub(super) fn allow(verdict: &mut Verdict) {
    (verdict.allowed, verdict.retry_after) = (true, Wait::NONE);
}
