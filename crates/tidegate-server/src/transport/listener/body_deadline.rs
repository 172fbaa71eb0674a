//! Request bodies with a deadline, and bodies that end at shutdown.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tower::BoxError;

use crate::shutdown::Shutdown;

/// A body that fails with [`BodyTimedOut`] if it does not arrive in time.
#[derive(Debug)]
pub(crate) struct DeadlineBody<B> {
    body: B,
    allowed: Duration,
    /// Set at the first wait. Most bodies arrive with their head and need no timer.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B> DeadlineBody<B> {
    pub(crate) fn new(body: B, allowed: Duration) -> Self {
        Self { body, allowed, deadline: None }
    }
}

impl<B: Body<Data = Bytes, Error = BoxError> + Unpin> Body for DeadlineBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep(this.allowed)));
        deadline.as_mut().poll(context).map(|()| Some(Err(BodyTimedOut.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body did not arrive in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BodyTimedOut;

impl fmt::Display for BodyTimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("request body timed out")
    }
}

impl std::error::Error for BodyTimedOut {}

/// A body that ends when the server drains, after the frames that have arrived. The stream that
/// reads it ends with it.
pub(crate) struct ShutdownBody<B> {
    body: B,
    drained: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<B> ShutdownBody<B> {
    pub(crate) fn new(body: B, mut drain: Shutdown) -> Self {
        Self { body, drained: Box::pin(async move { drain.noticed().await }) }
    }
}

impl<B: Body + Unpin> Body for ShutdownBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Pending => this.drained.as_mut().poll(context).map(|()| None),
            ready => ready,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
