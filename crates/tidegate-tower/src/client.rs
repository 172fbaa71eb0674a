//! Outgoing calls at a rate the far side can bear.
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
//!     .service(client); // of hyper-util, reqwest or tonic: anything that speaks HTTP
//!
//! let request = Request::get("https://api.example.com/items").body(String::new())?;
//! let response = client.ready().await?.call(request).await?;
//! # let _ = response;
//! # Ok(())
//! # }
//! ```
//!
//! Before it is sent, a call takes a permit of our own limit, per host unless
//! [`key`](OutgoingLayer::key) says otherwise, first come first served. While the far side asks to
//! be left alone, calls to it wait. A call that cannot be sent within [`wait`](OutgoingLayer::wait)
//! is not sent: the error is [`NotSent`], at once if that is known at once.
//! [`OutgoingLayer::heeding`] has no limit of our own.
//!
//! For `reqwest::Client` there is the feature `reqwest`. Waiting needs a Tokio runtime with its
//! timer.
//!
//! # What is honoured
//!
//! [`advice`] says what an answer asks for; it can be used alone. For a pause, the rules are:
//!
//! - **The later end counts.** Answers overtake each other, so no answer ends a pause or cuts it
//!   short; only time does. None is longer than [`max_pause`](OutgoingLayer::max_pause).
//! - **A refusal without a hint**, 429 or 503, is a pause of 1 s, doubled with each in a row up to
//!   60 s, and up to a half more by chance. Refusals of calls that were on their way together count
//!   once. The next call that is answered with neither a refusal nor another 5xx ends the row.
//! - **After a pause, one call goes first**, and for each that is answered well two more. Ten
//!   thousand calls that have waited for the same instant would be the next reason to refuse. A
//!   call that takes longer than a second counts as answered; one that fails lets the next one go.
//!   Where there is a limit of our own, each also takes a permit then: permits are not saved up
//!   during a pause.
//! - **Keys are apart.** What one far side says holds back nobody else. Something is remembered of
//!   at most [`MAX_KEYS`](OutgoingLayer::MAX_KEYS) of them.
//!
//! # What it does not do
//!
//! It does not retry. Put tower's `retry` outside: a call that is tried again waits here like any
//! other. It does not bound how many calls wait, which `concurrency_limit` outside does. It sees
//! the heads of answers and not their trailers, so a gRPC pushback counts where it comes without a
//! body, as it does when a call is refused. Redirects that the client inside follows by itself are
//! one call.
//!
//! # Layout
//!
//! - [`OutgoingLayer`] (`layer`) has the settings, [`Outgoing`] (`service`) sends.
//! - [`advice`] reads answers. `pause` is what is known of one far side, `gate` where calls wait.
//! - [`HttpRequest`], [`HttpResponse`] and [`Head`] (`message`) are what is seen of both.
//! - [`NotSent`] (`error`).

mod advice;
mod error;
mod gate;
mod layer;
mod message;
mod pause;
mod service;

pub use advice::{Advice, Hint, advice};
pub use error::NotSent;
pub use layer::OutgoingLayer;
pub use message::{Head, HttpRequest, HttpResponse};
pub use service::{Outgoing, ResponseFuture};

/// An error of the client inside, or [`NotSent`].
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
