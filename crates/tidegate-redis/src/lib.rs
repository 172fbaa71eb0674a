//! Tidegate on Redis and Valkey: the same arithmetic in Lua, one atomic script per decision.
//!
//! ```no_run
//! use tidegate::{Breaker, Fallback, Limit, Limiter};
//! use tidegate_redis::Redis;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = Redis::builder("redis://127.0.0.1:6379").build()?;
//! // Every process with this limit and this Redis shares its counts. While Redis does not reply,
//! // each process counts by itself at half of the limit.
//! let store = Fallback::new(Breaker::new(redis));
//! let limiter = Limiter::new(store, "100/s burst 20".parse::<Limit>()?);
//! let decision = limiter.check("user-42").await?;
//! println!("{}, decided by {}", decision.allowed(), decision.source.name());
//! # Ok(())
//! # }
//! ```
//!
//! [`Redis`] is the engine, and [`RedisUrl`] the address of its servers. [`decide_script`],
//! [`checks_script`], [`lean_script`], [`lean_log_script`] and [`function_library`] are the
//! scripts, for clients in other languages. [`RedisClient`] serves limiters with a foreign key
//! layout, [`redisson`] and [`spring`], which are shared with Java.
//!
//! # Layout
//!
//! Each module imports only modules above it in this list.
//!
//! - `connection`: URL, TLS, dialing, handshake, the supervised connection, errors of a server.
//! - `durability`: confirmation by replicas, and detection of data loss.
//! - `topology`: hash slots, Cluster, Sentinel, and the router of commands.
//! - `protocol`: scripts, keys, requests and replies, and how a script is sent.
//! - `batch`: concurrent checks in one script call.
//! - `executor`: runs requests until they are decided. `cross_slot`: calls over several slots.
//! - `engine` and `builder`: [`Redis`] and its settings.
//! - `runtime_hash`: run-time rules and overrides of a fleet.
//! - `compat`: limiters of Redisson and Spring.

mod batch;
mod builder;
mod compat;
mod connection;
mod cross_slot;
mod durability;
mod engine;
mod executor;
mod protocol;
mod runtime_hash;
mod topology;

/// Runs the examples of the documentation as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/operate/redis.md")]
#[doc = include_str!("../../../docs/operate/redis-cluster.md")]
#[doc = include_str!("../../../docs/use/redisson.md")]
#[doc = include_str!("../../../docs/use/choosing-a-limit.md")]
#[doc = include_str!("../../../docs/understand/reliability.md")]
pub struct Documentation;

pub use crate::compat::client::{AcquireDecision, RedisClient};
pub use crate::connection::tls::InvalidTls;
pub use crate::connection::url::{InvalidUrl, RedisUrl};
pub use crate::protocol::scripts::{
    checks_script, decide_script, function_library, lean_log_script, lean_script,
};
pub use builder::{InvalidSettings, RedisBuilder};
pub use compat::{redisson, spring};
pub use engine::Redis;
pub use runtime_hash::{RuntimeHash, RuntimeVersion, RuntimeWrite};
