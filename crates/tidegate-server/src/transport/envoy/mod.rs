//! Envoy's rate limit service, compatible with envoyproxy/ratelimit. Imports: auth,
//! caller_deadline, cross_site, listener.

pub(crate) mod error;
pub(crate) mod grpc;
mod health;
pub(crate) mod json;
mod phase;
pub(crate) mod proto;
mod request;
mod response;
pub(crate) mod service;
pub(crate) mod settings;
pub(crate) mod stats;
