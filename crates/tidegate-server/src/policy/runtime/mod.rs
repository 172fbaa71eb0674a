//! Run-time rules and overrides: fields with stamps, the copy of this server and its merge with the
//! store, the stores and the file. Imports: nothing.
//!
//! - `stamp`: which of two values of a field is newer. `field`: names and values of fields.
//! - `copy`: what this server knows, and how it is merged with what the store has.
//! - `store`: where a fleet keeps the fields. `copy_file`: the last copy on disk.

pub(super) mod copy;
pub(super) mod copy_file;
pub(super) mod field;
pub(super) mod stamp;
pub(super) mod store;
#[cfg(test)]
mod tests;
