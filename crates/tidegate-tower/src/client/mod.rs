//! The outbound layer: limits outgoing calls and honours the rate-limit headers of the upstream.
//! Imports: extract, headers.
//!
//! ```
//! use std::time::Duration;
//! use http::Request;
//! use tidegate::{Limit, Limiter, Memory};
//! use tidegate_tower::client::OutgoingLayer;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! # use http::Response;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let client = tower::service_fn(|_: Request<String>| async {
//! #     Ok::<_, std::io::Error>(Response::new(String::new()))
//! # });
//!
//! let limiter = Limiter::new(Memory::default(), "10/s".parse::<Limit>()?);
//! let mut client = ServiceBuilder::new()
//!     .layer(OutgoingLayer::new(limiter).wait(Duration::from_secs(5)))
//!     .service(client); // hyper-util, reqwest, tonic: any HTTP client
//!
//! let request = Request::get("https://api.example.com/items").body(String::new())?;
//! let response = client.ready().await?.call(request).await?;
//! # let _ = response;
//! # Ok(())
//! # }
//! ```
//!
//! Before a call is sent, it takes a permit of the local limit, first come first served. The limit
//! counts per host, unless [`key`](OutgoingLayer::key) is set. While the upstream is paused, calls
//! to it wait. A call that cannot be sent within [`wait`](OutgoingLayer::wait) fails with
//! [`NotSent`], at once if the wait would be too long. [`OutgoingLayer::without_limit`] has no
//! local limit.
//!
//! The feature `reqwest` supports `reqwest::Client`. Waiting needs a Tokio runtime with a timer.
//!
//! # What is honoured
//!
//! [`advice`] reads the headers of a response; it can be used alone. The rules for a pause are:
//!
//! - **The later end wins.** Responses can arrive out of order, so no response ends or shortens a
//!   pause; only time does. No pause is longer than [`max_pause`](OutgoingLayer::max_pause).
//! - **A rejection without a hint**, 429 or 503, causes a pause of 1 s. Each further one in a row
//!   doubles it, up to 60 s. Up to half of it is added at random. Rejections of calls that were in
//!   flight together count once. A response that is neither a rejection nor another 5xx ends the
//!   row.
//! - **After a pause, one call is sent**, and for each served call two more. Otherwise, thousands
//!   of calls that waited for the same instant would cause the next rejection. A call that takes
//!   longer than a second counts as served; one that fails lets the next one start. With a local
//!   limit, each call also takes a permit then: permits are not saved up during a pause.
//! - **Keys are independent.** A pause of one upstream does not delay calls to another. At most
//!   [`MAX_KEYS`](OutgoingLayer::MAX_KEYS) upstreams are tracked.
//!
//! # What it does not do
//!
//! It does not retry. Put tower's `retry` outside: a retried call waits here like any other. It
//! does not bound the number of waiting calls; use `concurrency_limit` outside. It reads the
//! headers of responses and not their trailers, so a gRPC pushback is read only in a trailers-only
//! response, which rejected calls have. Redirects that the inner client follows are one call.
//!
//! # Layout
//!
//! - [`OutgoingLayer`] (`layer`) builds the `settings`; [`Outgoing`] (`service`) sends.
//! - [`advice`] reads responses. `backoff` is the state of one upstream, `wait` the queue of paused
//!   calls.
//! - [`HttpRequest`], [`HttpResponse`] and [`Head`] (`message`) abstract over HTTP types.
//! - [`NotSent`] (`error`) is the error of a call that was not sent.

mod advice;
mod backoff;
mod error;
mod layer;
mod message;
mod service;
mod settings;
mod wait;

pub use advice::{Advice, Hint, advice};
pub use error::NotSent;
pub use layer::OutgoingLayer;
pub use message::{Head, HttpRequest, HttpResponse};
pub use service::{Outgoing, OutgoingFuture};

/// An error of the inner client, or [`NotSent`].
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
