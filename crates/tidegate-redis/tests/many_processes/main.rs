//! Several processes on one Redis. The program starts itself again as the other processes.

#![expect(clippy::unwrap_used, reason = "a test")]

mod fleet;
mod lease;
