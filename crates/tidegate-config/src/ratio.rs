//! A fraction of a limit or of a wait.

use tidegate::Fraction;

use crate::errors::field_error::FieldError;

/// A fraction above 0 and at most 1; 0.5 by default.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct RatioSetting(f64);

impl RatioSetting {
    /// The error for a number out of range.
    pub(crate) const ADVICE: &'static str =
        "expected a fraction above 0 and at most 1, for example 0.5";

    /// `None` if the number is out of range.
    pub fn new(share: f64) -> Option<Self> {
        (share > 0.0 && share <= 1.0).then_some(Self(share))
    }

    /// The same for a field; a number out of range is an error.
    pub(crate) fn read(
        share: Option<f64>,
        field: &str,
        faults: &mut Vec<FieldError>,
    ) -> Option<Self> {
        let ratio = Self::new(share?);
        if ratio.is_none() {
            faults.push(FieldError::new(field, "fraction", Self::ADVICE));
        }
        ratio
    }

    /// Rounded to millionths, at least one millionth.
    pub fn share(self) -> Fraction {
        // The cast is exact: the product is between 0 and a million.
        let millionths = (self.0 * 1e6).round() as u64;
        Fraction::from_millionths(millionths.max(1)).unwrap_or(Fraction::HALF)
    }

    /// The number that [`new`](Self::new) was given.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for RatioSetting {
    fn default() -> Self {
        Self(0.5)
    }
}
