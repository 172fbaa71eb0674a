//! A handler that keeps its requests until it is told to let them go, and bodies that come bit by bit.

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

#[derive(Clone)]
pub(crate) struct Hall {
    inside: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    open: watch::Sender<bool>,
}

impl Hall {
    /// Nobody gets out before it is opened.
    pub(crate) fn closed() -> Self {
        Self { inside: Arc::default(), most: Arc::default(), open: watch::Sender::new(false) }
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    pub(crate) fn close(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }

    /// The most that were ever inside.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// A handler.
    pub(crate) async fn stay(self) -> Response {
        let visit = Visit(self.inside.clone());
        self.most.fetch_max(visit.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        "served".into_response()
    }
}

struct Visit(Arc<AtomicUsize>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body that says what it is fed, and ends when nobody feeds it any more.
pub(crate) struct Fed(UnboundedReceiver<Frame<Bytes>>);

/// Feeds a body.
pub(crate) type Feed = UnboundedSender<Frame<Bytes>>;

impl Fed {
    pub(crate) fn new() -> (Feed, Self) {
        let (feed, receiver) = unbounded_channel();
        (feed, Self(receiver))
    }

    /// One for a handler to answer with, once.
    pub(crate) fn kept() -> (Feed, Kept) {
        let (feed, body) = Self::new();
        (feed, Kept(Arc::new(Mutex::new(Some(body)))))
    }

    /// A body that is there already, in these pieces.
    pub(crate) fn of(pieces: &[&'static str]) -> Self {
        let (feed, body) = Self::new();
        pieces.iter().for_each(|piece| say(&feed, piece));
        body
    }
}

/// A body that waits for whoever takes it.
#[derive(Clone)]
pub(crate) struct Kept(Arc<Mutex<Option<Fed>>>);

impl Kept {
    pub(crate) fn take(&self) -> Fed {
        self.0.lock().unwrap().take().unwrap()
    }
}

pub(crate) fn say(feed: &Feed, text: &'static str) {
    feed.send(Frame::data(Bytes::from_static(text.as_bytes()))).unwrap();
}

impl http_body::Body for Fed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

impl IntoResponse for Fed {
    fn into_response(self) -> Response {
        Response::new(Body::new(self))
    }
}
