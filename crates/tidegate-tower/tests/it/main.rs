//! Tests of the layers of `tidegate-tower`.
//!
//! `layer_allocations` is a separate program, because it replaces the global allocator.

#![expect(clippy::unwrap_used, reason = "a test")]

mod client;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod examples;
#[cfg(feature = "axum")]
mod layer;
