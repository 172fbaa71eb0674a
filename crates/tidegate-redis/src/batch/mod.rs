//! Sends concurrent checks together, in one script call. Imports: connection, durability, protocol,
//! topology.
//!
//! A check that finds few calls in flight is sent at once. Checks that arrive while others are in
//! flight are queued, and sent as one script call when a reply has arrived: there is no timer, and
//! no check waits for others to arrive. Equal checks are sent as one, with their number. How many
//! calls may be in flight depends on the round trip (`round_trip`).

mod batcher;
mod check;
mod group;
mod queue;
mod round_trip;

pub(crate) use batcher::Batcher;
pub(crate) use check::BatchMode;
