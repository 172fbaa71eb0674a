//! Server-sent events, one per second, as a response body.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::problem::HttpProblem;
use super::state::AppState;
use crate::observe::traffic::TrafficStats;
use crate::shutdown::Shutdown;
use crate::transport::listener::request_activity::ResponseTimeout;

/// Longest frame of a response body, in bytes.
const MAX_FRAME: usize = 8 << 10;
/// Media type of a stream.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";

/// The events of one stream.
pub(crate) trait EventSource: Send + 'static {
    /// The event of this second; `Some(None)` skips the second, `None` ends the stream.
    fn event(
        &mut self,
        app: &AppState,
    ) -> impl Future<Output = Option<Option<PendingBytes>>> + Send;
}

/// The unsent rest of a body, with its share of the memory budget.
pub(crate) struct PendingBytes {
    pub(crate) rest: Bytes,
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
}

/// A stream of the events of `source`, until it ends or the server drains.
pub(crate) fn follow(app: AppState, source: impl EventSource) -> Result<Response, HttpProblem> {
    let Some(permit) = app.service.traffic().follow() else {
        let detail =
            format!("{} event streams are open already; retry later", TrafficStats::MAX_STREAMS);
        return Err(HttpProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    };
    let ticks = app.service.traffic().ticks();
    let drain = app.drain.clone();
    let follower = EventFollower { app, drain, source, ticks, is_first: true };
    let body = EventBody { pending: None, next: Some(follower.next()), _permit: Some(permit) };
    let headers = [(CONTENT_TYPE, EVENT_STREAM), (CACHE_CONTROL, "no-store")];
    let mut response = (headers, axum::body::Body::new(body)).into_response();
    response.extensions_mut().insert(ResponseTimeout::Unbounded);
    Ok(response)
}

/// A body of these bytes alone.
pub(crate) fn one(bytes: PendingBytes) -> axum::body::Body {
    axum::body::Body::new(EventBody { pending: Some(bytes), next: None, _permit: None })
}

struct EventFollower<S> {
    app: AppState,
    drain: Shutdown,
    source: S,
    ticks: watch::Receiver<u64>,
    is_first: bool,
}

/// The next event, and the one after it.
struct NextEvent(Pin<Box<EventFuture>>);
type EventFuture = dyn Future<Output = Option<(PendingBytes, NextEvent)>> + Send;

impl<S: EventSource> EventFollower<S> {
    fn next(mut self) -> NextEvent {
        NextEvent(Box::pin(async move {
            loop {
                // A slow reader skips seconds.
                if !self.is_first {
                    tokio::select! {
                        biased;
                        () = self.drain.begun() => return None,
                        changed = self.ticks.changed() => changed.ok()?,
                    }
                }
                self.is_first = false;
                self.ticks.mark_unchanged();
                if let Some(event) = self.source.event(&self.app).await? {
                    return Some((event, self.next()));
                }
            }
        }))
    }
}

/// Events as a body. The next event is made when the one before is sent, so nothing queues up.
struct EventBody {
    pending: Option<PendingBytes>,
    next: Option<NextEvent>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.pending.is_none() {
            let Some(NextEvent(next)) = &mut this.next else { return Poll::Ready(None) };
            (this.pending, this.next) = ready!(next.as_mut().poll(context)).unzip();
        }
        let Some(PendingBytes { rest, .. }) = &mut this.pending else { return Poll::Ready(None) };
        let data = rest.split_to(rest.len().min(MAX_FRAME));
        // Copied: a slice would keep the whole event in memory.
        let data = Bytes::copy_from_slice(&data);
        if rest.is_empty() {
            this.pending = None;
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.pending.is_none() && self.next.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.pending.as_ref().map_or(0, |pending| pending.rest.len() as u64);
        match self.next {
            None => SizeHint::with_exact(rest),
            Some(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn bytes_have_a_length_and_keep_their_permit_until_they_are_sent() {
        let live = TrafficStats::new(tidegate::Micros::ZERO);
        let permit = live.hold(TrafficStats::MAX_HELD);
        assert!(permit.is_some());
        let mut body =
            one(PendingBytes { rest: vec![b'x'; 3 * MAX_FRAME].into(), _permit: permit });
        assert_eq!(body.size_hint().exact(), Some(3 * MAX_FRAME as u64));
        for left in (0..3).rev() {
            assert!(live.hold(1).is_none() && !body.is_end_stream());
            let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(data.len(), MAX_FRAME);
            assert_eq!(body.size_hint().exact(), Some(left * MAX_FRAME as u64));
        }
        assert!(body.is_end_stream() && live.hold(1).is_some());
    }
}
