//! What the result of a call says about the store.

use crate::EngineError;

/// What a result says about the store.
pub(super) enum StoreOutcome<'a> {
    Succeeded,
    Failed(&'a EngineError),
}

impl<'a> StoreOutcome<'a> {
    /// None for a refusal before the store was contacted.
    pub(super) fn of<T>(result: &'a Result<T, EngineError>) -> Option<Self> {
        match result {
            Err(EngineError::Refused(why)) if !why.is_from_store() => None,
            Err(error) if !error.is_store_healthy() => Some(Self::Failed(error)),
            _ => Some(Self::Succeeded),
        }
    }

    pub(super) fn failure(&self) -> Option<&'a EngineError> {
        match self {
            Self::Succeeded => None,
            Self::Failed(error) => Some(error),
        }
    }
}
