//! Redis protocol (RESP2 and RESP3). Imports: auth, listener.

mod commands;
pub(crate) mod connection;
pub(crate) mod frame;
pub(crate) mod reply;
mod session;
pub(crate) mod testing;
mod transaction;
