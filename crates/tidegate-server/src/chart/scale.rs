//! Axis scales and ticks.

use tidegate::Micros;
use tidegate::simulate::TimeAxis;

/// A linear scale from 0 to a round number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) top: u64,
    step: u64,
}

impl Scale {
    /// A scale that includes `most`, with one to four ticks above 0.
    pub(crate) fn holding(most: u64) -> Self {
        let most = most.max(1);
        let mut ten = 1_u64;
        loop {
            for step in [1, 2, 5].map(|first| ten.saturating_mul(first)) {
                let marks = most.div_ceil(step);
                if marks <= 4 {
                    return Self { top: step.saturating_mul(marks), step };
                }
            }
            ten = ten.saturating_mul(10);
        }
    }

    /// The ticks, from 0.
    pub(crate) fn marks(self) -> impl Iterator<Item = u64> {
        (0..=self.top / self.step).map(move |nth| nth * self.step)
    }

    /// The height of a number in pixels, if the scale is `height` pixels high.
    pub(crate) fn height(self, number: u64, height: f64) -> f64 {
        number.min(self.top) as f64 / self.top as f64 * height
    }
}

/// The round instants at which an axis is labelled, at most nine.
pub(crate) fn instants(axis: &TimeAxis) -> impl Iterator<Item = Micros> {
    const SECOND: u64 = 1_000_000;
    const ROUND: [u64; 29] = [
        1,
        10,
        100,
        1_000,
        2_000,
        5_000,
        10_000,
        20_000,
        50_000,
        100_000,
        200_000,
        500_000,
        SECOND,
        2 * SECOND,
        5 * SECOND,
        10 * SECOND,
        30 * SECOND,
        60 * SECOND,
        120 * SECOND,
        300 * SECOND,
        600 * SECOND,
        1_800 * SECOND,
        3_600 * SECOND,
        7_200 * SECOND,
        21_600 * SECOND,
        43_200 * SECOND,
        86_400 * SECOND,
        604_800 * SECOND,
        2_592_000 * SECOND,
    ];
    let span = axis.span.get();
    let step = ROUND.into_iter().find(|step| span / step <= 8).unwrap_or(2_592_000 * SECOND);
    (0..=span / step).map(move |nth| Micros::new(nth * step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_on_a_near_round_number() {
        for (most, marks) in [
            (0, vec![0, 1]),
            (4, vec![0, 1, 2, 3, 4]),
            (5, vec![0, 2, 4, 6]),
            (100, vec![0, 50, 100]),
            (120, vec![0, 50, 100, 150]),
            (1_001, vec![0, 500, 1_000, 1_500]),
        ] {
            assert_eq!(Scale::holding(most).marks().collect::<Vec<_>>(), marks, "{most}");
        }
        assert!(Scale::holding(u64::MAX).marks().count() <= 6);
    }
}
