//! The locks and atomics by which threads meet: the standard library's, or those of `shuttle`, which
//! tries many orders of events, under `--cfg shuttle`.
//!
//! Only what is made anew for every run may be of these: a static outlives the runs of a test.

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, atomic};
