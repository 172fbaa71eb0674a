//! Tests of the outbound layer.

mod advice;
mod hyper;
mod layer;
#[cfg(feature = "reqwest")]
mod reqwest;
mod threads;
