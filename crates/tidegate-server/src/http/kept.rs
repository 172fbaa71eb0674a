//! A body that keeps something until it was taken.
//!
//! It comes in pieces. HTTP/2 takes over a piece as soon as the client has room for one byte of it, so that in one piece
//! a body would be gone from here, and still in memory, however long the client leaves it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// The longest piece in bytes.
const MAX_PIECE: usize = 8 << 10;

/// A body with what is dropped along with it.
#[derive(Debug)]
pub(crate) struct Kept<B, T> {
    body: B,
    /// What is left of the last piece.
    rest: Bytes,
    _with: T,
}

impl<B, T> Kept<B, T> {
    pub(crate) fn new(body: B, with: T) -> Self {
        Self { body, rest: Bytes::new(), _with: with }
    }
}

impl<B: Body<Data = Bytes> + Unpin, T: Unpin> Body for Kept<B, T> {
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
                    Ok(data) if data.len() > MAX_PIECE => this.rest = data,
                    Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(MAX_PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
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
