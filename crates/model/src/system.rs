//! The interface to a system under test, as plain data.

use tidegate_core::{Expiry, Verdict};

use crate::Spec;
use crate::spec::ceil;

/// A system under test: a few cells, each one limit on one key.
pub trait System {
    /// Applies the call and returns its result.
    fn apply(&mut self, call: &ModelCall) -> ModelAnswer;
}

/// One call at one instant.
#[derive(Clone, Debug)]
pub struct ModelCall {
    /// The instant in microseconds. It may be earlier than that of the previous call.
    pub now: u64,
    pub op: ModelOp,
    /// Its cells. The same cell may occur twice in `Check`, `Peek`, `Hold`, `Enter` and `Record`.
    /// For `Settle`, `Renew` and `Extend` these are the cells and costs of the hold, each once.
    pub parts: Vec<ModelCharge>,
}

/// One cell and one cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelCharge {
    /// The index of the cell.
    pub cell: usize,
    /// The cost; zero where the operation has none.
    pub cost: u64,
}

#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "docs/understand/algorithms.md defines each")]
pub enum ModelOp {
    Check,
    Peek,
    Record,
    Refund,
    Reset,
    /// Holds each cell with this expiry, and charges those without one.
    Hold {
        id: u128,
        ttl: u64,
        uses: CellUses,
        quantity: Option<ModelQuantity>,
    },
    /// Holds the cells that count holders until it is released, and charges all others.
    Enter {
        id: u128,
        ttl: u64,
    },
    /// Charges each cell that is held its actual cost, or the permits that it held.
    Settle {
        id: u128,
        uses: CellUses,
        costs: [Option<u64>; MAX_CELLS],
    },
    Renew {
        id: u128,
        ttl: u64,
        uses: CellUses,
    },
    /// Holds these totals, or one quantity from `min` on; with a TTL, from now on.
    Extend {
        id: u128,
        uses: CellUses,
        totals: [Option<u64>; MAX_CELLS],
        min: Option<u64>,
        ttl: Option<u64>,
    },
    /// Changes the limit of one cell, and peeks.
    Change(Spec),
    /// Changes the limit of the next call on one cell. No call is made, and there is no verdict.
    Swap(Spec),
}

/// A quantity that a hold grants: the largest from `min` to `want` that fits. The costs of the
/// parts are those of `min`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelQuantity {
    pub min: u64,
    pub want: u64,
    /// What a unit costs in each cell: numerator and denominator.
    pub per_unit: [Option<(u32, u32)>; MAX_CELLS],
}

impl ModelQuantity {
    /// What `quantity` costs in a cell that costs `at_min` for the minimum.
    pub fn cost(&self, cell: usize, at_min: i128, quantity: u64) -> i128 {
        let Some((num, den)) = self.per_unit[cell] else { return at_min };
        let of = |units: u64| ceil(i128::from(units) * i128::from(num), i128::from(den));
        at_min - of(self.min) + of(quantity)
    }
}

/// The most cells of a trace.
pub const MAX_CELLS: usize = 4;

/// What a hold does with each cell: it is held with this expiry, or charged when the hold is made.
pub type CellUses = [Option<Expiry>; MAX_CELLS];

impl ModelOp {
    /// The hold that it is about.
    pub fn about_hold(&self) -> Option<u128> {
        match *self {
            Self::Settle { id, .. } | Self::Renew { id, .. } | Self::Extend { id, .. } => Some(id),
            _ => None,
        }
    }

    /// The hold that it makes on this cell, if every cell allows it: id, TTL and expiry.
    pub fn hold_on(&self, cell: usize, spec: &Spec) -> Option<(u128, u64, Expiry)> {
        match *self {
            Self::Hold { id, ttl, uses, .. } => uses[cell].map(|expiry| (id, ttl, expiry)),
            Self::Enter { id, ttl } if spec.is_held() => Some((id, ttl, Expiry::Release)),
            _ => None,
        }
    }
}

/// The result of a call.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ModelAnswer {
    /// One per part, in order; the same twice for a cell that occurs twice.
    pub verdicts: Vec<Verdict>,
    /// The permits refunded: the maximum over the cells.
    pub refunded: u64,
    /// The hold to settle, renew or extend had expired in at least one cell. `Extend` returns
    /// nothing else then.
    pub expired: bool,
    /// One per part of `Settle`; otherwise empty.
    pub settled: Vec<ModelSettled>,
    /// What each part holds after `Extend`; otherwise empty.
    pub reserved: Vec<u64>,
    /// What a `Hold` of a quantity was granted, if it was.
    pub granted: Option<u64>,
}

/// What settling a hold has charged to a cell.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ModelSettled {
    /// What was held, or charged when the hold was made.
    pub reserved: u64,
    /// What was charged in total.
    pub charged: u64,
    /// What was cut off.
    pub uncharged: u64,
}
