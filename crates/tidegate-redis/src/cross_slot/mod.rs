//! Calls over several slots of a Cluster, which no single script can decide. Imports: connection,
//! executor, protocol, topology.
//!
//! Each slot first holds the cost, for a short time, with the hold charged when it expires. If all
//! slots allow the call, the holds are charged; if one denies it, they are dropped. A hold that is
//! never ended is charged, so a lost message never admits more than the limits allow.

pub(crate) mod abandoned_holds;
mod attempt;
mod error;
mod idempotent;
mod merge;
mod quantity;
mod settle;
mod slot_request;
mod take;

use tidegate::{Decision, EngineError, Op};

use crate::protocol::request::ScriptOp;

pub(crate) use settle::{extend, settle};
pub(crate) use slot_request::{CrossSlotCall, by_slot};

/// Decides a call over several slots.
pub(crate) async fn decide(call: &CrossSlotCall<'_>) -> Result<Decision, EngineError> {
    let is_free = call.parts.iter().all(|part| part.cost.is_zero());
    match (call.call.op, call.call.idempotency_key) {
        (op, _) if is_free && (op == Op::Check || op.is_entry()) => {
            idempotent::each(call, ScriptOp::Peek).await
        }
        (op @ (Op::Peek | Op::Record | Op::Refund | Op::Reset), _) => {
            idempotent::each(call, ScriptOp::of(op)?).await
        }
        (_, Some(id)) => idempotent::take_once(call, id).await,
        (op, None) if op.quantity().is_some() => quantity::take(call).await,
        (_, None) => take::take(call).await,
    }
}
