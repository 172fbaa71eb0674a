//! Settles, renews and extends a hold with parts in several slots.

use tidegate::{Cost, Decision, EngineError, HoldId, Refusal};
use tokio::time::Instant;

use crate::connection::timing::join_all;
use crate::cross_slot::error::{as_ambiguous, more_severe};
use crate::cross_slot::merge::allow;
use crate::executor::ScriptExecutor;
use crate::protocol::reply::ScriptDecision;
use crate::protocol::request::{LimitCharge, PartHold, ScriptOp, ScriptRequest};

/// Settles, renews or extends the hold in every slot.
pub(crate) async fn settle(
    executor: &ScriptExecutor,
    id: HoldId,
    request: &ScriptRequest,
    slots: &[Vec<usize>],
    until: Instant,
) -> Result<Decision, EngineError> {
    let merged = send_all(executor, id, request, slots, until).await?;
    Ok(merged.on_hold(&request.parts, request.op))
}

/// Extends the hold in every slot, once all of them would allow it. If one denies it meanwhile, the
/// others hold more than they have to, until the hold is settled: to take that back could take what
/// a repeated call has been granted.
pub(crate) async fn extend(
    executor: &ScriptExecutor,
    id: HoldId,
    mut request: ScriptRequest,
    slots: &[Vec<usize>],
    until: Instant,
) -> Result<Decision, EngineError> {
    request.op = ScriptOp::TryExtend;
    let tried = send_all(executor, id, &request, slots, until).await?;
    let enforced = || request.parts.iter().zip(&tried.parts).filter(|(p, _)| !p.limit.is_shadow());
    if enforced().any(|(_, reply)| !reply.verdict.allowed) {
        return Ok(tried.on_hold(&request.parts, request.op));
    }
    if let Ok(min) = request.record.parse() {
        // One quantity, which fits in every slot.
        let named = enforced().filter(|(part, _)| matches!(part.hold, PartHold::At(_)));
        let fits = named.map(|(_, reply)| reply.settled.reserved.get() + reply.verdict.remaining);
        let fits = Cost::total(fits.min().unwrap_or(min).max(min));
        let part = |part: &LimitCharge| match part.hold {
            PartHold::At(total) => {
                LimitCharge { hold: PartHold::At(total.min(fits)), ..part.clone() }
            }
            _ => part.clone(),
        };
        request.parts = request.parts.iter().map(part).collect();
    }
    request.op = ScriptOp::Extend;
    settle(executor, id, &request, slots, until).await
}

/// Sends `request` to every slot. The slot whose record names the others comes last: as long as
/// that record exists, a caller without a reply can retry.
async fn send_all(
    executor: &ScriptExecutor,
    id: HoldId,
    request: &ScriptRequest,
    slots: &[Vec<usize>],
    until: Instant,
) -> Result<ScriptDecision, EngineError> {
    let is_held = |slot: &[usize]| slot.iter().any(|index| request.parts[*index].is_held());
    let home = slots.iter().find(|slot| is_held(slot)).ok_or(Refusal::UnknownHold)?;
    let others = slots.iter().filter(|slot| *slot != home);
    let send = async |slot: &[usize]| {
        let parts: Vec<LimitCharge> =
            slot.iter().map(|index| request.parts[*index].clone()).collect();
        // A record is in the slot of the first part that is held there.
        let location = parts.iter().find(|part| part.is_held()).map(|first| first.subject.0);
        let peek = peek_of(&parts);
        let Some(location) = location else {
            let mut reply = executor.request(peek, until).await?;
            if request.op.extends() {
                // Nothing is added there.
                reply.parts.iter_mut().for_each(|part| allow(&mut part.verdict));
            }
            return Ok(reply);
        };
        let (hold, parts) = (Some(id.with_location(location)), parts.into());
        let sent = ScriptRequest { hold, parts, ..request.clone() };
        match executor.request(sent, until).await {
            // The hold has expired there, and its record is gone.
            Err(EngineError::Refused(Refusal::UnknownHold)) if slot != home => {
                if request.op.extends() {
                    return Err(Refusal::HoldExpired.into());
                }
                let reply = executor.request(peek, until).await?;
                Ok(ScriptDecision { expired: true, ..reply })
            }
            reply => reply,
        }
    };
    let replies: Vec<_> = others.clone().map(|slot| send(slot)).collect();
    let mut known = Vec::new();
    let mut failed = None;
    for reply in join_all(replies).await {
        match reply {
            Ok(reply) => known.push(reply),
            Err(error) => failed = more_severe(failed, error),
        }
    }
    if let Some(error) = failed {
        return Err(if known.is_empty() { error } else { as_ambiguous(error) });
    }
    known.push(send(home).await.map_err(as_ambiguous)?);
    let mut merged = ScriptDecision {
        expired: known.iter().any(|reply| reply.expired),
        ..ScriptDecision::default()
    };
    let slots = others.chain([home]);
    let parts = slots.zip(&known).flat_map(|(slot, reply)| slot.iter().zip(&reply.parts));
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by_key(|(index, _)| **index);
    merged.parts = parts.into_iter().map(|(_, part)| *part).collect();
    Ok(merged)
}

/// Reads parts that were charged when the hold was made, or whose hold has expired.
fn peek_of(parts: &[LimitCharge]) -> ScriptRequest {
    let free = parts.iter().map(|part| LimitCharge {
        cost: Cost::ZERO,
        hold: PartHold::None,
        ..part.clone()
    });
    ScriptRequest::new(ScriptOp::Peek, free.collect::<Vec<_>>())
}
