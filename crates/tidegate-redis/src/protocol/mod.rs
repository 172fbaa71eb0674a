//! The script protocol: scripts, keys, one encoder, one decoder, and the sender of scripts.
//! Imports: connection, durability, topology.

pub(crate) mod encode;
pub(crate) mod functions;
pub(crate) mod hold_hints;
pub(crate) mod hold_record;
pub(crate) mod keys;
pub(crate) mod namespace_secret;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod scripts;
pub(crate) mod sender;
