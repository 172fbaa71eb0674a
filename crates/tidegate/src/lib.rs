//! Tidegate decides whether a request may pass now and, if not, when to come back.
//!
//! # Layout
//!
//! - [`Limit`] (from `tidegate-core`) says what may pass; [`Rule`] gives limits a name.
//! - [`Policy`] says which rules a request comes under; see [`policy`]. [`Client`] says who an address
//!   counts as; [`Network`] is a block of addresses.
//! - [`Limiter`] is what programs use: check, wait, enter, reserve. It asks an [`Engine`]. [`Slot`] is a
//!   place among those who are in.
//! - [`Engine`] decides a [`Call`] in one atomic step and answers with a [`Decision`]. [`Memory`] is
//!   the engine inside the process.
//! - [`Fallback`] is the engine around another that answers when that one does not. [`DenyCache`] remembers
//!   denials; [`Lease`] borrows permits and decides by itself; [`Breaker`] leaves a store alone that does not
//!   answer.
//! - [`Clock`] tells the time; [`ManualClock`] is turned by hand.
//! - `rate_limit` (feature `macros`) puts a limit on an async function.
//! - `simulate` (a feature) tries limits on imagined traffic.
//! - `conformance` (a feature) holds any engine to the same claims.

#![warn(clippy::cast_possible_truncation, clippy::float_arithmetic)]

mod address;
mod breaker;
mod calendar;
mod call;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod decision;
mod deny_cache;
mod engine;
mod fallback;
mod fingerprint;
mod key;
mod lease;
mod limiter;
mod memory;
pub mod policy;
mod rule;
#[cfg(feature = "simulate")]
pub mod simulate;
mod sync;

/// The README's examples are run as tests. One of them is of the attribute.
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

pub use address::{Client, InvalidNetwork, Network};
pub use breaker::{Breaker, BreakerEvent};
pub use call::{Call, CallId, Charge, HoldId, Op};
pub use clock::{Clock, ManualClock, Sleep, SystemClock};
pub use decision::{Decision, Details, Source};
pub use deny_cache::DenyCache;
pub use engine::{
    Answer, Circuit, Engine, EngineError, Health, Inspection, Misfit, Refusal, Shards,
};
pub use fallback::{Fallback, StoreEvent};
pub use key::Key;
pub use lease::Lease;
#[cfg(feature = "macros")]
#[doc(hidden)]
pub use limiter::site as __site;
pub use limiter::{
    Ask, Asking, Entered, Entering, GlobalInUse, Limited, Limiter, Reservation, Reserve, Slot,
    Telling,
};
pub use memory::{Memory, MemoryBuilder};
pub use policy::{Plan, Policy, PolicyRule, RuleDraft};
pub use rule::{InvalidRule, LeaseSize, OnStoreFailure, Rule, RuleLimit};
pub use tidegate_core::{
    Algorithm, CalendarUnit, Cost, Draft, Expiry, InvalidCost, InvalidLimit, Limit, Micros, Moment,
    Outcome, ParseLimitError, Part, Share, Span, Standing, Tick, Verdict, Wait, closest,
};
#[cfg(feature = "macros")]
pub use tidegate_macros::rate_limit;
