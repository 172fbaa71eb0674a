//! The layer in front of services: over sockets, and on a clock that is turned by hand wherever time
//! matters.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../support/engines.rs"]
mod engines;
#[path = "../support/hall.rs"]
mod hall;
#[path = "../support/site.rs"]
mod site;
#[path = "../support/store.rs"]
mod store;
#[path = "../support/tasks.rs"]
mod tasks;

mod addresses;
mod bodies;
mod leaving;
mod places;
mod policies;
mod rules;
mod settling;
mod told;
mod waiting;
