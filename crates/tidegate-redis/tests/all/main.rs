//! The engine on Redis, from all sides. One program is built faster than thirty.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../support/asking.rs"]
mod asking;
#[path = "../support/certificates.rs"]
mod certificates;
#[allow(dead_code, reason = "only its words are of interest")]
#[path = "../../src/classify.rs"]
mod classify;
#[path = "../support/cluster.rs"]
mod cluster;
#[path = "../support/fake.rs"]
mod fake;
#[path = "../support/ledger.rs"]
mod ledger;
#[path = "../support/replicas.rs"]
mod replicas;
#[path = "../support/sentinel.rs"]
mod sentinel;
#[path = "../support/server.rs"]
mod server;
#[path = "../support/spread.rs"]
mod spread;
#[path = "../support/traffic.rs"]
mod traffic;

mod acl;
mod across;
mod across_late;
mod arguments;
mod batch;
mod batch_script;
mod bounds;
mod cluster_across;
mod cluster_across_steps;
mod cluster_failover;
mod cluster_migration;
mod cluster_slots;
mod conformance;
mod connect;
mod enter;
mod error_answers;
mod full;
mod keys;
mod mistakes;
mod other_languages;
mod replicated;
mod replicated_failover;
mod resets;
mod sentinel_failover;
mod shards;
mod tls;
mod unheard;
