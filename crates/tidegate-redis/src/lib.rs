//! Tidegate on Redis and Valkey: the same arithmetic in Lua, one atomic script per decision.
//!
//! # Layout
//!
//! - [`Redis`] is the engine: `engine` asks, `request` puts calls into the words of the scripts,
//!   `reply` reads what they answer. `batch` sends checks together that come together. `secret` agrees on what keys the hash of subjects, and `seen`
//!   remembers which states have holds.
//! - `script` puts the files of `lua/` together, and [`script_text`] shows them to clients in other
//!   languages. `keys` says what lies where, under which name.
//! - [`RedisUrl`] is what an address says, `address` the same with its files read. `dial` makes a
//!   connection of it, encrypted by `tls`; `greeting` looks whether the server will do, `link` makes the
//!   connection again when it is lost, and `route` finds the one whose server has a `slot`. `sentinel` knows where the
//!   primary is, `cluster` which server has a slot, and `shards` which of them a call asks.
//! - `classify` says what an error of a server means. `resets` counts how often a server may have lost what it had.
//!   `confirm` has replicas confirm what was written, if it is to count only then.
//! - [`Client`] runs scripts for limiters that other programs have laid out, on the engine's connections:
//!   [`redisson`] and [`spring`] share theirs with Java.
//! - `across` decides calls whose subjects lie in several slots. `unheard` ends holds whose answer nobody got.

mod across;
mod address;
mod batch;
mod builder;
mod classify;
mod client;
mod cluster;
mod confirm;
mod dial;
mod engine;
mod greeting;
mod keys;
mod link;
pub mod redisson;
mod reply;
mod request;
mod resets;
mod route;
mod script;
mod secret;
mod seen;
mod sentinel;
mod shards;
mod slot;
pub mod spring;
mod tls;
mod unheard;
mod url;

/// The examples in the documentation are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/redis.md")]
#[doc = include_str!("../../../docs/cluster.md")]
#[doc = include_str!("../../../docs/redisson.md")]
#[doc = include_str!("../../../docs/choosing.md")]
#[doc = include_str!("../../../docs/reliability.md")]
pub struct Documentation;

pub use builder::{InvalidSettings, RedisBuilder};
pub use client::{Client, Taken};
pub use engine::Redis;
pub use script::{checks_text, script_text};
pub use tls::InvalidTls;
pub use url::{InvalidUrl, RedisUrl};
