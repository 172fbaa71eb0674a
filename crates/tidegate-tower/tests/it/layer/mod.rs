//! Tests of the inbound layer, over sockets; on a manual clock where time matters.

mod bodies;
mod cancellation;
mod client_ip;
mod concurrency;
#[cfg(feature = "tonic")]
mod grpc;
mod policies;
mod responses;
mod rules;
mod settlement;
mod wait;
