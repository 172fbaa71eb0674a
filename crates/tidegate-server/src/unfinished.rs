//! How much is kept of requests that are not all there yet, over all clients of a door.
//!
//! Every request has a bound of its own. A thousand clients that send almost as much, and then nothing, would fill the
//! memory all the same; so they share a bound, too. A short request never meets it, and what clients of one door send
//! takes nothing from another.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use tower::BoxError;

use crate::metrics::Door;

/// Bytes of each request that are not counted.
const FREE: usize = 4 << 10;
/// Bytes beyond those, of all requests through one door together.
const MOST: usize = 5 << 20;

static LEFT: [AtomicUsize; Door::ALL.len()] = [const { AtomicUsize::new(MOST) }; Door::ALL.len()];

/// What one unfinished request takes of its door's room. It gives it back when it is dropped.
#[derive(Debug)]
pub(crate) struct Unfinished {
    door: Door,
    taken: usize,
}

impl Unfinished {
    /// Nothing yet.
    pub(crate) const fn new(door: Door) -> Self {
        Self { door, taken: 0 }
    }

    /// The request has so many bytes by now. Otherwise than for the first of them, there may be no room.
    pub(crate) fn has(&mut self, len: usize) -> Result<(), NoRoom> {
        let wanted = len.saturating_sub(FREE);
        if wanted > self.taken {
            let more = wanted - self.taken;
            let take = |left: usize| left.checked_sub(more);
            let taken = self.left().fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            taken.map_err(|_| NoRoom)?;
        } else if wanted < self.taken {
            self.left().fetch_add(self.taken - wanted, Ordering::Relaxed);
        }
        self.taken = wanted;
        Ok(())
    }

    fn left(&self) -> &'static AtomicUsize {
        left(self.door)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.left().fetch_add(self.taken, Ordering::Relaxed);
    }
}

fn left(door: Door) -> &'static AtomicUsize {
    match door {
        Door::Http => &LEFT[0],
        Door::Resp => &LEFT[1],
        Door::Grpc => &LEFT[2],
    }
}

/// Others have all the room for long requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoRoom;

impl NoRoom {
    /// The same for the Redis protocol.
    pub(crate) const REPLY: &str =
        "ERR too many long requests are on their way; try again, or send less at once";
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many long requests are on their way; try again, or send less at once")
    }
}

impl std::error::Error for NoRoom {}

/// A body that ends with [`NoRoom`] when there is none for the rest of it.
#[derive(Debug)]
pub(crate) struct Counted<B> {
    body: B,
    len: usize,
    unfinished: Unfinished,
}

impl<B> Counted<B> {
    pub(crate) fn new(body: B, door: Door) -> Self {
        Self { body, len: 0, unfinished: Unfinished::new(door) }
    }
}

impl<B> Body for Counted<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        polled.map(|frame| {
            frame.map(|frame| {
                let frame = frame.map_err(Into::into)?;
                self.len += frame.data_ref().map_or(0, Buf::remaining);
                let len = self.len;
                self.unfinished.has(len)?;
                Ok(frame)
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_requests_share_what_there_is_and_short_ones_need_none() {
        let new = || Unfinished::new(Door::Resp);
        let mut all: Vec<Unfinished> = Vec::new();
        let mut full = new();
        assert_eq!(full.has(FREE + MOST + 1), Err(NoRoom), "and nothing is taken");
        assert_eq!(full.has(FREE + MOST), Ok(()));
        for _ in 0..1_000 {
            let mut short = new();
            assert_eq!(short.has(FREE), Ok(()));
            assert_eq!(short.has(FREE + 1), Err(NoRoom));
            all.push(short);
        }
        for other in [Door::Http, Door::Grpc] {
            assert_eq!(Unfinished::new(other).has(FREE + MOST), Ok(()), "another door's own");
        }
        assert_eq!(full.has(FREE), Ok(()), "it is finished, and another begins");
        assert_eq!(all[0].has(FREE + MOST), Ok(()));
        drop(all);
        assert_eq!(full.has(FREE + MOST), Ok(()), "who leaves gives back");
        drop(full);
        assert_eq!(left(Door::Resp).load(Ordering::Relaxed), MOST);
    }
}
