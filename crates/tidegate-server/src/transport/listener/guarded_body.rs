//! A response body that holds a guard until it is sent.
//!
//! The body is sent in short frames. HTTP/2 takes over a whole frame once the client's window has
//! room for one byte. In a single frame, the body would release its guard and stay in memory for as
//! long as the client does not read it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Longest frame, in bytes.
const MAX_FRAME: usize = 8 << 10;

/// A body with a guard that is dropped along with it.
#[derive(Debug)]
pub(crate) struct GuardedBody<B, T> {
    body: B,
    /// The rest of a frame that was too long.
    rest: Bytes,
    _guard: T,
}

impl<B, T> GuardedBody<B, T> {
    pub(crate) fn new(body: B, guard: T) -> Self {
        Self { body, rest: Bytes::new(), _guard: guard }
    }
}

impl<B: Body<Data = Bytes> + Unpin, T: Unpin> Body for GuardedBody<B, T> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.len() > MAX_FRAME => this.rest = data,
                    Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let data = this.rest.split_to(this.rest.len().min(MAX_FRAME));
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper().and_then(|upper| upper.checked_add(rest)) {
            hint.set_upper(upper);
        }
        hint
    }
}
