//! The Redis protocol: any Redis client works.
//!
//! # Layout
//!
//! - [`frame`]: bytes to commands. [`reply`]: answers to bytes.
//! - [`connection`]: one client. `commands`: what it may ask; `session`: what it has told about
//!   itself. [`offline`]: the same without a connection.

mod commands;
pub mod connection;
pub mod frame;
pub mod offline;
pub mod reply;
mod session;
