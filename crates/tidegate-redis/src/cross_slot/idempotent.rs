//! Calls over several slots with an idempotency key, and calls of which each slot executes its part
//! independently.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Decision, EngineError, IdempotencyKey, Op, Verdict};
use tokio::time::{Instant, sleep};

use crate::connection::error::StaticError;
use crate::connection::timing::join_all;
use crate::cross_slot::attempt::Attempt;
use crate::cross_slot::error::{as_ambiguous, more_severe};
use crate::cross_slot::merge::{MergedVerdicts, allow};
use crate::cross_slot::quantity::DeniedQuantities;
use crate::cross_slot::slot_request::{CrossSlotCall, SlotRequest, SlotRole};
use crate::protocol::reply::ScriptDecision;
use crate::protocol::request::{IdempotencyRecord, ScriptOp};

/// How long an attempt waits for another one with the same id before it looks again.
const PAUSE: Duration = Duration::from_millis(2);

/// What Redis has stored for an id.
enum IdState<'a> {
    /// The decision of an earlier call.
    Decided(Box<Decision>),
    /// Nothing; these are the current verdicts.
    Unused(MergedVerdicts<'a>),
}

/// Every slot executes its part, concurrently. With an id the first slot comes first: it knows
/// whether the id was used for another request.
pub(super) async fn each(call: &CrossSlotCall<'_>, op: ScriptOp) -> Result<Decision, EngineError> {
    let once = call.call.idempotency_key.map(|id| call.record(id));
    let request = |slot: &Vec<usize>| {
        let mut request = SlotRequest::new(call, slot.clone(), op, SlotRole::Look);
        let once = once.as_ref().map(|once| once.at(request.subject(), call.secret));
        request.request.once = once;
        request
    };
    let requests: Vec<SlotRequest> = call.slots.iter().map(request).collect();
    let (first, rest) = requests.split_at(if once.is_some() { 1 } else { requests.len() });
    let mut replies = send_all(call, first).await;
    if replies.iter().all(Result::is_ok) {
        replies.extend(send_all(call, rest).await);
    }
    let executed = op != ScriptOp::Peek && replies.iter().any(Result::is_ok);
    let failed = replies.iter().filter_map(|reply| reply.as_ref().err()).cloned();
    match failed.fold(None, more_severe) {
        Some(error) if executed => Err(as_ambiguous(error)),
        Some(error) => Err(error),
        None => Ok(merge(call, &requests, &replies.into_iter().flatten().collect::<Vec<_>>())),
    }
}

async fn send_all(
    call: &CrossSlotCall<'_>,
    requests: &[SlotRequest],
) -> Vec<Result<ScriptDecision, EngineError>> {
    let replies =
        requests.iter().map(|slot| call.executor.request(slot.request.clone(), call.until));
    join_all(replies.collect()).await
}

/// Takes at most once with `id`.
pub(super) async fn take_once(
    call: &CrossSlotCall<'_>,
    id: IdempotencyKey<'_>,
) -> Result<Decision, EngineError> {
    let once = call.record(id);
    let mut denied_before = DeniedQuantities::default();
    loop {
        let verdicts = match look_up(call, &once).await? {
            IdState::Decided(decision) => return Ok(*decision),
            IdState::Unused(verdicts) => verdicts,
        };
        if !verdicts.allowed() {
            return Ok(verdicts.decision());
        }
        let fitted = denied_before.fitted(call, &verdicts);
        let attempted = fitted.as_ref().unwrap_or(call);
        match Attempt::new(attempted, &once, verdicts.at(attempted))?.run().await? {
            Some(decision) if decision.allowed() => return Ok(decision),
            // Possibly because of the holds of another attempt with this id.
            Some(denied) => {
                let state = look_up(call, &once).await;
                match state {
                    Ok(IdState::Decided(decision)) => return Ok(*decision),
                    Ok(IdState::Unused(_)) if denied_before.retry(attempted) => {}
                    _ => return Ok(denied),
                }
            }
            None if Instant::now() + PAUSE < call.until => sleep(PAUSE).await,
            None => {
                let text = "another request with this id is in progress or was interrupted; \
                            retry with the same id";
                return Err(EngineError::Ambiguous(Arc::new(StaticError(text))));
            }
        }
    }
}

async fn look_up<'a>(
    call: &'a CrossSlotCall<'a>,
    once: &IdempotencyRecord,
) -> Result<IdState<'a>, EngineError> {
    let holds = matches!(call.call.op, Op::Hold(_));
    let request = |(nth, slot): (usize, &Vec<usize>)| {
        // The result of a reservation is stored in the home slot only.
        let is_stored = nth == 0 || !holds;
        let mut request = SlotRequest::new(call, slot.clone(), ScriptOp::Peek, SlotRole::Look);
        let once = is_stored.then(|| once.at(request.subject(), call.secret));
        request.request.once = once;
        request
    };
    let requests: Vec<SlotRequest> = call.slots.iter().enumerate().map(request).collect();
    let replies = send_all(call, &requests).await;
    let replies = replies.into_iter().collect::<Result<Vec<_>, _>>()?;
    if replies[0].repeated {
        // The other slots held and confirmed their parts before.
        call.executor.confirm_result(once, call.until).await?;
        let mut decision = merge(call, &requests, &replies);
        decision.details_mut().hold =
            replies[0].hold.filter(|_| holds).map(|id| id.with_location(once.subject.0));
        decision.details_mut().granted = replies[0].granted;
        return Ok(IdState::Decided(Box::new(decision)));
    }
    let mut verdicts = MergedVerdicts::new(call);
    for (slot, reply) in requests.iter().zip(&replies) {
        if reply.repeated {
            // Charged here, and expired at home: it is not charged here again.
            let mut stored = reply.verdicts();
            stored.iter_mut().for_each(allow);
            verdicts.set_stored(slot, &stored);
        } else {
            verdicts.set(slot, reply);
        }
    }
    Ok(IdState::Unused(verdicts))
}

/// One decision out of the replies of all slots. If the first reply repeats the stored result of an
/// id, it is that decision.
fn merge(
    call: &CrossSlotCall<'_>,
    requests: &[SlotRequest],
    replies: &[ScriptDecision],
) -> Decision {
    let mut verdicts = MergedVerdicts::new(call);
    let mut in_order: Vec<Verdict> = Vec::new();
    let mut head = replies[0].without_verdicts();
    let mut same_limits = true;
    for (slot, reply) in requests.iter().zip(replies) {
        head.details_mut().refunded = head.refunded().max(reply.refunded);
        if reply.repeated {
            let stored = reply.verdicts();
            same_limits &= verdicts.set_stored(slot, &stored);
            in_order.extend(stored);
        } else {
            verdicts.set(slot, reply);
            in_order.extend(verdicts.enforced(slot));
            // A `record` that one slot charges only now is not a repetition.
            head.details_mut().repeated &=
                matches!(call.call.op, Op::Check | Op::Peek | Op::Hold(_));
        }
    }
    if head.repeated() && !matches!(call.call.op, Op::Record | Op::Refund | Op::Reset) {
        verdicts.allow_all();
        in_order.iter_mut().for_each(allow);
    }
    let mut decision = verdicts.decision();
    if head.repeated() {
        decision.details_mut().shadow.clear();
    }
    if !same_limits {
        // The rules have got other limits meanwhile.
        decision.verdicts = in_order.into_iter().collect();
    }
    decision.details_mut().refunded = head.refunded();
    decision.details_mut().repeated = head.repeated();
    decision
}
