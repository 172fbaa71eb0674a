//! The operation of a request, and the numbers of `CL.THROTTLE`.

use std::time::Duration;

use tidegate::{Cost, Costs, Extension, HoldId, Op, RuleCost};

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

/// A reservation of one quantity from `min` to `want` under these rules and keys. The checks of the
/// call have `min` as the cost of these, and fixed costs otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AtMost<'a> {
    /// The rules and keys, each at a cost of `want`.
    pub wanted: Vec<RuleCost<'a>>,
    /// The smallest quantity.
    pub min: Cost,
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
