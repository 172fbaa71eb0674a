//! The reference model of `docs/understand/algorithms.md`, and random traces that compare an
//! implementation with it. Imports `tidegate-core`, and `tidegate` with the feature `engine`.
//!
//! # Layout
//!
//! Each module imports only modules above it in this list.
//!
//! - `counting_allocator`: [`CountingAllocator`]. `run_size`: how many cases a test tries. `rng`:
//!   random numbers of a trace. `calendar`: days, weeks and months.
//! - `spec`: [`Spec`], a limit as plain numbers, which decides by itself which limits are invalid.
//!   `random_limit` draws limits over the whole domain, `alternating_limits` those that take
//!   turns.
//! - `consumption`: the algorithms. `carry`: changed limits.
//! - `cell`: [`ModelCell`] and [`CellState`], one limit on one key. Every event is stored and
//!   replayed for every call. `entries`: [`EntriesCell`], several limits on one key, as in Redis.
//! - `system`: [`ModelCall`], [`ModelOp`], [`ModelAnswer`], [`System`], the interface to a system
//!   under test.
//! - `expected` computes the results, `trace` draws the calls.
//! - `engine` (feature): an engine of `tidegate` as such a system.
//! - `run`: [`run`] compares.

#![allow(missing_docs, reason = "unpublished: a doc comment says what the name cannot")]
#![expect(clippy::unwrap_used, reason = "test support: it panics where a test would")]

mod alternating_limits;
mod calendar;
mod carry;
mod cell;
mod consumption;
mod counting_allocator;
#[cfg(feature = "engine")]
mod engine;
mod entries;
mod expected;
mod random_limit;
mod rng;
mod run;
mod run_size;
mod spec;
mod system;
mod trace;

pub use calendar::TestZone;
pub use cell::{CellEvent, CellState, ModelCell, ModelHold};
pub use counting_allocator::CountingAllocator;
#[cfg(feature = "engine")]
pub use engine::EngineSystem;
pub use entries::{EntriesCell, SharingClass};
pub use expected::{ChangeModel, ExpectedWorld};
pub use rng::TraceRng;
pub use run::{Mismatch, PrintOnPanic, Stats, print_line, run};
pub use run_size::run_size;
pub use spec::{BucketKind, MAX, Spec, WindowKind};
pub use system::{
    CellUses, MAX_CELLS, ModelAnswer, ModelCall, ModelCharge, ModelOp, ModelQuantity, ModelSettled,
    System,
};
pub use trace::Profile;
