//! The cost of a request.

use core::fmt;

/// How many permits a request takes: 0 only peeks, [`Cost::MAX`] is 2^32.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cost(u64);

impl Cost {
    /// A peek: takes nothing.
    pub const ZERO: Self = Self(0);
    /// The default cost of a request.
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

    /// Is it a peek?
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The cost of two charges to the same state. It may exceed [`Cost::MAX`]: a cost above the
    /// capacity is never allowed.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The rest of a cost after `other` was paid.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The cost of several charges together, which may exceed [`Cost::MAX`].
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
