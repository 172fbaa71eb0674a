//! The module in a real server, and its commands on a store in this process.

#![expect(clippy::unwrap_used, reason = "a test")]

mod fixture;
mod memory_call;

mod adhoc_limits;
mod arguments;
mod engine;
mod mixed_cluster;
mod page;
mod persistence;
mod replication;
mod same_as_script;
mod server_rules;
