//! Simulated time in equal steps, for charts.

use tidegate_core::Micros;

#[cfg(feature = "serde")]
use super::json::micros;

/// Start of simulated time: Monday, 1 January 2024, midnight UTC. Calendar windows, and those of a
/// length that divides a day, start there as well.
pub const START: Micros = Micros::from_secs(1_704_067_200);

/// The time steps of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct TimeAxis {
    /// Duration of the traffic.
    #[cfg_attr(feature = "serde", serde(rename = "span_us", serialize_with = "micros"))]
    #[cfg_attr(feature = "serde", schemars(with = "u64"))]
    pub span: Micros,
    /// Duration of a step.
    #[cfg_attr(feature = "serde", serde(rename = "step_us", serialize_with = "micros"))]
    #[cfg_attr(feature = "serde", schemars(with = "u64"))]
    pub step: Micros,
    /// Number of steps; the last may extend beyond the end.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub steps: usize,
}

const MILLI: u64 = 1_000;
const SECOND: u64 = 1_000 * MILLI;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

const ROUND: [u64; 33] = [
    1,
    10,
    100,
    MILLI,
    2 * MILLI,
    5 * MILLI,
    10 * MILLI,
    20 * MILLI,
    50 * MILLI,
    100 * MILLI,
    200 * MILLI,
    250 * MILLI,
    500 * MILLI,
    SECOND,
    2 * SECOND,
    5 * SECOND,
    10 * SECOND,
    15 * SECOND,
    30 * SECOND,
    MINUTE,
    2 * MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    7 * DAY,
];

impl TimeAxis {
    /// Largest number of steps.
    pub const MAX_STEPS: u64 = 240;

    /// The shortest round step with at most [`MAX_STEPS`](Self::MAX_STEPS) steps.
    pub(super) fn over(span: Micros) -> Self {
        let fits = |step: &u64| span.get().div_ceil(*step) <= Self::MAX_STEPS;
        let step = ROUND.into_iter().find(fits).unwrap_or(7 * DAY);
        let steps = usize::try_from(span.get().div_ceil(step).max(1)).unwrap_or(1);
        Self { span, step: Micros::new(step), steps }
    }

    /// The step of an instant; `None` beyond the end.
    pub fn step_at(&self, at: Micros) -> Option<usize> {
        let step = usize::try_from(at.get() / self.step.get()).ok()?;
        Some(step).filter(|step| *step < self.steps)
    }

    /// Start of a step.
    pub fn begins(&self, step: usize) -> Micros {
        Micros::new((step as u64).saturating_mul(self.step.get()))
    }

    /// A zero for every step.
    pub(super) fn zeros(&self) -> Vec<u64> {
        vec![0; self.steps]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_not_too_many() {
        for (span, step, steps) in [
            (60 * SECOND, 250 * MILLI, 240),
            (61 * SECOND, 500 * MILLI, 122),
            (HOUR, 15 * SECOND, 240),
            (DAY, 10 * MINUTE, 144),
            (200 * DAY, DAY, 200),
            (7, 1, 7),
            (0, 1, 1),
        ] {
            let axis = TimeAxis::over(Micros::new(span));
            assert_eq!((axis.step.get(), axis.steps), (step, steps), "{span}");
        }
        let axis = TimeAxis::over(Micros::new(61 * SECOND));
        assert_eq!(axis.step_at(Micros::new(61 * SECOND)), None);
        assert_eq!(axis.step_at(Micros::new(61 * SECOND - 1)), Some(121));
        assert_eq!(axis.begins(121), Micros::new(60_500 * MILLI));
    }
}
