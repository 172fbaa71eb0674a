//! Engines with chosen replies, delays and failures. Imports: now_or_never.

mod scripted;
mod switchable;
mod timing;

pub use scripted::{BreakerFixture, RULE, ScriptedEngine, StoreMode, charge, limit};
pub use switchable::SwitchableEngine;
pub use timing::{RacingEngine, SlowEngine};
