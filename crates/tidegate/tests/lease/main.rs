//! Permits that processes borrow from a store and spend by themselves.
//!
//! Every process here is a `Lease` of its own around a link to one store, a `Memory`. The link is slow and
//! loses calls and answers, clocks do not run alike, processes die in the middle of everything. Nothing
//! sleeps: the clock is turned to whatever somebody waits for next.
//!
//! # Layout
//!
//! - `world`: the store, the link, the clocks, and the raw log of what was admitted.
//! - `bounds`: what may pass in an interval. `promise`: the log held to it.
//! - `simulation`: random traffic, deaths, changed limits. `figures`: what it costs, and who gets what.
//! - `behaviour`: one claim at a time.

#![expect(clippy::unwrap_used, reason = "a test")]

mod behaviour;
#[path = "../support/promise.rs"]
mod bounds;
mod figures;
mod promise;
mod simulation;
mod world;

#[global_allocator]
static ALLOCATOR: tidegate_model::Counting = tidegate_model::Counting;
