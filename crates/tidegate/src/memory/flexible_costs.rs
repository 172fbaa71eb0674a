//! The costs of a hold that grants a quantity.

use smallvec::SmallVec;
use tidegate_core::{Cost, Verdict};

use super::locked_shards::{CellCharge, CellCharges};
use crate::fingerprint::fingerprint;
use crate::{Call, Quantity, UnitCost};

/// The costs of the cells of a call by the quantity that is granted.
pub(super) struct FlexibleCosts<'a> {
    quantity: &'a Quantity<'a>,
    cells: SmallVec<[CellCost; 2]>,
}

/// What one cell costs.
struct CellCost {
    fingerprint: u64,
    at_min: Cost,
    per_unit: UnitCost,
}

impl<'a> FlexibleCosts<'a> {
    /// `None` if the call names no quantity.
    pub(super) fn new(call: &'a Call<'_>, parts: &CellCharges<'_>) -> Option<Self> {
        let quantity = call.op.quantity()?;
        let cell = |part: &CellCharge<'_>| {
            let of = |charge: &&crate::Charge<'_>| {
                fingerprint(charge.limit.tag(), charge.key) == part.fingerprint
            };
            let charge = call.charges.iter().find(of);
            let per_unit = charge.map(|c| quantity.per_unit(c.limit.state(), c.key));
            let per_unit = per_unit.unwrap_or(UnitCost::ZERO);
            CellCost { fingerprint: part.fingerprint, at_min: part.cost, per_unit }
        };
        Some(Self { quantity, cells: parts.iter().map(cell).collect() })
    }

    /// The cost of `part` if all that is wanted is granted.
    pub(super) fn wanted(&self, part: &CellCharge<'_>) -> Cost {
        let cell = self.cells.iter().find(|cell| cell.fingerprint == part.fingerprint);
        cell.map_or(part.cost, |cell| self.cost(cell, self.quantity.want))
    }

    fn cost(&self, cell: &CellCost, quantity: Cost) -> Cost {
        self.quantity.cost(cell.at_min, cell.per_unit, quantity)
    }

    /// Sets the costs to those of the largest quantity that every enforced limit allows. That
    /// quantity, or `None` if there is none, and the verdicts that `look` returns for these costs,
    /// or for those of the minimum if it is denied.
    pub(super) fn grant(
        &self,
        parts: &mut CellCharges<'_>,
        mut look: impl FnMut(&CellCharges<'_>) -> SmallVec<[Verdict; 2]>,
    ) -> (Option<Cost>, SmallVec<[Verdict; 2]>) {
        let Quantity { min, want, .. } = *self.quantity;
        let mut quantity = want;
        loop {
            for (part, cell) in parts.iter_mut().zip(&self.cells) {
                part.cost = self.cost(cell, quantity);
            }
            let verdicts = look(parts);
            let mut both = parts.iter().zip(&verdicts);
            if both.all(|(part, verdict)| verdict.allowed || part.is_shadow()) {
                return (Some(quantity), verdicts);
            }
            if quantity == min {
                return (None, verdicts);
            }
            let enforced = parts.iter().zip(&self.cells).zip(&verdicts);
            let enforced = enforced.filter(|((part, _), _)| !part.is_shadow());
            let left = enforced
                .map(|((_, cell), verdict)| (cell.at_min, cell.per_unit, verdict.remaining));
            let fits = self.quantity.fitting(left);
            // Keys that share an overflow bucket may fit one by one and not together.
            quantity = if fits < quantity { fits } else { min };
        }
    }
}
