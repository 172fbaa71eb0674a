//! A fraction of a limit, for a process that counts alone while the store is unavailable.

use crate::algorithm_params::AlgorithmParams;
use crate::builder::LimitBuilder;
use crate::limit::Limit;

/// A fraction: one millionth to 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fraction(u64);

impl Fraction {
    /// A half.
    pub const HALF: Self = Self(Self::WHOLE / 2);
    const WHOLE: u64 = 1_000_000;

    /// A number of millionths: 1 to 1,000,000.
    pub const fn from_millionths(millionths: u64) -> Option<Self> {
        if millionths == 0 || millionths > Self::WHOLE { None } else { Some(Self(millionths)) }
    }

    /// The fraction in millionths.
    pub const fn millionths(self) -> u64 {
        self.0
    }

    /// The fraction of a number, rounded down but at least 1. Of 0 it is 0.
    fn of(self, number: u64) -> u64 {
        let part = u128::from(number) * u128::from(self.0) / u128::from(Self::WHOLE);
        // A fraction of a number is at most the number.
        u64::try_from(part).unwrap_or(number).max(number.min(1))
    }
}

impl Limit {
    /// The same limit with this fraction of its permits, rounded down, but at least one unless it
    /// has none.
    ///
    /// ```
    /// use tidegate_core::{Limit, Fraction};
    /// let half = "100/s burst 25".parse::<Limit>()?.scaled(Fraction::HALF);
    /// assert_eq!(half.to_string(), "50/s burst 12");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn scaled(&self, fraction: Fraction) -> Self {
        if self.capacity() == 0 {
            return self.clone();
        }
        let (whole, grain) = match &self.params {
            // The amount of each step has to be whole.
            AlgorithmParams::Steps(steps) => {
                (fraction.of(steps.amount), self.builder.count / steps.amount)
            }
            _ => (fraction.of(self.builder.count), 1),
        };
        let with = |count: u64, size: u64| LimitBuilder {
            count: count * grain,
            burst: self.builder.burst.and(Some(size)),
            capacity: self.builder.capacity.and(Some(size)),
            ..self.builder.clone()
        };
        // The scaled numbers may be exact on no tick. A rounder count or a smaller burst may be.
        let counts = [whole, 10_u64.pow(whole.ilog10())];
        let sizes =
            core::iter::successors(Some(fraction.of(self.capacity())), |size| Some(size / 2));
        let mut candidates = sizes.take(64).flat_map(|size| counts.map(|count| with(count, size)));
        candidates.find_map(|builder| builder.build().ok()).unwrap_or_else(|| self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn scaled(limit: &str, millionths: u64) -> alloc::string::String {
        let limit: Limit = limit.parse().unwrap();
        limit.scaled(Fraction::from_millionths(millionths).unwrap()).to_string()
    }

    #[test]
    fn a_fraction_of_a_limit_is_rounded_down_and_at_least_one() {
        for (limit, millionths, expected) in [
            ("100/s", 500_000, "50/s"),
            ("101/s", 500_000, "50/s"),
            ("1/s", 500_000, "1/s"),
            ("0/s", 500_000, "0/s"),
            ("100/s burst 25", 500_000, "50/s burst 12"),
            ("3/s burst 10", 100_000, "1/s"),
            ("3/s burst 100", 100_000, "1/s burst 10"),
            ("leaky-bucket 10/s capacity 30", 500_000, "leaky-bucket 5/s capacity 15"),
            ("leaky-bucket 10/s queue", 300_000, "leaky-bucket 3/s queue"),
            ("10/s burst 50 every 1s", 500_000, "5/s burst 25 every 1s"),
            ("600/m burst 50 every 1s", 250_000, "120/m burst 12 every 1s"),
            ("fixed-window 100/d tz Asia/Shanghai", 500_000, "fixed-window 50/d tz Asia/Shanghai"),
            ("fixed-window 7/60s first-hit", 500_000, "fixed-window 3/m first-hit"),
            ("sliding-log 5/m", 500_000, "sliding-log 2/m"),
            ("sliding-window 240/h precision 1m", 250_000, "sliding-window 60/h precision 1m"),
            ("sliding-window 9/h approximate", 1_000_000, "sliding-window 9/h approximate"),
            ("concurrency 20 lease 10s", 500_000, "concurrency 10 lease 10s"),
            ("100/s", 1, "1/s"),
            // The units of 28799 per day are too small for this burst.
            ("86400/d burst 1099511627776", 333_333, "10000/d burst 366503509421"),
            // No count is round enough here, so the burst shrinks.
            ("86399/86399s burst 35184372088832", 500_000, "43199/86399s burst 34359738368"),
        ] {
            assert_eq!(scaled(limit, millionths), expected, "{limit} {millionths}");
        }
    }

    #[test]
    fn every_limit_can_be_scaled_and_never_grows() {
        let mut seed = 7_u64;
        let mut next = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut tried = 0;
        for _ in 0..20_000 {
            let count = 1 + (1 << next(31)) + next(1_000);
            let size = 1 + (1 << next(31)) + next(1_000);
            let span = 1 + next(100_000_000);
            let Ok(limit) = alloc::format!("{count}/{span}ms burst {size}").parse::<Limit>() else {
                continue;
            };
            let fraction = Fraction::from_millionths(1 + next(1_000_000)).unwrap();
            let scaled = limit.scaled(fraction);
            let most = |whole: u64| (whole * fraction.0 / Fraction::WHOLE).max(1);
            assert!(scaled.capacity() <= most(limit.capacity()), "{limit} {fraction:?} {scaled}");
            assert!(
                scaled.builder.count <= most(limit.builder.count),
                "{limit} {fraction:?} {scaled}"
            );
            assert_eq!(scaled.builder.span, limit.builder.span);
            tried += 1;
        }
        assert!(tried > 5_000, "{tried}");
    }

    #[test]
    fn a_fraction_is_above_zero_and_at_most_one() {
        assert_eq!(Fraction::from_millionths(0), None);
        assert_eq!(Fraction::from_millionths(1_000_001), None);
        assert_eq!(Fraction::from_millionths(500_000), Some(Fraction::HALF));
    }
}
