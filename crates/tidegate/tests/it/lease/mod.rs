//! Permits that processes borrow from a store and spend locally.
//!
//! Every process is a `Lease` around a link to one store, a `Memory`. The link is slow and loses
//! calls and replies, clocks run at different rates, and processes die at any point. Nothing
//! sleeps: the clock advances to the next event.
//!
//! - `cluster_of_processes`: the store, the link, the clocks, and the log of admissions.
//! - `bound`: compares the log with the guaranteed bound.
//! - `simulation`: random traffic, deaths, changed limits. `cost`: store calls and fairness.
//! - `layer`: one claim per test.

mod bound;
mod cluster_of_processes;
mod cost;
mod layer;
mod simulation;
