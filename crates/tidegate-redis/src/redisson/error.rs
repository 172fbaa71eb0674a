//! Why there is no answer.

use std::fmt;

use tidegate::EngineError;

/// Why a limiter has no answer. The first two say what Redisson's exceptions say.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Nobody has set a rate, or the limiter has been forgotten.
    NotInitialized,
    /// More permits than there ever are at once.
    AboveRate {
        /// How many were asked for.
        permits: u32,
        /// How many there are in an interval.
        rate: u64,
    },
    /// There is no answer from Redis.
    Engine(EngineError),
}

impl Error {
    /// What Redisson's exception says, in version 3.52 and 4.7: a program that reads logs of both finds the
    /// same words.
    pub const NOT_INITIALIZED: &str = "RateLimiter is not initialized";
    /// The same of [`Error::AboveRate`].
    pub const ABOVE_RATE: &str = "Requested permits amount cannot exceed defined rate";
    /// The same in older versions.
    pub const ABOVE_RATE_BEFORE: &str = "Requested permits amount could not exceed defined rate";
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInitialized => write!(f, "{}; set a rate first", Self::NOT_INITIALIZED),
            Self::AboveRate { permits, rate } => {
                write!(f, "{}: {permits} of {rate}; ask for less", Self::ABOVE_RATE)
            }
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotInitialized | Self::AboveRate { .. } => None,
            Self::Engine(error) => error.source(),
        }
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// There were more entries than could be counted, or others changed them faster than that.
#[derive(Debug)]
pub(super) struct TooMany;

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the limiter has too many entries to be counted; ask again, or take several permits at a time")
    }
}

impl std::error::Error for TooMany {}
