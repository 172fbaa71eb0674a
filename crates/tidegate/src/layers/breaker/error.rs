//! Errors of calls that the breaker does not send, interrupts, or counts as failed.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Micros;

use crate::EngineError;

/// Why a call was not sent.
#[derive(Debug)]
pub(super) struct CircuitOpen(Cause);

impl CircuitOpen {
    pub(super) fn caused_by(failure: Option<&EngineError>) -> EngineError {
        EngineError::unavailable(Self(cause_of(failure)))
    }
}

type Cause = Option<Arc<dyn Error + Send + Sync>>;

fn cause_of(failure: Option<&EngineError>) -> Cause {
    match failure? {
        EngineError::Unavailable(cause) | EngineError::Ambiguous(cause) => Some(cause.clone()),
        EngineError::Refused(_) => None,
    }
}

impl fmt::Display for CircuitOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("circuit open; store not contacted")?;
        self.0.as_ref().map_or(Ok(()), |cause| write!(f, " ({cause})"))
    }
}

impl Error for CircuitOpen {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_ref().map(|cause| &**cause as &(dyn Error + 'static))
    }
}

/// The circuit opened before the reply to a call.
#[derive(Debug)]
pub(super) struct InterruptedCall(Cause);

impl InterruptedCall {
    pub(super) fn caused_by(failure: Option<&EngineError>) -> EngineError {
        EngineError::Ambiguous(Arc::new(Self(cause_of(failure))))
    }
}

impl fmt::Display for InterruptedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("circuit opened before the reply of the store")?;
        self.0.as_ref().map_or(Ok(()), |cause| write!(f, " ({cause})"))
    }
}

impl Error for InterruptedCall {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_ref().map(|cause| &**cause as &(dyn Error + 'static))
    }
}

/// Calls are in flight, and the store has sent no reply for this long.
#[derive(Debug)]
pub(super) struct SilentStore(pub(super) Micros);

impl fmt::Display for SilentStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no reply from the store for {}", self.0)
    }
}

impl Error for SilentStore {}

/// A reply that took longer than `slow_after`.
#[derive(Debug)]
pub(super) struct SlowReply(pub(super) Duration);

impl fmt::Display for SlowReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slow reply from the store ({}); see its slow log", Micros::from(self.0))
    }
}

impl Error for SlowReply {}
