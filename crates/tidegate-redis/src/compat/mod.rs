//! Limiters of other libraries: Redisson and Spring Cloud Gateway, and the client they use.
//! Imports: connection, durability, engine, protocol, topology.

pub(crate) mod client;
pub mod redisson;
pub mod spring;
pub(crate) mod wait_queue;
pub(crate) mod wait_ticket;
