//! The bodies of requests: until when they have to be here, and until when they may go on.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tower::BoxError;

use crate::drain::Drain;

/// A body that fails if it is not all here in time. What is done with it afterwards has its own.
#[derive(Debug)]
pub(super) struct InTime<B> {
    body: B,
    allowed: Duration,
    /// Since when it is waited for. Most bodies come with their head, and are not.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B> InTime<B> {
    pub(super) fn new(body: B, allowed: Duration) -> Self {
        Self { body, allowed, deadline: None }
    }
}

impl<B: Body<Data = Bytes, Error = BoxError> + Unpin> Body for InTime<B> {
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
        deadline.as_mut().poll(context).map(|()| Some(Err(too_late().into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What a client is told that was too late.
pub(super) fn too_late() -> Status {
    Status::deadline_exceeded("the request was too long in coming")
}

/// A body that ends when the server drains and all of it that had arrived is known of, so that whoever listens to it
/// ends as well.
pub(super) struct UntilDrained<B> {
    body: B,
    drained: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<B> UntilDrained<B> {
    pub(super) fn new(body: B, mut drain: Drain) -> Self {
        Self { body, drained: Box::pin(async move { drain.noticed().await }) }
    }
}

impl<B: Body + Unpin> Body for UntilDrained<B> {
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
