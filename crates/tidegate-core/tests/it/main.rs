//! Tests of the public API of `tidegate-core`.

#![expect(clippy::unwrap_used, reason = "a test")]

mod bounds;
mod invalid_input;
mod packed_state;
mod reference_model;
