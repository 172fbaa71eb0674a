//! Calls: an operation and the charges that it applies to.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Expiry, Micros};

use super::bounds;
use super::costs::{Costs, Extension, HeldPart, RuleCost};
use super::error::{EngineError, Refusal};
use super::ids::{HoldId, IdempotencyKey};
use super::quantity::Quantity;
use super::rule_limit::{OnReserve, RuleLimit};
use crate::Key;

/// What a call does with its charges.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Op<'a> {
    /// Charge all if every limit allows it, else none.
    Check,
    /// Read without writing. The verdict of a charge with a cost is that of a check of this cost.
    /// With an id that was charged before, it is the verdict of that check.
    Peek,
    /// Charge unconditionally: the consumption has already happened.
    Record,
    /// Give back permits, at most the present consumption.
    Refund,
    /// Clear consumption and holds.
    Reset,
    /// Hold permits, if every limit allows it.
    Hold(HoldSpec<'a>),
    /// End a hold and charge its limits. The call has no charges; the engine knows what was held.
    Settle {
        /// The hold.
        id: HoldId,
        /// The actual costs.
        costs: Costs<'a>,
    },
    /// Let a hold last `ttl` from now. The call has no charges.
    Renew {
        /// The hold.
        id: HoldId,
        /// The new duration, from now.
        ttl: Micros,
    },
    /// Hold more permits under an active hold, if every limit allows it. The call has no charges.
    /// A denial changes nothing, and neither does a repeated call. An expired hold is refused:
    /// [`Refusal::HoldExpired`].
    Extend {
        /// The hold.
        id: HoldId,
        /// What to hold.
        to: Extension<'a>,
    },
}

/// A hold to be made: its id, how long it lasts, and what it is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HoldSpec<'a> {
    /// The id to settle the hold by.
    pub id: HoldId,
    /// How long the hold lasts without renewal.
    pub ttl: Micros,
    /// What happens to the costs when the hold expires: [`Expiry::Release`] leaves it to each
    /// limit, see [`expiry_of`](Self::expiry_of).
    pub expiry: Expiry,
    /// Which limits it holds, and whether its result is stored.
    pub kind: HoldKind,
    /// Grants as much of a quantity as fits. `None`: the costs of the charges, or nothing.
    pub quantity: Option<&'a Quantity<'a>>,
}

/// What a hold is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HoldKind {
    /// Holds permits of every limit, except of those that are charged when a reservation is made:
    /// [`OnReserve::Charge`]. Settling it returns the verdicts of these, too. Its result is stored:
    /// settling it again returns the same.
    Reservation,
    /// As a reservation, for about every request. So its result is not stored, and it takes no
    /// idempotency key.
    Request,
    /// As [`Request`](Self::Request), but holds slots of `concurrency` limits only, and charges the
    /// other limits, as [`Op::Check`] does. Settling or renewing it returns no verdicts of the
    /// others. Without a `concurrency` limit it is a check, and no hold is made.
    Entry,
    /// As [`Request`](Self::Request), under an id that the caller derives from names it knows, and
    /// finds again with [`Engine::locate_hold`](crate::Engine::locate_hold). If such a hold exists,
    /// the call is refused with [`Refusal::IdReused`].
    Named {
        /// Random, so that a call which is given up drops its own hold only, and not that of
        /// another call with this id.
        attempt: u64,
    },
    /// Holds permits of every limit, for a process that spends them by itself. Its result is not
    /// stored.
    Loan,
}

impl HoldSpec<'_> {
    /// Whether it is for a process that spends the permits by itself: [`Op::loan`].
    pub fn is_loan(&self) -> bool {
        self.kind == HoldKind::Loan
    }

    /// Whether permits of `limit` are held, and not charged.
    pub fn holds(&self, limit: &RuleLimit) -> bool {
        let is_slot = limit.limit().lease().is_some();
        match self.kind {
            HoldKind::Reservation | HoldKind::Request | HoldKind::Named { .. } => {
                is_slot || limit.on_reserve() == OnReserve::Hold
            }
            HoldKind::Entry => is_slot,
            HoldKind::Loan => true,
        }
    }

    /// What happens to the permits of `limit` when the hold expires. Slots are released.
    pub fn expiry_of(&self, limit: &RuleLimit) -> Expiry {
        match self.expiry {
            _ if limit.limit().lease().is_some() => Expiry::Release,
            Expiry::Charge => Expiry::Charge,
            Expiry::Release => limit.on_expiry(),
        }
    }
}

impl Op<'_> {
    /// Holds the costs until `ttl` has passed.
    pub fn hold(id: HoldId, ttl: Micros, expiry: Expiry) -> Self {
        Self::Hold(HoldSpec { id, ttl, expiry, kind: HoldKind::Reservation, quantity: None })
    }

    /// Holds the costs for the length of one request, until `ttl` has passed.
    pub fn hold_for_request(id: HoldId, ttl: Micros) -> Self {
        Self::Hold(HoldSpec {
            id,
            ttl,
            expiry: Expiry::Release,
            kind: HoldKind::Request,
            quantity: None,
        })
    }

    /// Holds the costs for a process that spends them by itself; charged when `ttl` has passed.
    pub fn loan(id: HoldId, ttl: Micros) -> Self {
        Self::Hold(HoldSpec {
            id,
            ttl,
            expiry: Expiry::Charge,
            kind: HoldKind::Loan,
            quantity: None,
        })
    }

    /// Takes a slot of each `concurrency` limit until `ttl` has passed, and charges the others.
    pub fn enter(id: HoldId, ttl: Micros) -> Self {
        Self::Hold(HoldSpec {
            id,
            ttl,
            expiry: Expiry::Release,
            kind: HoldKind::Entry,
            quantity: None,
        })
    }

    /// The quantity that a hold grants as far as it fits.
    pub fn quantity(&self) -> Option<&Quantity<'_>> {
        match self {
            Self::Hold(hold) => hold.quantity,
            _ => None,
        }
    }

    /// The hold that the operation is about. Such a call has no charges.
    pub fn about_hold(&self) -> Option<HoldId> {
        match *self {
            Self::Settle { id, .. } | Self::Renew { id, .. } | Self::Extend { id, .. } => Some(id),
            _ => None,
        }
    }

    /// The costs by rule that the operation names: what is charged or, to extend a hold, what is
    /// held in total.
    pub fn rule_costs(&self) -> &[RuleCost<'_>] {
        match self {
            Self::Settle { costs: Costs::Each(each), .. } => each,
            Self::Extend { to, .. } => to.totals,
            _ => &[],
        }
    }

    /// The cost of each part of the hold that the operation names; `None` is what is held.
    /// `is_of(i, key)` is whether the i-th part is of this key. An engine calls it before it
    /// changes the hold.
    pub fn costs_of_parts(
        &self,
        parts: &[HeldPart<'_>],
        is_of: impl Fn(usize, Key<'_>) -> bool,
    ) -> Result<SmallVec<[Option<Cost>; 2]>, Refusal> {
        match self {
            Self::Settle { costs, .. } => costs.of_parts(parts, is_of),
            Self::Extend { to, .. } => to.of_parts(parts, is_of),
            _ => Ok(SmallVec::from_elem(None, parts.len())),
        }
    }

    /// Whether the operation takes concurrency slots and charges all other limits.
    pub fn is_entry(&self) -> bool {
        matches!(self, Self::Hold(HoldSpec { kind: HoldKind::Entry, .. }))
    }

    /// Whether the operation holds permits of `limit` instead of charging them.
    pub fn holds(&self, limit: &RuleLimit) -> bool {
        matches!(self, Self::Hold(hold) if hold.holds(limit))
    }

    /// Whether the record of the hold has to name `limit`: it is held, or the limit of a
    /// reservation that was charged for it.
    pub fn records(&self, limit: &RuleLimit) -> bool {
        let is_reservation = matches!(self, Self::Hold(hold) if hold.kind == HoldKind::Reservation);
        is_reservation || self.holds(limit)
    }

    /// Whether the operation takes permits or slots, unless a limit denies it.
    pub(crate) fn takes(&self) -> bool {
        matches!(self, Self::Check | Self::Hold(_))
    }

    /// Whether the operation makes a hold for about every request, whose result is not stored.
    pub(crate) fn is_per_request(&self) -> bool {
        matches!(self, Self::Hold(hold) if hold.kind != HoldKind::Reservation)
    }
}

/// One limit, one key, one cost.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The limit to charge, with the name of its rule and state.
    pub limit: &'a Arc<RuleLimit>,
    /// The key to count under.
    pub key: Key<'a>,
    /// The number of permits.
    pub cost: Cost,
    /// Label that a `sliding-log` stores with the entry.
    pub caller: Option<&'a str>,
}

impl AsRef<RuleLimit> for Charge<'_> {
    fn as_ref(&self) -> &RuleLimit {
        self.limit
    }
}

/// One request to an engine: decided in one atomic step, charged all or none.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The operation.
    pub op: Op<'a>,
    /// Limits, keys and costs. Charges of the same limit and key count as one with the costs added.
    pub charges: &'a [Charge<'a>],
    /// Charge at most once under this id, scoped to the rule and key of the first charge.
    pub idempotency_key: Option<IdempotencyKey<'a>>,
}

impl Call<'_> {
    /// Largest number of charges in one call.
    pub const MAX_CHARGES: usize = bounds::MAX_CHARGES;

    /// Refuses invalid calls. Every engine calls it first.
    pub fn validate(&self) -> Result<(), EngineError> {
        let count = self.charges.len();
        if self.op.about_hold().is_some() != (count == 0) || count > Self::MAX_CHARGES {
            return Err(Refusal::ChargeCount(count).into());
        }
        if let Op::Extend { to, .. } = self.op {
            to.validate()?;
        }
        if let Op::Hold(hold) = &self.op
            && let Some(quantity) = hold.quantity
        {
            self.validate_quantity(quantity, hold)?;
        }
        if self.op.is_per_request() && self.idempotency_key.is_some() {
            return Err(Refusal::EnterTakesNoId.into());
        }
        let charges_nothing = matches!(self.op, Op::Peek | Op::Reset);
        for charge in self.charges {
            let caller_len = charge.caller.map_or(0, str::len);
            if !charge.key.is_valid() || caller_len > Key::MAX_LEN {
                return Err(Refusal::KeyTooLong.into());
            }
            let is_held = self.op.holds(charge.limit);
            if is_held && charge.cost.is_zero() {
                return Err(Refusal::EmptyHold.into());
            }
            if charge.limit.limit().lease().is_some() && !is_held && !charges_nothing {
                return Err(Refusal::ConcurrencyNeedsHold.into());
            }
            charge.limit.check_zone()?;
        }
        let is_reservation =
            matches!(self.op, Op::Hold(hold) if hold.kind == HoldKind::Reservation);
        if is_reservation && !self.charges.iter().any(|charge| self.op.holds(charge.limit)) {
            return Err(Refusal::NothingToHold.into());
        }
        Ok(())
    }

    /// Refuses a quantity that the call cannot grant.
    fn validate_quantity(
        &self,
        quantity: &Quantity<'_>,
        hold: &HoldSpec<'_>,
    ) -> Result<(), Refusal> {
        let Quantity { min, want, charges: units } = *quantity;
        if min.is_zero() || min > want || want > Cost::MAX {
            return Err(Refusal::MinCost);
        }
        for (i, unit) in units.iter().enumerate() {
            let same =
                |charge: &&Charge<'_>| unit.state == charge.limit.state() && unit.key == charge.key;
            let charges = || self.charges.iter().filter(same);
            let Some(Charge { limit, .. }) = charges().next() else { continue };
            if units[..i].iter().any(|other| (other.state, other.key) == (unit.state, unit.key)) {
                return Err(Refusal::CostOfSeveral(limit.rule().into()));
            }
            if !hold.holds(limit) || limit.limit().lease().is_some() {
                return Err(Refusal::NotHeld(limit.rule().into()));
            }
            if limit.limit().is_queue() && !limit.is_shadow() {
                return Err(Refusal::QueueExtended(limit.rule().into()));
            }
            let at_min = charges().fold(Cost::ZERO, |sum, c| sum.saturating_add(c.cost));
            if at_min < unit.per_unit.of(min) {
                return Err(Refusal::MinCost);
            }
            Cost::new(quantity.cost(at_min, unit.per_unit, want).get())?;
        }
        Ok(())
    }
}
