//! What a request weighs.

use core::fmt;

/// How many permits a request takes: 0 asks without taking, [`Cost::MAX`] is 2^32.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cost(u64);

impl Cost {
    /// Asks without taking.
    pub const ZERO: Self = Self(0);
    /// What a request weighs unless it says otherwise.
    pub const ONE: Self = Self(1);
    /// The largest cost of one request.
    pub const MAX: Self = Self(1 << 32);

    /// A cost of `permits`.
    pub const fn new(permits: u64) -> Result<Self, InvalidCost> {
        if permits > Self::MAX.0 { Err(InvalidCost(permits)) } else { Ok(Self(permits)) }
    }

    /// The number of permits.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Nothing is asked for.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The cost of two charges to the same state. May pass [`Cost::MAX`]; what no limit can hold
    /// is simply never allowed.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left of a cost after `other` was paid.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The cost of several charges together, which may pass [`Cost::MAX`].
    pub const fn total(permits: u64) -> Self {
        Self(permits)
    }
}

impl TryFrom<u64> for Cost {
    type Error = InvalidCost;

    fn try_from(permits: u64) -> Result<Self, InvalidCost> {
        Self::new(permits)
    }
}

impl From<u32> for Cost {
    fn from(permits: u32) -> Self {
        Self(u64::from(permits))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A cost above [`Cost::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidCost(u64);

impl fmt::Display for InvalidCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cost {} is too large; at most {} per request", self.0, Cost::MAX)
    }
}

impl core::error::Error for InvalidCost {}
