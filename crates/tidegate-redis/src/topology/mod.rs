//! Where commands go: hash slots, Cluster, Sentinel and the router. Imports: connection,
//! durability.

pub(crate) mod cluster;
pub(crate) mod deployment;
pub(crate) mod hash_slot;
pub(crate) mod router;
pub(crate) mod sentinel;
