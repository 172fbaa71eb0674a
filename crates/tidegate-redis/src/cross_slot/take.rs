//! Takes permits in several slots, without an idempotency key.

use tidegate::{Decision, EngineError, HoldId};

use crate::connection::timing::join_all;
use crate::cross_slot::abandoned_holds::{AbandonedHolds, all_ended};
use crate::cross_slot::error::{as_ambiguous, more_severe};
use crate::cross_slot::merge::MergedVerdicts;
use crate::cross_slot::slot_request::{CrossSlotCall, SlotRequest, SlotRole, not_ended, own_hold};

/// Holds in every slot, then charges or drops. The caller's holds stay.
pub(super) async fn take(call: &CrossSlotCall<'_>) -> Result<Decision, EngineError> {
    let (executor, until) = (call.executor, call.until);
    let requests = SlotRequest::all(call, call.slots, HoldId::random()?)?;
    let endings = requests.iter().map(SlotRequest::drop_hold).collect();
    let mut holds = AbandonedHolds::new(executor, call.cleanup, endings);
    let hold_until = call.hold_until();
    let replies = requests.iter().map(|slot| executor.request(slot.request.clone(), hold_until));
    let replies = join_all(replies.collect()).await;
    let mut verdicts = MergedVerdicts::new(call);
    let mut failed = None;
    for (index, (slot, reply)) in requests.iter().zip(replies).enumerate() {
        let made = match reply {
            Ok(reply) => {
                verdicts.set(slot, &reply);
                reply.hold.is_some()
            }
            Err(error) => {
                let made = matches!(error, EngineError::Ambiguous(_));
                failed = more_severe(failed, error);
                made
            }
        };
        if !made {
            holds.set(index, None);
        }
    }
    if let Some(error) = failed {
        let ended = holds.drop_all(until).await;
        return Err(if all_ended(&ended) { error } else { as_ambiguous(error) });
    }
    if !verdicts.allowed() {
        let ended = holds.drop_all(until).await;
        verdicts.set_dropped(&requests, &ended);
        // The caller may retry with this hold id, so a later drop must not end the new hold.
        return not_ended(&requests, &ended).map_or_else(|| Ok(verdicts.decision()), Err);
    }
    for (index, slot) in
        requests.iter().enumerate().filter(|(_, slot)| slot.role == SlotRole::Charge)
    {
        holds.set(index, slot.charge_hold(None));
    }
    let ended = holds.charge_all(until).await;
    verdicts.set_charged(&requests, &ended);
    let mut decision = verdicts.decision();
    decision.details_mut().hold = own_hold(&requests);
    if call.call.op.is_entry() && !verdicts.holds(&requests) {
        // A shadow limit that denies grants no concurrency slot, so there is nothing to leave.
        decision.details_mut().hold = None;
        holds.drop_all(until).await;
    }
    holds.keep_remaining();
    Ok(decision)
}
