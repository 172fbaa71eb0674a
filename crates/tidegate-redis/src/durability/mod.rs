//! Replica confirmation (`WAIT`) and detection of data loss. Imports: connection.

pub(crate) mod data_loss;
pub(crate) mod replica_ack;
pub(crate) mod unconfirmed;
