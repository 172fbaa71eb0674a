//! Tidegate in front of services, and behind clients.
#![doc = include_str!("lib.md")]
//!
//! # Layout
//!
//! - [`RateLimitLayer`] limits the requests to a service; [`layer`] has what belongs to it.
//! - [`key`]: whom a request counts as.
//! - [`headers`] and [`problem`]: what the client is told about its limits.
//! - [`extract`]: who the client is, and which request a proxy asks about.
//! - [`client`]: outgoing calls at a rate that the far side can bear.

pub mod client;
pub mod extract;
pub mod headers;
pub mod key;
pub mod layer;
pub mod problem;

/// The guide's examples are run as tests. One of them is of gRPC.
#[cfg(all(doctest, feature = "axum", feature = "tonic"))]
#[doc = include_str!("../../../docs/middleware.md")]
pub struct Middleware;

pub use client::OutgoingLayer;
pub use key::{Bearer, Claim, ClientIp, Cookie, Everyone, Header, PathParam, Peer, Query};
pub use layer::{KeyedRule, RateLimitLayer, Settle, Spent};
