//! Tidegate on Redis and Valkey: the same arithmetic in Lua, one atomic script per decision.
//!
//! # Layout
//!
//! - [`Redis`] is the engine: `engine` puts calls into the words of the scripts and reads replies.
//! - `script` puts the files of `lua/` together, and [`script_text`] shows them to clients in other
//!   languages. `keys` says what lies where, under which name.
//! - `link` is a connection that comes back. `unheard` cancels holds whose answer nobody got.

mod builder;
mod engine;
mod keys;
mod link;
mod script;
mod unheard;

/// The examples in the documentation are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/redis.md")]
#[doc = include_str!("../../../docs/choosing.md")]
pub struct Documentation;

pub use builder::{InvalidSettings, RedisBuilder};
pub use engine::Redis;
pub use script::script_text;
