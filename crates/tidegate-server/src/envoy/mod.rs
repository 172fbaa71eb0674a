//! Envoy's rate limit service, as a drop-in for envoyproxy/ratelimit.
//!
//! # Layout
//!
//! - [`config`]: their YAML, read unchanged.
//! - [`lookup`]: which limit a descriptor of a request comes under, and what it is counted by.
//! - [`service`]: a request in, a response out. `request`: what is asked of each limit; `response`:
//!   what is told of it.
//! - [`grpc`]: the door that Envoy comes through, with health and reflection. `arrival`: bodies that come in
//!   time. `health`: what is told about it. [`proto`]: its messages.
//!   [`json`]: the same messages in JSON.
//! - [`stats`]: what is counted under envoyproxy/ratelimit's names.

mod arrival;
pub mod config;
pub mod grpc;
mod health;
pub mod json;
pub mod lookup;
pub mod proto;
mod request;
mod response;
pub mod service;
pub mod stats;
