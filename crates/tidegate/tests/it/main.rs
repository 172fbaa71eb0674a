//! Tests of the public API of `tidegate`.
//!
//! Separate programs: `global_limiter` (one global per process), `memory_cap` (counts all heap
//! memory of the process), `shuttle` (built with `--cfg shuttle`).

#![expect(clippy::unwrap_used, reason = "a test")]

mod breaker;
mod budgets;
mod changed_limits;
mod check_many;
#[cfg(feature = "conformance")]
mod conformance;
mod deny_cache;
mod enter;
mod fallback;
mod fault_simulation;
mod idempotency;
mod known_script_bugs;
mod lease;
mod limiter_sharing;
mod many_holds;
mod policy;
#[cfg(feature = "macros")]
mod rate_limit_attribute;
mod reference_model;
mod reservations;
mod settle_at_end;
#[cfg(feature = "simulate")]
mod simulate;
mod threads;
#[cfg(feature = "serde")]
mod usage_shapes;
mod wait;
mod wait_share;
mod worked_examples;

/// Counts allocations per thread; `lease::cost` reads them.
#[global_allocator]
static ALLOCATOR: tidegate_model::CountingAllocator = tidegate_model::CountingAllocator;
