//! The reference model of `docs/arithmetic.md`, and random traces to hold an implementation to it.
//!
//! # Layout
//!
//! - [`Spec`]: a limit as plain numbers, with its own idea of which limits are refused (`spec`);
//!   `draw` picks them at random over the whole domain; `calendar` knows days, weeks and months.
//! - [`Cell`] and [`Situation`]: one limit on one key. Every event is kept and replayed for every
//!   question (`model`); the algorithms are in `consumption`, changed limits in `carry`.
//! - [`Call`], [`Op`], [`Answer`], [`Subject`]: what is asked of a system under test (`subject`).
//! - `UnderTest` (feature `engine`): an engine of `tidegate` as such a system.
//! - [`Counting`]: an allocator that counts.
//! - `trace` draws the calls, `world` says what the answers must be, and [`run`] compares.

#![expect(clippy::unwrap_used, reason = "test support: it panics where a test would")]

mod calendar;
mod carry;
mod consumption;
mod counting;
mod draw;
#[cfg(feature = "engine")]
mod engine;
mod model;
mod rng;
mod run;
mod spec;
mod subject;
mod trace;
mod world;

pub use calendar::Zone;
pub use counting::Counting;
#[cfg(feature = "engine")]
pub use engine::UnderTest;
pub use model::{Cell, Event, Hold, Situation};
pub use rng::Rng;
pub use run::{Mismatch, OnPanic, Stats, run, say};
pub use spec::{Bucket, MAX, Spec, Window};
pub use subject::{Answer, Call, Op, Part, Subject};
pub use trace::Profile;
pub use world::World;
