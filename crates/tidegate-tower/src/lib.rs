//! Tidegate at the door of an HTTP service.
//!
//! # Layout
//!
//! - [`extract`]: who the client is, and which request a proxy asks about.
//! - [`headers`]: what the client is told about its limits.

pub mod extract;
pub mod headers;
