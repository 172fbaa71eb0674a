//! Why a limiter could not decide.

use std::fmt;

use tidegate::EngineError;

/// Why a limiter could not decide. The first two contain the texts of Redisson's exceptions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No rate was set, or the limiter has expired.
    NotInitialized,
    /// More permits than the rate.
    AboveRate {
        /// The requested permits.
        permits: u32,
        /// The permits per interval.
        rate: u64,
    },
    /// Redis did not decide.
    Engine(EngineError),
}

impl Error {
    /// Text of Redisson's exception, in version 3.52 and 4.7, so that logs of both can be searched
    /// for the same text.
    pub const NOT_INITIALIZED: &str = "RateLimiter is not initialized";
    /// Text of Redisson's exception for [`Error::AboveRate`].
    pub const ABOVE_RATE: &str = "Requested permits amount cannot exceed defined rate";
    /// The same text in older versions.
    pub const ABOVE_RATE_OLD_TEXT: &str = "Requested permits amount could not exceed defined rate";
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInitialized => write!(f, "{}; set a rate first", Self::NOT_INITIALIZED),
            Self::AboveRate { permits, rate } => {
                write!(f, "{}: {permits} of {rate}; request fewer", Self::ABOVE_RATE)
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
