//! Bodies of responses: one that says why not, and one that keeps a place until it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full};
use pin_project_lite::pin_project;
use tidegate::{Cost, Slot};

use super::settle::{How, Settle, Spent};

/// A body that a layer can make to say why not, and that can keep a [`Guard`] until it ends.
///
/// It is there for the bodies of axum and tonic, and for those that `http-body-util` boxes. Others are
/// wrapped, as [`LimitedBody`], by [`RateLimitLayer::any_body`](super::RateLimitLayer::any_body).
#[diagnostic::on_unimplemented(
    message = "the layer cannot answer with a `{Self}`",
    note = "call `.any_body()` on the layer: it then answers with a `LimitedBody<{Self}>`"
)]
pub trait ResponseBody: Body + Sized {
    /// A body of these bytes.
    fn of_bytes(bytes: Bytes) -> Self;

    /// The same body, keeping `guard` until it ends or is dropped.
    fn guarded(self, guard: Guard) -> Self;
}

#[cfg(feature = "axum")]
impl ResponseBody for axum::body::Body {
    fn of_bytes(bytes: Bytes) -> Self {
        bytes.into()
    }

    fn guarded(self, guard: Guard) -> Self {
        Self::new(LimitedBody::guarding(self, guard))
    }
}

#[cfg(feature = "tonic")]
impl ResponseBody for tonic::body::Body {
    fn of_bytes(bytes: Bytes) -> Self {
        Self::new(Full::new(bytes))
    }

    fn guarded(self, guard: Guard) -> Self {
        Self::new(LimitedBody::guarding(self, guard))
    }
}

impl<E: 'static> ResponseBody for UnsyncBoxBody<Bytes, E> {
    fn of_bytes(bytes: Bytes) -> Self {
        Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
    }

    fn guarded(self, guard: Guard) -> Self {
        LimitedBody::guarding(self, guard).boxed_unsync()
    }
}

impl<E: 'static> ResponseBody for BoxBody<Bytes, E> {
    fn of_bytes(bytes: Bytes) -> Self {
        Full::new(bytes).map_err(|never| match never {}).boxed()
    }

    fn guarded(self, guard: Guard) -> Self {
        LimitedBody::guarding(self, guard).boxed()
    }
}

impl<B: Body<Data = Bytes>> ResponseBody for LimitedBody<B> {
    fn of_bytes(bytes: Bytes) -> Self {
        Self { body: Whose::Own { bytes: Some(bytes) }, guard: None }
    }

    fn guarded(mut self, guard: Guard) -> Self {
        // Another layer may have put one here.
        let guard = guard.unless_ended(&self).map(|guard| guard.after(self.guard.take()));
        Self { guard: guard.or(self.guard), body: self.body }
    }
}

pin_project! {
    /// The body of a service, or why its request was turned away.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        body: Whose<B>,
        guard: Option<Guard>,
    }
}

pin_project! {
    #[project = WhoseProjected]
    #[derive(Debug)]
    enum Whose<B> {
        Service { #[pin] body: B },
        Own { bytes: Option<Bytes> },
    }
}

impl<B: Body> LimitedBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self { body: Whose::Service { body }, guard: None }
    }

    fn guarding(body: B, guard: Guard) -> Self {
        let guard = guard.unless_ended(&body);
        Self { body: Whose::Service { body }, guard }
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let frame = match this.body.as_mut().project() {
            WhoseProjected::Service { body } => ready!(body.poll_frame(cx)),
            WhoseProjected::Own { bytes } => {
                bytes.take().filter(Bytes::has_remaining).map(|bytes| Ok(Frame::data(bytes)))
            }
        };
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        if let (Some(guard), Some(data)) = (&mut *this.guard, data) {
            guard.saw(data.len());
        }
        let ended = match &frame {
            None => true,
            Some(Ok(_)) => this.body.is_end_stream(),
            Some(Err(_)) => false,
        };
        // Servers drop a body that has ended, but need not do so at once.
        drop(this.guard.take_if(|_| ended));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Whose::Service { body } => body.size_hint(),
            Whose::Own { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

impl<B: Body> Whose<B> {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Service { body } => body.is_end_stream(),
            Self::Own { bytes } => bytes.as_ref().is_none_or(Bytes::is_empty),
        }
    }
}

/// What a request keeps until it is over: its places, and what is to be charged then.
#[derive(Debug)]
pub struct Guard {
    slot: Slot,
    due: Due,
    /// Whether there is a response: then it is known what it costs, or will be.
    responded: bool,
    /// That of another layer on the same body.
    other: Option<Box<Self>>,
}

#[derive(Debug)]
enum Due {
    /// Nothing: there are only places to give back.
    Nothing,
    /// What the head of the response will say.
    Head(Settle),
    /// So much, or what was set aside.
    Known(Option<u64>),
    Bytes {
        each: u64,
        seen: u64,
    },
    Spent(Spent),
}

impl Guard {
    pub(super) fn new(slot: Slot, settle: Option<Settle>) -> Self {
        let due = match settle {
            None => Due::Nothing,
            Some(Settle(How::BodyBytes(each))) => Due::Bytes { each: each.get(), seen: 0 },
            Some(Settle(How::Spent)) => Due::Spent(Spent::default()),
            Some(settle) => Due::Head(settle),
        };
        Self { slot, due, responded: false, other: None }
    }

    /// The same, with another that ends together with it.
    fn after(mut self, other: Option<Self>) -> Self {
        self.other = other.map(Box::new);
        self
    }

    /// The service has failed, which is not the client's doing.
    pub(super) fn forgive(mut self) {
        self.due = Due::Known(Some(0));
    }

    /// The account of what was spent, if it settles by that.
    pub(super) fn spent(&self) -> Option<Spent> {
        match &self.due {
            Due::Spent(spent) => Some(spent.clone()),
            _ => None,
        }
    }

    /// There is a response.
    pub(super) fn respond<B: ResponseBody>(mut self, response: Response<B>) -> Response<B> {
        let (head, body) = response.into_parts();
        self.responded = true;
        if let Due::Head(Settle(How::Response(cost))) = &self.due {
            self.due = Due::Known(cost(&head));
        }
        Response::from_parts(head, body.guarded(self))
    }

    fn saw(&mut self, len: usize) {
        if let Due::Bytes { seen, .. } = &mut self.due {
            *seen = seen.saturating_add(len as u64);
        }
        if let Some(other) = &mut self.other {
            other.saw(len);
        }
    }

    /// The same, unless there is nothing more to come.
    fn unless_ended(self, body: &impl Body) -> Option<Self> {
        (!body.is_end_stream()).then_some(self)
    }
}

/// Charges what is known, and what was set aside if nothing is, whether or not the body has come to its
/// end: going away must not be a way to have things for nothing.
impl Drop for Guard {
    fn drop(&mut self) {
        let cost = match &self.due {
            Due::Nothing => Some(0),
            Due::Head(_) => None,
            Due::Known(cost) => *cost,
            Due::Bytes { each, seen } => self.responded.then(|| seen.div_ceil(*each)),
            Due::Spent(spent) => spent.total(),
        };
        // What is more than can be charged at once is charged as far as it can be.
        self.slot.charge_at_end(cost.map(|cost| Cost::new(cost).unwrap_or(Cost::MAX)));
    }
}
