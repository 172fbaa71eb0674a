//! The operation of a request, and the numbers of `CL.THROTTLE`.

use std::time::Duration;

use tidegate::{Cost, Costs, Extension, HoldId, Op, Refusal, RuleCheck, UnitCost};

/// The numbers of `CL.THROTTLE`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Throttle {
    /// The burst minus 1.
    pub max_burst: u64,
    /// Requests per period.
    pub count: u64,
    /// The period in seconds.
    pub period: u64,
}

/// What to do with the limits of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Charge if every limit allows it.
    Check,
    /// As a check, but wait for capacity up to this long.
    Wait(Duration),
    /// Report the state and charge nothing.
    Peek,
    /// Charge usage that has already happened, even beyond the limit.
    Record,
    /// Return permits that were charged.
    Refund,
    /// Delete the recorded usage.
    Reset,
    /// Hold permits until the cost is known.
    Reserve(ReserveOptions),
}

/// The smallest and the largest quantity that a reservation is granted; each check of it has a cost
/// [per unit](RuleCheck::per_unit).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuantityRange {
    min: Cost,
    want: Cost,
}

impl QuantityRange {
    /// Refused unless it is from 1 to [`Cost::MAX`].
    pub fn new(min: u64, want: u64) -> Result<Self, Refusal> {
        let (min, want) = (Cost::total(min), Cost::new(want)?);
        if min.is_zero() || min > want { Err(Refusal::MinCost) } else { Ok(Self { min, want }) }
    }

    /// Grants the cost of the flexible checks as far as it fits; it must be the same for all.
    pub fn of_checks(
        checks: &mut [RuleCheck<'_>],
        min: u64,
        is_flexible: impl Fn(usize, &RuleCheck<'_>) -> bool,
    ) -> Result<Self, Refusal> {
        let mut want = None;
        for (i, check) in checks.iter_mut().enumerate() {
            if is_flexible(i, check) {
                if want.replace(check.cost).is_some_and(|other| other != check.cost) {
                    return Err(Refusal::MinCost);
                }
                (check.cost, check.per_unit) = (0, UnitCost::ONE);
            }
        }
        Self::new(min, want.ok_or(Refusal::MinCost)?)
    }

    pub(super) fn min(self) -> Cost {
        self.min
    }

    pub(super) fn want(self) -> Cost {
        self.want
    }
}

/// How permits are held.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReserveOptions {
    /// For how long; otherwise for the default TTL.
    pub ttl: Option<Duration>,
    /// Charge them at the deadline, whatever the rules say.
    pub charge_on_expiry: bool,
    /// The tag of the model that they are for.
    pub tag: Option<u32>,
    /// The id of a [named](tidegate::HoldKind::Named) hold; see [`CheckService::settle_named`].
    ///
    /// [`CheckService::settle_named`]: super::CheckService::settle_named
    pub name: Option<HoldId>,
    /// Grants as much of this as fits.
    pub quantity: Option<QuantityRange>,
}

impl From<Option<Duration>> for ReserveOptions {
    fn from(ttl: Option<Duration>) -> Self {
        Self { ttl, ..Self::default() }
    }
}

impl Operation {
    /// The operation of the engine; a reservation still needs its id and TTL.
    pub(super) fn op(self) -> Op<'static> {
        match self {
            Self::Check | Self::Wait(_) | Self::Reserve(_) => Op::Check,
            Self::Peek => Op::Peek,
            Self::Record => Op::Record,
            Self::Refund => Op::Refund,
            Self::Reset => Op::Reset,
        }
    }

    /// The quantity that a reservation is granted, if it names one.
    pub(super) fn quantity(self) -> Option<QuantityRange> {
        match self {
            Self::Reserve(options) => options.quantity,
            _ => None,
        }
    }

    /// Whether decisions are counted: those that can deny.
    pub(super) fn is_counted(self) -> bool {
        self.op() == Op::Check
    }
}

/// How a reservation continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettleAction<'a> {
    /// End it and charge these costs.
    Commit(Costs<'a>),
    /// End it and charge nothing.
    Cancel,
    /// Let it expire this long from now.
    Renew(Duration),
    /// Hold more, if every limit allows it.
    Extend(Extension<'a>),
}
