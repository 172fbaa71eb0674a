//! The share of a limit that a server grants by itself.

use tidegate::Share;

/// A share, above 0 and at most 1.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Ratio(f64);

impl Ratio {
    /// What to do about a number that is none.
    pub(crate) const ADVICE: &'static str = "a share is above 0 and at most 1; write one like 0.5";

    /// The share, unless the number is none.
    pub fn new(share: f64) -> Option<Self> {
        (share > 0.0 && share <= 1.0).then_some(Self(share))
    }

    /// The share in millionths; less than one of them counts as one.
    pub fn share(self) -> Share {
        // At most a million, and a number: it is between 0 and 1.
        let millionths = (self.0 * 1e6).round() as u64;
        Share::from_millionths(millionths.max(1)).unwrap_or(Share::HALF)
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// A half.
impl Default for Ratio {
    fn default() -> Self {
        Self(0.5)
    }
}
