//! How much a key spends.

use tidegate_core::Micros;

use super::terms;

/// Permits in the last moment: those of the present one, and a share of those of the one before.
pub(super) struct Rate {
    began: Micros,
    before: u64,
    count: u64,
}

impl Rate {
    pub(super) fn new(now: Micros) -> Self {
        Self { began: now, before: 0, count: 0 }
    }

    #[inline]
    pub(super) fn count(&mut self, permits: u64, now: Micros) {
        self.turn(now);
        self.count = self.count.saturating_add(permits);
    }

    pub(super) fn uncount(&mut self, permits: u64) {
        self.count = self.count.saturating_sub(permits);
    }

    pub(super) fn per_moment(&mut self, now: Micros) -> u64 {
        self.turn(now);
        let moment = terms::MOMENT.get();
        let share = moment.saturating_sub(now.saturating_sub(self.began).get());
        let before = u128::from(self.before) * u128::from(share) / u128::from(moment);
        u64::try_from(before).unwrap_or(u64::MAX).saturating_add(self.count)
    }

    #[inline]
    fn turn(&mut self, now: Micros) {
        let passed = now.saturating_sub(self.began);
        if passed < terms::MOMENT {
            return;
        }
        let is_next = passed.get() < 2 * terms::MOMENT.get();
        self.before = if is_next { self.count } else { 0 };
        self.began = if is_next { self.began.saturating_add(terms::MOMENT) } else { now };
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_known_after_a_moment_and_forgotten_after_two() {
        let at = |millis| Micros::from_millis(millis);
        let mut rate = Rate::new(at(0));
        (0..1_000).for_each(|milli| rate.count(2, at(milli)));
        let known = rate.per_moment(at(1_000));
        assert!((495..=505).contains(&known), "{known}");
        assert_eq!(rate.per_moment(at(1_125)), 250);
        assert_eq!(rate.per_moment(at(1_500)), 0);
    }

    #[test]
    fn hostile_numbers_do_not_wrap() {
        let mut rate = Rate::new(Micros::MAX);
        rate.count(u64::MAX, Micros::ZERO);
        rate.count(u64::MAX, Micros::MAX);
        assert_eq!(rate.per_moment(Micros::MAX), u64::MAX);
        rate.uncount(u64::MAX);
        assert_eq!(rate.per_moment(Micros::ZERO), 0);
    }
}
