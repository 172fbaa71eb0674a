//! Events of a circuit breaker.

use std::time::Duration;

use crate::EngineError;

/// Event of a [`Breaker`](crate::Breaker).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum BreakerEvent<'a> {
    /// The circuit of a shard opened: calls are no longer sent.
    #[non_exhaustive]
    Opened {
        /// Shard number; 0 if the store fails as a whole.
        shard: usize,
        /// The failure that opened the circuit.
        error: &'a EngineError,
    },
    /// The circuit of a shard closed: calls are sent again.
    #[non_exhaustive]
    Closed {
        /// Shard number; 0 if the store fails as a whole.
        shard: usize,
        /// How long the circuit was open.
        after: Duration,
    },
    /// An open shard saw no calls for 10 s; its state was dropped. Another server may have taken
    /// over its slots. The next call is sent.
    #[non_exhaustive]
    IdleReset {
        /// Shard number; 0 if the store fails as a whole.
        shard: usize,
        /// How long the circuit was open.
        after: Duration,
    },
}
