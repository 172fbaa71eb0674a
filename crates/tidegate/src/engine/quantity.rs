//! A quantity that a hold grants: as much as fits, from a minimum up to what is wanted.

use tidegate_core::Cost;

use crate::Key;

/// What a unit of a quantity costs under a limit: a fraction of a permit, rounded up once for the
/// whole quantity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnitCost {
    num: u32,
    den: u32,
}

impl UnitCost {
    /// The quantity costs nothing.
    pub const ZERO: Self = Self { num: 0, den: 1 };
    /// One permit a unit.
    pub const ONE: Self = Self { num: 1, den: 1 };
    /// The largest denominator: a cost of [`Cost::MAX`] times this is exact in the scripts of a
    /// store.
    pub const MAX_DEN: u32 = 1 << 20;

    /// `num / den` permits a unit; `None` if `den` is not from 1 to [`MAX_DEN`](Self::MAX_DEN).
    pub const fn new(num: u32, den: u32) -> Option<Self> {
        if den == 0 || den > Self::MAX_DEN { None } else { Some(Self { num, den }) }
    }

    /// The numerator and the denominator.
    pub const fn parts(self) -> (u32, u32) {
        (self.num, self.den)
    }

    /// Whether the quantity costs nothing.
    pub const fn is_zero(self) -> bool {
        self.num == 0
    }

    /// The cost of a quantity, rounded up.
    pub fn of(self, quantity: Cost) -> Cost {
        let cost = (u128::from(quantity.get()) * u128::from(self.num)).div_ceil(self.den.into());
        Cost::total(u64::try_from(cost).unwrap_or(u64::MAX))
    }

    /// The largest quantity that costs at most this.
    pub fn quantity_for(self, cost: Cost) -> Cost {
        let units = u128::from(cost.get()) * u128::from(self.den);
        let units = units.checked_div(self.num.into()).unwrap_or(u128::MAX);
        Cost::total(u64::try_from(units).unwrap_or(u64::MAX))
    }
}

/// What a hold grants: one quantity for all its charges, the largest from `min` to `want` that
/// every limit allows. If none allows `min`, the call is denied.
///
/// The costs of the call are those of `min`. A charge that is named here costs
/// [`per_unit`](UnitCharge::per_unit) more for what is granted beyond it; the others are fixed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quantity<'a> {
    /// The smallest quantity; at least 1.
    pub min: Cost,
    /// The largest quantity.
    pub want: Cost,
    /// The charges whose cost depends on the quantity.
    pub charges: &'a [UnitCharge<'a>],
}

/// A charge whose cost depends on the quantity that is granted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnitCharge<'a> {
    /// The state of its limit: [`RuleLimit::state`](crate::RuleLimit::state).
    pub state: &'a str,
    /// Its key.
    pub key: Key<'a>,
    /// What each unit costs.
    pub per_unit: UnitCost,
}

impl Quantity<'_> {
    /// What a unit costs under the limit of this state, for this key.
    pub fn per_unit(&self, state: &str, key: Key<'_>) -> UnitCost {
        let same = |unit: &&UnitCharge<'_>| unit.state == state && unit.key == key;
        self.charges.iter().find(same).map_or(UnitCost::ZERO, |unit| unit.per_unit)
    }

    /// The cost of `quantity` under a limit and key that cost `at_min` for the minimum.
    pub fn cost(&self, at_min: Cost, per_unit: UnitCost, quantity: Cost) -> Cost {
        self.base(at_min, per_unit).saturating_add(per_unit.of(quantity))
    }

    /// The largest quantity, from `min` to `want`, that fits into what is left of each limit: pairs
    /// of the cost at the minimum, the cost of a unit, and the permits left. The minimum if less
    /// fits.
    pub fn fitting(&self, parts: impl Iterator<Item = (Cost, UnitCost, u64)>) -> Cost {
        let fits = parts.map(|(at_min, per_unit, left)| {
            let left = Cost::total(left);
            if at_min > left {
                return self.min;
            }
            per_unit.quantity_for(left.saturating_sub(self.base(at_min, per_unit)))
        });
        fits.min().unwrap_or(self.want).clamp(self.min, self.want)
    }

    /// What does not depend on the quantity.
    fn base(&self, at_min: Cost, per_unit: UnitCost) -> Cost {
        at_min.saturating_sub(per_unit.of(self.min))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the definition, one quantity after the other.
    #[test]
    fn the_closed_form_is_the_largest_quantity_that_fits() {
        let mut seed = 1_u64;
        let mut below = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % bound
        };
        for _ in 0..20_000 {
            let number = |n: u64| u32::try_from(n).unwrap();
            let unit = UnitCost::new(number(below(30)), number(1 + below(12))).unwrap();
            let (min, more) = (1 + below(10), below(40));
            let quantity =
                Quantity { min: Cost::total(min), want: Cost::total(min + more), charges: &[] };
            let (base, left) = (below(30), below(100));
            let at_min = Cost::total(base).saturating_add(unit.of(quantity.min));
            let cost = |q: u64| quantity.cost(at_min, unit, Cost::total(q)).get();
            let largest = (min..=min + more).rev().find(|q| cost(*q) <= left);
            let found = quantity.fitting([(at_min, unit, left)].into_iter()).get();
            assert_eq!(found, largest.unwrap_or(min), "{unit:?} {quantity:?} {base} {left}");
        }
    }

    #[test]
    fn the_largest_numbers_are_exact() {
        assert!(UnitCost::new(1, 0).is_none() && UnitCost::new(1, UnitCost::MAX_DEN + 1).is_none());
        let unit = UnitCost::new(u32::MAX, UnitCost::MAX_DEN).unwrap();
        assert_eq!(unit.of(Cost::MAX).get(), u64::from(u32::MAX) << 12);
        assert_eq!(unit.quantity_for(unit.of(Cost::MAX)), Cost::MAX);
        assert_eq!(UnitCost::ZERO.quantity_for(Cost::ZERO).get(), u64::MAX);
    }
}
