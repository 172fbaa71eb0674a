//! Engines around an engine. Imports: clock, engine, fingerprint, key, memory.

mod breaker;
mod deny_cache;
mod fallback;
mod lease;

pub use self::breaker::{Breaker, BreakerEvent};
pub use self::deny_cache::DenyCache;
pub use self::fallback::{CallerDeadline, Fallback, FleetSize, StoreEvent};
pub use self::lease::Lease;
