//! Support for the tests of the workspace: real processes, fake servers, clients and checkers.
//!
//! Unpublished. A test crate enables the features it needs.
//!
//! # Layout
//!
//! Each module imports only modules above it in this list.
//!
//! - Without features: [`timing`], [`tasks`], [`now_or_never`], [`engines`], [`bounds`],
//!   [`budget_traffic`]. They import `tidegate` only.
//! - Feature `redis`: [`redis`], [`cluster`], [`sentinel`], [`fake_redis`], [`fake_clock`]. They do
//!   not import `tidegate-redis`, so that its unit tests can use them.
//! - Feature `tidegate-redis`: [`engine`], [`ledger`], [`load`], [`replicas`],
//!   [`sharded_subjects`].
//! - Feature `tls`: [`certificates`].
//! - Feature `http`: [`http`], [`upstream`]. They import `tidegate-tower`.
//! - Feature `grpc`: [`grpc`].
//! - Feature `server`, which imports `tidegate-server`:
//!   - The binary: [`server`], [`listening_process`], [`process`], [`console_blocks`], [`pty`]. In
//!     process: [`server_in_process`], [`resp_listener`].
//!   - Clients: [`raw_http`], [`resp`], [`envoy`], [`tls_client`], [`browser`]. Checks of replies:
//!     `regex`, [`schema`].
//!   - A control plane in process: [`control_plane`].
//!   - Other programs: `pip_program`, [`proxy`], [`quota_envoy`], [`real_envoy`],
//!     [`slow_target`].

#![allow(missing_docs, reason = "unpublished: a doc comment says what the name cannot")]
#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

pub mod bounds;
pub mod budget_traffic;
pub mod engines;
pub mod now_or_never;
pub mod tasks;
pub mod timing;

#[cfg(feature = "redis")]
pub mod cluster;
#[cfg(feature = "redis")]
pub mod fake_clock;
#[cfg(feature = "redis")]
pub mod fake_redis;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod sentinel;

#[cfg(feature = "tidegate-redis")]
pub mod engine;
#[cfg(feature = "tidegate-redis")]
pub mod ledger;
#[cfg(feature = "tidegate-redis")]
pub mod load;
#[cfg(feature = "tidegate-redis")]
pub mod replicas;
#[cfg(feature = "tidegate-redis")]
pub mod sharded_subjects;

#[cfg(feature = "tls")]
pub mod certificates;

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "http")]
pub mod upstream;

#[cfg(feature = "grpc")]
pub mod grpc;

#[cfg(feature = "server")]
pub mod browser;
#[cfg(feature = "server")]
pub mod console_blocks;
#[cfg(feature = "server")]
pub mod control_plane;
#[cfg(feature = "server")]
pub mod envoy;
#[cfg(feature = "server")]
pub mod listening_process;
#[cfg(feature = "server")]
mod pip_program;
#[cfg(feature = "server")]
pub mod process;
#[cfg(feature = "server")]
pub mod proxy;
#[cfg(feature = "server")]
pub mod pty;
#[cfg(feature = "server")]
pub mod quota_envoy;
#[cfg(feature = "server")]
pub mod raw_http;
#[cfg(feature = "server")]
pub mod real_envoy;
#[cfg(feature = "server")]
mod regex;
#[cfg(feature = "server")]
pub mod resp;
#[cfg(feature = "server")]
pub mod resp_listener;
#[cfg(feature = "server")]
pub mod schema;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod server_in_process;
#[cfg(feature = "server")]
pub mod slow_target;
#[cfg(feature = "server")]
pub mod tls_client;
