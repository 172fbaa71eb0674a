//! Envoy's rate limit quota service: an Envoy reports its usage, and is lent a share of the limit.
//! A holder is a bucket on a stream, since messages name no node.

mod bucket;
pub(crate) mod registry;
pub(crate) mod service;
mod stream;
#[cfg(test)]
mod tests;
