//! The bounds of the series of seconds.

use std::fmt;

/// The maximum number of seconds in a series: 15 minutes.
pub(crate) const MAX_SECONDS: usize = 900;

/// The number of seconds in a series, from 1 to [`MAX_SECONDS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WindowSeconds(usize);

impl WindowSeconds {
    pub const DEFAULT: Self = Self(60);
    /// [`MAX_SECONDS`].
    pub const MAX: Self = Self(MAX_SECONDS);

    /// `None` unless it is from 1 to [`MAX_SECONDS`].
    pub fn new(seconds: usize) -> Option<Self> {
        (1..=MAX_SECONDS).contains(&seconds).then_some(Self(seconds))
    }

    pub fn get(self) -> usize {
        self.0
    }
}

impl fmt::Display for WindowSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_from_1_to_900_seconds() {
        for (seconds, good) in [(0, false), (1, true), (900, true), (901, false)] {
            assert_eq!(WindowSeconds::new(seconds).is_some(), good, "{seconds}");
        }
    }
}
