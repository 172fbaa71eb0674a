//! Which calls without a parent span are sampled.

use std::str::FromStr;

/// The ratio of sampled traces, from 0 to 1.
///
/// The id of the trace decides, so that the ratio holds for any order of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SamplingRatio(u64);

impl SamplingRatio {
    /// Every call has a span.
    pub const ALL: Self = Self(1 << 63);
    /// Only calls whose parent span is sampled.
    pub const NONE: Self = Self(0);

    /// Whether the trace with this id is sampled.
    pub(crate) fn takes(self, trace: u128) -> bool {
        let low = u64::try_from(trace & u128::from(u64::MAX)).unwrap_or(u64::MAX);
        low >> 1 < self.0
    }
}

/// From a number between 0 and 1.
impl FromStr for SamplingRatio {
    type Err = &'static str;

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 2^63, and exact at both ends"
    )]
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ratio: Option<f64> = text.parse().ok();
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        let ratio = ratio.ok_or("expected a ratio from 0 to 1, for example 0.01")?;
        Ok(Self((ratio * 2_f64.powi(63)) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_a_number_from_0_to_1() {
        assert_eq!("1".parse(), Ok(SamplingRatio::ALL));
        assert_eq!("0".parse(), Ok(SamplingRatio::NONE));
        assert_eq!("0.5".parse(), Ok(SamplingRatio(1 << 62)));
        for bad in ["", "-0.1", "1.1", "nan", "inf", "1e400", "half", "50%"] {
            assert!(bad.parse::<SamplingRatio>().is_err(), "{bad}");
        }
    }

    #[test]
    fn all_samples_every_trace_and_none_samples_none() {
        for trace in [1, u128::MAX, u128::from(u64::MAX), 1 << 64] {
            assert!(
                SamplingRatio::ALL.takes(trace) && !SamplingRatio::NONE.takes(trace),
                "{trace:x}"
            );
        }
    }
}
