//! Errors of a call of which some slots may have executed their share.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tidegate::EngineError;

/// Of two errors the one after which more may have executed: ambiguous, then unavailable, then
/// refused.
pub(super) fn more_severe(one: Option<EngineError>, other: EngineError) -> Option<EngineError> {
    let rank = |error: &EngineError| match error {
        EngineError::Ambiguous(_) => 2,
        EngineError::Unavailable(_) => 1,
        _ => 0,
    };
    Some(one.filter(|one| rank(one) >= rank(&other)).unwrap_or(other))
}

/// Turns `Unavailable` into `Ambiguous`: other slots may have executed their share.
pub(super) fn as_ambiguous(error: EngineError) -> EngineError {
    match error {
        EngineError::Unavailable(cause) => EngineError::Ambiguous(Arc::new(PartialFailure(cause))),
        error => error,
    }
}

/// One slot failed, and others may have executed.
#[derive(Debug)]
struct PartialFailure(Arc<dyn Error + Send + Sync>);

impl fmt::Display for PartialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of several hash slots did not reply; the others may have been charged: ")?;
        self.0.fmt(f)
    }
}

impl Error for PartialFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}
