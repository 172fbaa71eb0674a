//! Charges what the store allows to the local state as well.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use tidegate_core::Cost;

use super::fleet_size::FleetSize;
use crate::engine::OwnedCharge;
use crate::{
    Call, Charge, Decision, Engine, HoldId, HoldKind, Memory, OnStoreFailure, Op, RuleLimit, Source,
};

/// Charges what the store, or a lease, has allowed to the local state, at most to the full
/// share: so the window in which the store becomes unavailable does not get a second budget.
///
/// Leaves out concurrency slots, which are released in the store, limits that come with calls,
/// and everything while much of the local memory is used: a count that may be needed is dropped
/// before one that is.
pub(super) fn mirror(
    local: &Memory,
    fleet: &FleetSize,
    reservations: &MirroredReservations,
    call: &Call<'_>,
    decision: &Decision,
) {
    let by_store = !matches!(decision.source, Source::DenyCache | Source::Fallback);
    if !(by_store && local.has_spare_room()) {
        return;
    }
    let charge = |charge: &Charge<'_>| {
        if let Some(limit) = mirrored_limit(fleet, charge) {
            charge_up_to_share(local, &Charge { limit: &limit, caller: None, ..*charge });
        }
    };
    match call.op {
        Op::Check | Op::Hold(_) if decision.allowed() && !decision.repeated() => {
            let charged: SmallVec<[Charge<'_>; 2]> =
                call.charges.iter().map(|one| granted(call, one, decision)).collect();
            charged.iter().for_each(charge);
            reservations.remember(call, &charged, decision);
        }
        Op::Record => call.charges.iter().for_each(charge),
        Op::Extend { id, .. } => {
            reservations.raise(id, decision, decision.reserved().iter().copied(), charge);
        }
        Op::Settle { id, .. } => {
            let costs = decision.settled().iter().map(|settled| settled.charged);
            reservations.raise(id, decision, costs, charge);
            reservations.forget(id);
        }
        _ => {}
    }
}

/// The charge at the cost that was granted.
fn granted<'a>(call: &Call<'_>, charge: &Charge<'a>, decision: &Decision) -> Charge<'a> {
    let Some((quantity, granted)) = call.op.quantity().zip(decision.granted()) else {
        return *charge;
    };
    let per_unit = quantity.per_unit(charge.limit.state(), charge.key);
    Charge { cost: quantity.cost(charge.cost, per_unit, granted), ..*charge }
}

/// What was charged here for reservations of the store. What the store allows them later, by an
/// extension or by a commit above what is reserved, is charged here as well.
#[derive(Default)]
pub(super) struct MirroredReservations(Mutex<Reservations>);

#[derive(Default)]
struct Reservations {
    by_id: HashMap<HoldId, Vec<MirroredCharge>>,
    /// Oldest first; settled ones may be among them.
    order: VecDeque<HoldId>,
}

struct MirroredCharge {
    charge: OwnedCharge,
    cost: Cost,
}

impl MirroredReservations {
    /// The most recent ones; about 300 bytes each.
    const MAX_RESERVATIONS: usize = 4_096;

    /// Remembers a reservation that the store has granted.
    fn remember(&self, call: &Call<'_>, charges: &[Charge<'_>], decision: &Decision) {
        let Op::Hold(spec) = call.op else { return };
        let is_reservation = matches!(spec.kind, HoldKind::Reservation | HoldKind::Named { .. });
        let Some(id) = decision.hold().filter(|_| is_reservation) else { return };
        let enforced = charges.iter().filter(|charge| !charge.limit.is_shadow());
        let mirrored = |charge: &Charge<'_>| MirroredCharge {
            charge: OwnedCharge::of(charge),
            cost: charge.cost,
        };
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.order.len() == Self::MAX_RESERVATIONS
            && let Some(oldest) = held.order.pop_front()
        {
            held.by_id.remove(&oldest);
        }
        held.order.push_back(id);
        held.by_id.insert(id, enforced.map(mirrored).collect());
    }

    /// Charges by how much the costs of its limits now exceed what was charged here for it.
    fn raise(
        &self,
        id: HoldId,
        decision: &Decision,
        costs: impl Iterator<Item = Cost>,
        charge: impl Fn(&Charge<'_>),
    ) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(charges) = held.by_id.get_mut(&id) else { return };
        // Both are in the order of the reservation's charges.
        let mut charges = charges.iter_mut();
        for (limit, cost) in decision.held().iter().zip(costs) {
            let Some(of) = charges.find(|of| of.charge.limit().state() == limit.state()) else {
                return;
            };
            let more = cost.get().saturating_sub(of.cost.get());
            if more > 0 {
                charge(&of.charge.charge(Cost::total(more)));
                of.cost = cost;
            }
        }
    }

    fn forget(&self, id: HoldId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).by_id.remove(&id);
    }
}

fn mirrored_limit(fleet: &FleetSize, charge: &Charge<'_>) -> Option<Arc<RuleLimit>> {
    let limit = charge.limit;
    let is_counted = !charge.cost.is_zero()
        && !limit.is_shadow()
        && !limit.is_adhoc()
        && limit.limit().lease().is_none();
    match limit.on_store_failure() {
        OnStoreFailure::Fallback(max) if is_counted => Some(limit.local(fleet.share(max))),
        _ => None,
    }
}

/// Charges the cost, or what is left of the share.
fn charge_up_to_share(local: &Memory, charge: &Charge<'_>) {
    let check = |cost: Cost| {
        let charges = [Charge { cost, ..*charge }];
        local.decide_now(&Call { op: Op::Check, charges: &charges, idempotency_key: None })
    };
    // An error means that there is no room.
    let Ok(decision) = check(charge.cost) else { return };
    let left = decision.verdict().remaining;
    if !decision.allowed() && left > 0 {
        let _ = check(Cost::total(left));
    }
}
