//! The sections again, every second.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body, Frame};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::super::visitor::Visitor;
use super::view::View;
use super::wrapped;
use crate::http::Door;

/// Events as a body: one is made when the one before was taken, so that nothing piles up.
pub(super) struct Events {
    next: Option<Next>,
    _place: OwnedSemaphorePermit,
}

type Next = Pin<Box<dyn Future<Output = Option<(Bytes, Follower)>> + Send>>;

/// Somebody who looks.
struct Follower {
    door: Door,
    view: View,
    /// What they have shown. A session that ends ends what it has opened.
    shown: HeaderMap,
    ticks: watch::Receiver<u64>,
    /// What they have already.
    told: Vec<Arc<str>>,
    is_first: bool,
}

impl Events {
    pub(super) fn new(
        door: Door,
        view: View,
        shown: HeaderMap,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let ticks = door.service.live().ticks();
        let follower = Follower { door, view, shown, ticks, told: Vec::new(), is_first: true };
        Self { next: Some(Box::pin(follower.next())), _place: place }
    }
}

impl Follower {
    /// The next event, with whom to ask for the one after it; none when the server drains, or they may look no longer.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        // Who is slow in taking one misses those in between.
        if !self.is_first {
            tokio::select! {
                biased;
                () = self.door.drain.begun() => return None,
                changed = self.ticks.changed() => changed.ok()?,
            }
        }
        if !Visitor::of(&self.door, &self.shown).may_look() {
            return None;
        }
        self.is_first = false;
        self.ticks.mark_unchanged();
        let sections = self.door.console.live.sections(&self.door, &self.view).await;
        let mut event = String::from("event: sections\n");
        for (nth, (id, section)) in sections.iter().enumerate() {
            if self.told.get(nth) != Some(section) {
                let html = wrapped(id, section).into_string();
                html.lines().for_each(|line| event.extend(["data: ", line, "\n"]));
            }
        }
        event.push('\n');
        self.told = sections.iter().map(|(_, section)| section.clone()).collect();
        Some((event.into(), self))
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let Some(next) = &mut this.next else { return Poll::Ready(None) };
        let event = ready!(next.as_mut().poll(context));
        let (event, follower) = event.unzip();
        this.next = follower.map(|follower: Follower| -> Next { Box::pin(follower.next()) });
        Poll::Ready(event.map(|event| Ok(Frame::data(event))))
    }
}
