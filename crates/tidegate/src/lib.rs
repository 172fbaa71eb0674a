//! Tidegate decides whether a request may pass now and, if not, when to come back.
//!
//! # Layout
//!
//! - [`Limit`] (from `tidegate-core`) says what may pass; [`Rule`] gives limits a name.
//! - [`Policy`] says which rules a request comes under; see [`policy`]. [`Client`] says who an address
//!   counts as; [`Network`] is a block of addresses.
//! - [`Limiter`] is what programs use: check, wait, reserve. It asks an [`Engine`].
//! - [`Engine`] decides a [`Call`] in one atomic step and answers with a [`Decision`]. [`Memory`] is
//!   the engine inside the process.
//! - [`Fallback`] is the engine around another that answers when that one does not.
//! - [`Clock`] tells the time; [`ManualClock`] is turned by hand.
//! - `conformance` (a feature) holds any engine to the same claims.

#![warn(clippy::cast_possible_truncation, clippy::float_arithmetic)]

mod address;
mod calendar;
mod call;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod decision;
mod engine;
mod fallback;
mod key;
mod limiter;
mod memory;
pub mod policy;
mod rule;

/// The README's examples are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

pub use address::{Client, InvalidNetwork, Network};
pub use call::{Call, CallId, Charge, HoldId, Op};
pub use clock::{Clock, ManualClock, Sleep, SystemClock};
pub use decision::{Decision, Source};
pub use engine::{Answer, Engine, EngineError, Health, Inspection, Refusal};
pub use fallback::{Fallback, StoreEvent};
pub use key::Key;
pub use limiter::{Ask, Asking, Limited, Limiter, Reservation, Reserve, Telling};
pub use memory::{Memory, MemoryBuilder};
pub use policy::{Plan, Policy, PolicyRule, RuleDraft};
pub use rule::{InvalidRule, OnStoreFailure, Rule, RuleLimit};
pub use tidegate_core::{
    Algorithm, CalendarUnit, Cost, Draft, Expiry, InvalidCost, InvalidLimit, Limit, Micros, Moment,
    Outcome, ParseLimitError, Part, Share, Span, Standing, Tick, Verdict, Wait,
};
