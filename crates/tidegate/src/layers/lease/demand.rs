//! Permits that a key spends per [`DEMAND_WINDOW`](super::constants::DEMAND_WINDOW).

use tidegate_core::Micros;

use super::constants;

/// Permits of the last window: those of the present one, and a proportional part of the previous
/// one.
pub(crate) struct Demand {
    began: Micros,
    before: u64,
    count: u64,
}

impl Demand {
    pub(crate) fn new(now: Micros) -> Self {
        Self { began: now, before: 0, count: 0 }
    }

    #[inline]
    pub(crate) fn count(&mut self, permits: u64, now: Micros) {
        self.advance(now);
        self.count = self.count.saturating_add(permits);
    }

    pub(crate) fn uncount(&mut self, permits: u64) {
        self.count = self.count.saturating_sub(permits);
    }

    pub(crate) fn per_window(&mut self, now: Micros) -> u64 {
        self.advance(now);
        let window = constants::DEMAND_WINDOW.get();
        let share = window.saturating_sub(now.saturating_sub(self.began).get());
        let before = u128::from(self.before) * u128::from(share) / u128::from(window);
        u64::try_from(before).unwrap_or(u64::MAX).saturating_add(self.count)
    }

    #[inline]
    fn advance(&mut self, now: Micros) {
        let passed = now.saturating_sub(self.began);
        if passed < constants::DEMAND_WINDOW {
            return;
        }
        let is_next = passed.get() < 2 * constants::DEMAND_WINDOW.get();
        self.before = if is_next { self.count } else { 0 };
        self.began =
            if is_next { self.began.saturating_add(constants::DEMAND_WINDOW) } else { now };
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_known_after_one_window_and_zero_after_two() {
        let at = |millis| Micros::from_millis(millis);
        let mut demand = Demand::new(at(0));
        (0..1_000).for_each(|milli| demand.count(2, at(milli)));
        let known = demand.per_window(at(1_000));
        assert!((495..=505).contains(&known), "{known}");
        assert_eq!(demand.per_window(at(1_125)), 250);
        assert_eq!(demand.per_window(at(1_500)), 0);
    }

    #[test]
    fn extreme_numbers_do_not_wrap() {
        let mut demand = Demand::new(Micros::MAX);
        demand.count(u64::MAX, Micros::ZERO);
        demand.count(u64::MAX, Micros::MAX);
        assert_eq!(demand.per_window(Micros::MAX), u64::MAX);
        demand.uncount(u64::MAX);
        assert_eq!(demand.per_window(Micros::ZERO), 0);
    }
}
