//! Tests of the engine on Redis, in one program.
//!
//! Separate programs: `many_processes` and `fake_clock` (start themselves again), `java` (needs a
//! JVM).

#![expect(clippy::unwrap_used, reason = "a test")]

mod abandoned_holds;
mod acl;
mod batch;
mod budgets;
mod changed_limits;
mod checks_script;
mod cluster_failover;
mod cluster_migration;
mod cluster_slots;
mod concurrency_slots;
mod conformance;
mod connect;
mod crash_safety;
mod cross_slot;
mod cross_slot_late_step;
mod cross_slot_shard_failure;
mod cross_slot_step_failure;
mod data_loss;
mod functions;
mod heartbeats;
mod known_script_bugs;
mod lean_log;
mod lean_script;
mod many_holds;
mod named_keys;
mod namespace_secret;
mod out_of_memory;
mod python_client;
mod reference_model;
mod replica_ack;
mod replica_ack_failover;
mod resource_bounds;
mod script_arguments;
mod sentinel_failover;
mod server_cost;
mod shards;
mod stored_versions;
#[cfg(feature = "tls")]
mod tls;
