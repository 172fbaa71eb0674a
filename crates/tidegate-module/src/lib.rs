//! A native module for Redis and Valkey: `CL.THROTTLE`, `TG.LIMIT` and `TG.DECIDE`.
//!
//! The arithmetic is that of [`tidegate_core`], the values are those of the Lua scripts of
//! `tidegate-redis`, byte for byte: plain strings with a TTL. Clients of the scripts, clients of
//! the module, and replicas without the module share keys. Effects are replicated, not commands.
//!
//! # Layout
//!
//! - `value`: a stored value, and the limit that it begins with.
//! - `call`: what a command needs from the server, and its reply.
//! - `store`: reads a state and writes it back.
//! - `limit_cache`: limits of earlier commands.
//! - `adhoc`: `TG.LIMIT` and `CL.THROTTLE`, limits that come with the call.
//! - `decide`: `TG.DECIDE`, the protocol of `lean.lua`.
//! - `ffi`: the module API. All unsafe code is there.

mod value;

mod call;

mod store;

mod limit_cache;

mod adhoc;
mod decide;

mod ffi;

pub use adhoc::{limit, throttle};
pub use call::{CommandCall, Reply, ReplyResult};
pub use decide::decide;
pub use value::{Found, StoredValue};
