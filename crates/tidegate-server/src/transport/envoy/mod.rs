//! Envoy's rate limit service, compatible with envoyproxy/ratelimit, and its rate limit quota
//! service. Imports: auth, caller_deadline, cross_site, listener.

pub(crate) mod error;
pub(crate) mod grpc;
mod health;
pub(crate) mod json;
mod phase;
pub(crate) mod proto;
pub(crate) mod quota;
mod request;
mod response;
pub(crate) mod service;
pub(crate) mod settings;
mod shared_limit;
pub(crate) mod stats;
