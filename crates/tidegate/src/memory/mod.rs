//! In-process engine. Imports: clock, engine, fingerprint, key, sync.
//!
//! - `state`: shards, holds, overflow buckets, budgets. `builder`: settings. `engine`: the trait.
//! - `fast_path`: checks on packed states. `general_path`: every other call with charges. `settle`,
//!   `extend`: calls about a hold. `flexible_costs`: holds that grant a quantity.
//! - `locked_shards`: shards and cells of a call under lock; overflow buckets when there is no
//!   room.
//! - `shard`, `packed_table`, `cell`, `table`, `id_table`, `records`: what is stored. `slot_index`:
//!   the index of tables. `limit_registry`: limits by number, as packed states name them. `budget`:
//!   bytes, by kind of memory. `rule_records`: how many of a kind each rule has. `prefetch`: the
//!   only unsafe code.

mod budget;
mod builder;
mod cell;
mod engine;
mod extend;
mod fast_path;
mod flexible_costs;
mod general_path;
mod id_table;
mod limit_registry;
mod locked_shards;
mod packed_table;
mod prefetch;
mod records;
mod rule_records;
mod settle;
mod shard;
mod slot_index;
mod state;
mod table;

pub use self::builder::MemoryBuilder;
pub use self::state::Memory;
