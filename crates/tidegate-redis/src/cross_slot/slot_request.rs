//! A call over several slots, and what is sent to each slot in one step.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Call, Cost, EngineError, Expiry, HoldId, HoldSpec, Micros, Op};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::cross_slot::abandoned_holds::{EndingReply, no_reply};
use crate::executor::ScriptExecutor;
use crate::protocol::hold_record::record_of;
use crate::protocol::keys::{HashSecret, SubjectHash};
use crate::protocol::request::{
    IdempotencyRecord, LimitCharge, PartHold, ScriptOp, ScriptRequest, check_ttl,
};
use crate::topology::hash_slot::HashSlot;

/// How much longer than the call its temporary holds last: they should not expire before the call
/// charges them, even if that is slow.
const HOLD_MARGIN: Duration = Duration::from_secs(1);

/// A call whose parts are in several slots.
pub(crate) struct CrossSlotCall<'a> {
    pub(crate) executor: &'a ScriptExecutor,
    /// Limits the tasks that end abandoned holds.
    pub(crate) cleanup: &'a Arc<Semaphore>,
    pub(crate) secret: &'a HashSecret,
    /// The indexes of the parts, grouped by slot; that of the first part that is held comes first.
    pub(crate) slots: &'a [Vec<usize>],
    pub(crate) call: Call<'a>,
    pub(crate) parts: Vec<LimitCharge>,
    /// The part of each charge of the call.
    pub(crate) indexes: Vec<usize>,
    /// What the call is granted of its quantity; the costs of the parts are those of this.
    pub(crate) granted: Option<Cost>,
    pub(crate) until: Instant,
}

impl CrossSlotCall<'_> {
    /// The record of an id in the first slot, which is its home.
    pub(super) fn record(&self, id: tidegate::IdempotencyKey<'_>) -> IdempotencyRecord {
        let home = self.parts.iter().find(|part| part.is_held()).unwrap_or(&self.parts[0]);
        let subject = home.subject;
        IdempotencyRecord::new(&self.call, subject, self.secret, id)
    }

    /// The deadline for holding. If a slot does not reply by then, a fifth of the time is left to
    /// drop the holds of the others, and to report that nothing was charged.
    pub(super) fn hold_until(&self) -> Instant {
        self.until - self.until.saturating_duration_since(Instant::now()) / 5
    }
}

/// What is sent to one slot in one step.
pub(super) struct SlotRequest {
    /// The indexes of its parts in the call.
    pub(super) indexes: Vec<usize>,
    pub(super) request: ScriptRequest,
    pub(super) role: SlotRole,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotRole {
    /// Takes nothing.
    Look,
    /// Makes a temporary hold, which is charged once all slots have allowed the call.
    Charge,
    /// Makes the caller's hold.
    Hold,
}

/// The indexes of these parts, grouped by slot; that of the first part that is held comes first.
pub(crate) fn by_slot(parts: &[LimitCharge]) -> Vec<Vec<usize>> {
    let mut slots: Vec<(HashSlot, Vec<usize>)> = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let slot = HashSlot::of(&part.state);
        match slots.iter_mut().find(|(other, _)| *other == slot) {
            Some((_, indexes)) => indexes.push(index),
            None => slots.push((slot, vec![index])),
        }
    }
    let is_held = |(_, indexes): &(HashSlot, Vec<usize>)| {
        let held = parts.iter().position(LimitCharge::is_held);
        held.is_some_and(|first| indexes.contains(&first))
    };
    slots.sort_by_key(|slot| !is_held(slot));
    slots.into_iter().map(|(_, indexes)| indexes).collect()
}

impl SlotRequest {
    pub(super) fn new(
        call: &CrossSlotCall<'_>,
        indexes: Vec<usize>,
        op: ScriptOp,
        role: SlotRole,
    ) -> Self {
        let parts: Vec<LimitCharge> =
            indexes.iter().map(|index| call.parts[*index].clone()).collect();
        Self { indexes, request: ScriptRequest::new(op, parts), role }
    }

    /// The subject of its first part.
    pub(super) fn subject(&self) -> SubjectHash {
        self.request.parts[0].subject
    }

    /// The requests that take the parts of these slots. Temporary holds get the id `id`.
    pub(super) fn all(
        call: &CrossSlotCall<'_>,
        slots: &[Vec<usize>],
        id: HoldId,
    ) -> Result<Vec<Self>, EngineError> {
        let CrossSlotCall { call: Call { op, .. }, parts, .. } = call;
        let all_held: Vec<usize> = (0..parts.len()).filter(|i| parts[*i].is_held()).collect();
        let left = call.until.saturating_duration_since(Instant::now());
        let short = Micros::from(left.saturating_add(HOLD_MARGIN)).min(HoldId::MAX_TTL);
        let mut requests = Vec::new();
        for slot in slots {
            let (held, rest): (Vec<usize>, Vec<usize>) =
                slot.iter().partition(|index| parts[**index].is_held());
            let (free, charged): (Vec<usize>, Vec<usize>) =
                rest.into_iter().partition(|index| parts[*index].cost.is_zero());
            if !free.is_empty() {
                requests.push(Self::new(call, free, ScriptOp::Peek, SlotRole::Look));
            }
            if !charged.is_empty() {
                let slot = Self::new(call, charged, ScriptOp::Visit, SlotRole::Charge);
                // Random, so that this call does not drop the hold of another one.
                let record = HoldId::random()?.to_string();
                requests.push(slot.with_temporary_hold(id, short, record));
            }
            if let (Op::Hold(hold), Some(first)) = (*op, held.first()) {
                check_ttl(hold.ttl, all_held.iter().map(|index| &parts[*index]))?;
                // Every slot can be settled by its own record; the first one names all parts.
                let record = if all_held.first() == Some(first) {
                    record_of(*op, parts.iter().filter(|part| op.records(&part.limit)))
                } else {
                    record_of(*op, held.iter().map(|index| &parts[*index]))
                };
                let slot = Self::new(call, held, ScriptOp::of(*op)?, SlotRole::Hold);
                requests.push(slot.with_hold(hold.id, hold.ttl, record).granting(call.granted));
            }
        }
        Ok(requests)
    }

    /// The request that makes a hold in its home slot and charges the other parts there, in one
    /// step.
    pub(super) fn home(
        call: &CrossSlotCall<'_>,
        slot: Vec<usize>,
        hold: HoldSpec<'_>,
    ) -> Result<Self, EngineError> {
        let CrossSlotCall { call: Call { op, .. }, parts, .. } = call;
        check_ttl(hold.ttl, parts.iter().filter(|part| part.is_held()))?;
        let record = record_of(*op, parts.iter().filter(|part| op.records(&part.limit)));
        let home = Self::new(call, slot, ScriptOp::of(*op)?, SlotRole::Hold);
        Ok(home.with_hold(hold.id, hold.ttl, record).granting(call.granted))
    }

    /// Makes a hold that is charged when it expires, of parts that will be charged.
    fn with_temporary_hold(mut self, id: HoldId, ttl: Micros, record: String) -> Self {
        let parts = self.request.parts.iter().cloned();
        let held = parts.map(|part| LimitCharge { hold: PartHold::Made(Expiry::Charge), ..part });
        self.request.parts = held.collect();
        self.with_hold(id, ttl, record)
    }

    /// Makes a hold; its record is in the slot of its first part that is held.
    fn with_hold(mut self, id: HoldId, ttl: Micros, record: String) -> Self {
        let held = self.request.parts.iter().find(|part| part.is_held());
        let hold = held.map(|first| id.with_location(first.subject.0));
        self.request = ScriptRequest { hold, ttl, record, ..self.request };
        self
    }

    /// Stores what the call is granted of its quantity with the hold.
    fn granting(mut self, granted: Option<Cost>) -> Self {
        self.request.quantity = granted.map(|granted| (granted, granted));
        self
    }

    pub(super) fn drop_hold(&self) -> Option<ScriptRequest> {
        self.request.drop_hold()
    }

    /// Charges its hold; with the record of an id at most once.
    pub(super) fn charge_hold(&self, once: Option<IdempotencyRecord>) -> Option<ScriptRequest> {
        let parts = self.request.held_parts();
        let settle = ScriptRequest::ending(ScriptOp::Settle, self.request.hold?, parts);
        Some(ScriptRequest { once, ..settle })
    }
}

/// The caller's hold: its record is in the slot of the first part that is held.
pub(super) fn own_hold(requests: &[SlotRequest]) -> Option<HoldId> {
    let own = requests.iter().filter(|request| request.role == SlotRole::Hold);
    own.min_by_key(|request| request.indexes.first().copied())?.request.hold
}

/// Why one of the caller's holds may still exist; None if all have ended.
pub(super) fn not_ended(requests: &[SlotRequest], ended: &[EndingReply]) -> Option<EngineError> {
    let own = requests.iter().zip(ended).filter(|(request, _)| request.role == SlotRole::Hold);
    own.filter_map(|(_, ended)| no_reply(ended)).next()
}
