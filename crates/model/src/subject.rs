//! What is asked of a system under test, as plain data.

use tidegate_core::{Expiry, Verdict};

use crate::Spec;

/// A system under test: a small world of cells, each one limit on one key.
pub trait Subject {
    /// Does what the call says and answers it.
    fn apply(&mut self, call: &Call) -> Answer;
}

/// One call at one instant.
#[derive(Clone, Debug)]
pub struct Call {
    /// The instant in microseconds. It may be before that of the call before.
    pub now: u64,
    /// What to do.
    pub op: Op,
    /// With which cells. The same cell may come twice, in `Check`, `Peek`, `Hold`, `Enter` and
    /// `Record`.
    /// For `Settle` and `Renew` the cells and costs of the hold, each cell once.
    pub parts: Vec<Part>,
}

/// One cell and one cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The index of the cell.
    pub cell: usize,
    /// The cost; zero where the operation has none.
    pub cost: u64,
}

/// What to do.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "docs/arithmetic.md defines each")]
pub enum Op {
    Check,
    Peek,
    Record,
    Refund,
    Reset,
    Hold {
        id: u128,
        ttl: u64,
        expiry: Expiry,
    },
    /// Holds the cells that count holders, until it is released, and charges all others.
    Enter {
        id: u128,
        ttl: u64,
    },
    /// Charges every cell of the hold `cost`, or what it held.
    Settle {
        id: u128,
        expiry: Expiry,
        cost: Option<u64>,
    },
    Renew {
        id: u128,
        ttl: u64,
    },
    /// The one cell has this limit from now on.
    Change(Spec),
}

impl Op {
    /// The hold that it makes on a cell of this limit, if every cell allows it: its name, how long it
    /// lasts, and what happens then.
    pub fn hold_on(&self, spec: &Spec) -> Option<(u128, u64, Expiry)> {
        match *self {
            Self::Hold { id, ttl, expiry } => Some((id, ttl, expiry)),
            Self::Enter { id, ttl } if spec.is_held() => Some((id, ttl, Expiry::Release)),
            _ => None,
        }
    }
}

/// The answer to a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// One for each part, in order; the same twice for a cell that came twice.
    pub verdicts: Vec<Verdict>,
    /// What a refund gave back: the most over the cells.
    pub refunded: u64,
    /// The hold to settle or renew had ended, in at least one cell.
    pub expired: bool,
}
