//! Settles and renews a hold with parts in several slots.

use tidegate::{Decision, EngineError, HoldId, Refusal};
use tokio::time::Instant;

use crate::connection::timing::join_all;
use crate::cross_slot::error::{as_ambiguous, more_severe};
use crate::executor::ScriptExecutor;
use crate::protocol::reply::ScriptDecision;
use crate::protocol::request::{LimitCharge, ScriptOp, ScriptRequest};

/// Sends `request` to every slot. The slot whose record names the others comes last: as long as
/// that record exists, a caller without a reply can retry.
pub(crate) async fn settle(
    executor: &ScriptExecutor,
    id: HoldId,
    request: &ScriptRequest,
    slots: &[Vec<usize>],
    until: Instant,
) -> Result<Decision, EngineError> {
    let (home, others) = slots.split_first().ok_or(Refusal::UnknownHold)?;
    let send = async |slot: &[usize]| {
        let parts: Vec<LimitCharge> =
            slot.iter().map(|index| request.parts[*index].clone()).collect();
        let location = parts.first().map_or(id.location(), |first| first.subject.0);
        let peek = ScriptRequest::new(ScriptOp::Peek, parts);
        let (hold, parts) = (Some(id.with_location(location)), peek.parts.clone());
        let request = ScriptRequest { hold, parts, ..request.clone() };
        match executor.request(request, until).await {
            // The hold has expired there, and its record is gone.
            Err(EngineError::Refused(Refusal::UnknownHold)) if slot != home => {
                let reply = executor.request(peek, until).await?;
                Ok(ScriptDecision { expired: true, ..reply })
            }
            reply => reply,
        }
    };
    let replies: Vec<_> = others.iter().map(|slot| send(slot)).collect();
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
    known.insert(0, send(home).await.map_err(as_ambiguous)?);
    let mut merged = ScriptDecision {
        expired: known.iter().any(|reply| reply.expired),
        ..ScriptDecision::default()
    };
    let parts = slots.iter().zip(&known).flat_map(|(slot, reply)| slot.iter().zip(&reply.parts));
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by_key(|(index, _)| **index);
    merged.parts = parts.into_iter().map(|(_, part)| *part).collect();
    Ok(merged.on_hold(&request.parts))
}
