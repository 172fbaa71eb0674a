//! Rate limiting: decides whether a request may pass now and, if not, when to retry.
//!
//! ```
//! use tidegate::{Limit, Limiter, Memory, Outcome};
//!
//! let limiter = Limiter::new(Memory::default(), "2/m".parse::<Limit>()?);
//! assert!(limiter.allow("user-42")?);
//! assert!(limiter.allow("user-42")?);
//!
//! let third = limiter.check_now("user-42")?;
//! let Outcome::RetryAfter(wait) = third.outcome() else { panic!("{third:?}") };
//! assert!(wait.get() <= 30_000_000, "half a minute: one of two permits a minute");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `check_now` and `allow` need no runtime. `check(..).await` works on every engine;
//! `acquire` waits for a permit, `enter` takes a concurrency slot, and `reserve` holds permits
//! until the cost is known. For a fleet, use the engine of `tidegate-redis` instead of
//! [`Memory`]; for axum, hyper and tonic, `tidegate-tower`.
//!
//! # Layout
//!
//! Each module imports only modules above it in this list.
//!
//! - `key`: [`Key`]. `fingerprint`: hashes of keys. `network`: [`Network`] and [`ClientNetwork`].
//!   `calendar`: calendar windows. `sync`: the locks that tests replace.
//! - `clock`: [`Clock`], [`SystemClock`], [`ManualClock`].
//! - `engine`: the contract of a store. An [`Engine`] decides a [`Call`] in one atomic step and
//!   returns a [`Decision`]. [`Limit`] (from `tidegate-core`) is the arithmetic of one limit; a
//!   [`Rule`] is a named list of limits.
//! - `memory`: [`Memory`], the in-process engine.
//! - `layers`: engines around an engine. [`Breaker`] stops calls to a failing store, [`DenyCache`]
//!   caches denials, [`Lease`] spends borrowed permits, [`Fallback`] decides locally while the
//!   store fails.
//! - [`policy`]: [`Policy`], the rules that apply to a request and the keys that they count.
//! - [`pricing`]: prices of language models, and what a call costs in requests, tokens and money.
//! - `limiter`: [`Limiter`], the interface for programs: check, wait, enter, reserve. A [`Slot`] is
//!   a held concurrency slot. `rate_limit` (feature `macros`) limits an async function.
//! - `simulate` (feature): evaluates limits on generated traffic.
//! - `conformance` (feature): a test suite for any engine.

#![warn(clippy::cast_possible_truncation, clippy::float_arithmetic)]

mod calendar;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod engine;
mod fingerprint;
mod key;
mod layers;
mod limiter;
mod memory;
mod network;
pub mod policy;
pub mod pricing;
#[cfg(feature = "simulate")]
pub mod simulate;
mod sync;

/// Runs the examples of these pages as tests. One of them uses the attribute.
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/start/rust.md")]
pub struct Readme;

pub use clock::{Clock, ManualClock, Sleep, SystemClock};
pub use engine::{
    Call, Charge, Circuit, Costs, Decision, DecisionDetails, Engine, EngineError, EngineFuture,
    Extension, ForeignState, Health, HeldPart, HoldId, HoldKind, HoldSpec, IdempotencyKey,
    Inspection, InvalidPlans, InvalidRule, KindUse, LeaseSize, MemoryFull, MemoryKind, MemoryUse,
    OnReserve, OnStoreFailure, Op, Quantity, Refusal, Rule, RuleCost, RuleLimit, SettledCost,
    Shards, Source, Unit, UnitCharge, UnitCost, UnknownPlan,
};
pub use key::Key;
pub use layers::{
    Breaker, BreakerEvent, CallerDeadline, DenyCache, Fallback, FleetSize, Lease, StoreEvent,
};
#[cfg(feature = "macros")]
#[doc(hidden)]
pub use limiter::attribute as __attribute;
pub use limiter::{
    Check, Enter, Entered, Extend, GlobalInUse, Limited, Limiter, Reservation, Reserve, Settled,
    Slot, Update,
};
pub use memory::{Memory, MemoryBuilder};
pub use network::{ClientNetwork, InvalidNetwork, Network};
pub use policy::{Plan, Policy, PolicyRule, RuleCheck, RuleDraft};
pub use tidegate_core::{
    Algorithm, CalendarUnit, Cost, Expiry, Fraction, InvalidCost, InvalidLimit, Limit,
    LimitBuilder, LimitField, Micros, Moment, Outcome, ParseLimitError, RecoveryPoint, Span,
    Standing, Tick, Verdict, Wait, did_you_mean,
};
#[cfg(feature = "macros")]
pub use tidegate_macros::rate_limit;
