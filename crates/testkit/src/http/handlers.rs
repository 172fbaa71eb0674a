//! A handler that blocks until a test releases it, and bodies fed through a channel.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

/// Counts its requests and blocks them until it is opened.
#[derive(Clone)]
pub struct BlockingHandler {
    in_flight: Arc<AtomicUsize>,
    max_in_flight: Arc<AtomicUsize>,
    open: watch::Sender<bool>,
}

impl BlockingHandler {
    /// Blocks every request until [`BlockingHandler::open`].
    pub fn closed() -> Self {
        Self {
            in_flight: Arc::default(),
            max_in_flight: Arc::default(),
            open: watch::Sender::new(false),
        }
    }

    pub fn open(&self) {
        self.open.send_replace(true);
    }

    pub fn close(&self) {
        self.open.send_replace(false);
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub fn max_in_flight(&self) -> usize {
        self.max_in_flight.load(Ordering::SeqCst)
    }

    pub async fn handle(self) -> Response {
        let guard = InFlightGuard(self.in_flight.clone());
        self.max_in_flight.fetch_max(guard.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        "served".into_response()
    }
}

struct InFlightGuard(Arc<AtomicUsize>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body of the frames sent to its channel. Ends when the sender is dropped.
pub struct ChannelBody(UnboundedReceiver<Frame<Bytes>>);

/// Sends frames to a [`ChannelBody`].
pub type BodySender = UnboundedSender<Frame<Bytes>>;

impl ChannelBody {
    pub fn new() -> (BodySender, Self) {
        let (sender, receiver) = unbounded_channel();
        (sender, Self(receiver))
    }

    /// A body that a handler can return once.
    pub fn take_once() -> (BodySender, TakeOnceBody) {
        let (sender, body) = Self::new();
        (sender, TakeOnceBody(Arc::new(Mutex::new(Some(body)))))
    }

    /// A complete body of these pieces.
    pub fn of(pieces: &[&'static str]) -> Self {
        let (sender, body) = Self::new();
        pieces.iter().for_each(|piece| send_text(&sender, piece));
        body
    }
}

/// Holds a body until it is taken.
#[derive(Clone)]
pub struct TakeOnceBody(Arc<Mutex<Option<ChannelBody>>>);

impl TakeOnceBody {
    pub fn take(&self) -> ChannelBody {
        self.0.lock().unwrap().take().unwrap()
    }
}

pub fn send_text(sender: &BodySender, text: &'static str) {
    sender.send(Frame::data(Bytes::from_static(text.as_bytes()))).unwrap();
}

impl http_body::Body for ChannelBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

impl IntoResponse for ChannelBody {
    fn into_response(self) -> Response {
        Response::new(Body::new(self))
    }
}
