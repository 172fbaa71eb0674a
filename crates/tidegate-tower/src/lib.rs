//! Rate limiting as tower middleware: for services, and for clients.
#![doc = include_str!("lib.md")]
//!
//! # Layout
//!
//! Each module imports only modules above it in this list.
//!
//! - [`extract`] finds the client address and the original request behind proxies.
//! - [`key`] finds the key that a request is counted under.
//! - [`policy_names`], [`headers`] and [`problem`] report limits and denials to the client.
//! - [`RateLimitLayer`] and [`layer`] limit the requests to a service.
//! - [`client`] limits outgoing calls and honours the rate-limit headers of the upstream. It does
//!   not import `layer`.

pub mod client;
pub mod extract;
pub mod headers;
pub mod key;
pub mod layer;
pub mod policy_names;
pub mod problem;

/// The examples of the guide, run as doc tests. One of them uses gRPC.
#[cfg(all(doctest, feature = "axum", feature = "tonic"))]
#[doc = include_str!("../../../docs/use/tower.md")]
pub struct Middleware;

pub use client::OutgoingLayer;
pub use key::{Bearer, Claim, ClientIp, Cookie, Global, Header, PathParam, Peer, Query};
pub use layer::{CostMeter, KeyedRule, RateLimitLayer, Settlement};
