//! Which calls have a span that nobody upstream has decided about.

use std::str::FromStr;

/// A share of all traces, from none to all.
///
/// Decided by the trace's id, so that the share is met whatever the order of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sampling(u64);

impl Sampling {
    /// Every call.
    pub const ALL: Self = Self(1 << 63);
    /// No call but those that have been chosen upstream.
    pub const NONE: Self = Self(0);

    /// Does the trace of this id have spans?
    pub(super) fn takes(self, trace: u128) -> bool {
        let low = u64::try_from(trace & u128::from(u64::MAX)).unwrap_or(u64::MAX);
        low >> 1 < self.0
    }
}

/// From a number between 0 and 1.
impl FromStr for Sampling {
    type Err = &'static str;

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 2^63, and exact at both ends"
    )]
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ratio: Option<f64> = text.parse().ok();
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        let ratio = ratio.ok_or("write a share between 0 and 1, like 0.01")?;
        Ok(Self((ratio * 2_f64.powi(63)) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_number_between_0_and_1() {
        assert_eq!("1".parse(), Ok(Sampling::ALL));
        assert_eq!("0".parse(), Ok(Sampling::NONE));
        assert_eq!("0.5".parse(), Ok(Sampling(1 << 62)));
        for bad in ["", "-0.1", "1.1", "nan", "inf", "1e400", "half", "50%"] {
            assert!(bad.parse::<Sampling>().is_err(), "{bad}");
        }
    }

    #[test]
    fn all_are_all_and_none_is_none() {
        for trace in [1, u128::MAX, u128::from(u64::MAX), 1 << 64] {
            assert!(Sampling::ALL.takes(trace) && !Sampling::NONE.takes(trace), "{trace:x}");
        }
    }
}
