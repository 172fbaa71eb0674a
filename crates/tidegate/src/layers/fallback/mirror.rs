//! Charges what the store allows to the local state as well.

use std::sync::Arc;

use tidegate_core::Cost;

use super::fleet_size::FleetSize;
use crate::{Call, Charge, Decision, Engine, Memory, OnStoreFailure, Op, RuleLimit, Source};

/// Charges what the store, or a lease, has allowed to the local state, at most to the full
/// share: so the window in which the store becomes unavailable does not get a second budget.
///
/// Leaves out concurrency slots, which are released in the store, limits that come with calls,
/// and everything while much of the local memory is used: a count that may be needed is dropped
/// before one that is.
pub(super) fn mirror(local: &Memory, fleet: &FleetSize, call: &Call<'_>, decision: &Decision) {
    let is_charged = match call.op {
        Op::Check | Op::Hold(_) => decision.allowed() && !decision.repeated(),
        Op::Record => true,
        _ => false,
    };
    let by_store = !matches!(decision.source, Source::DenyCache | Source::Fallback);
    if !(is_charged && by_store && local.has_spare_room()) {
        return;
    }
    for charge in call.charges {
        if let Some(limit) = mirrored_limit(fleet, charge) {
            let cost = match call.op.quantity().zip(decision.granted()) {
                Some((quantity, granted)) => quantity.cost(
                    charge.cost,
                    quantity.per_unit(charge.limit.state(), charge.key),
                    granted,
                ),
                None => charge.cost,
            };
            charge_up_to_share(local, &Charge { limit: &limit, caller: None, cost, ..*charge });
        }
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
