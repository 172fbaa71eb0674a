//! Rate limiting as tower middleware: for services, and for clients.
#![doc = include_str!("lib.md")]
//!
//! # Layout
//!
//! - [`RateLimitLayer`] and [`layer`] limit the requests to a service.
//! - [`key`] finds the key that a request is counted under.
//! - [`headers`] and [`problem`] report limits and denials to the client, under [`policy_names`].
//! - [`extract`] finds the client address and the original request behind proxies.
//! - [`client`] limits outgoing calls and honours the rate-limit headers of the upstream.
//!
//! `extract`, `policy_names` and `problem` import no other module; `headers` imports
//! `policy_names`, and `key` imports `extract`; `layer` and `client` import these, but not each
//! other.

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
