//! Memory budget for requests that are not complete yet, per listener.
//!
//! Every request has a size cap. A thousand clients that stop just below it would still fill the
//! memory, so that they share a budget. Short requests do not count, and each listener has a
//! separate budget.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use tower::BoxError;

use crate::observe::metrics::ListenerKind;

/// Bytes of each request that do not count.
pub(crate) const FREE: usize = 4 << 10;
/// Budget of one listener, in bytes.
const MAX_BYTES: usize = 5 << 20;

static LEFT: [AtomicUsize; ListenerKind::ALL.len()] =
    [const { AtomicUsize::new(MAX_BYTES) }; ListenerKind::ALL.len()];

/// Share of one partial request in the budget of its listener; returned on drop.
#[derive(Debug)]
pub(crate) struct PartialRequestBudget {
    listener: ListenerKind,
    taken: usize,
}

impl PartialRequestBudget {
    /// A request of length 0.
    pub(crate) const fn new(listener: ListenerKind) -> Self {
        Self { listener, taken: 0 }
    }

    /// Sets the length received so far. Fails if the budget is exhausted, and then takes nothing.
    pub(crate) fn set_len(&mut self, len: usize) -> Result<(), RequestBudgetExhausted> {
        let wanted = len.saturating_sub(FREE);
        if wanted > self.taken {
            let more = wanted - self.taken;
            let take = |left: usize| left.checked_sub(more);
            let taken = self.left().fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            taken.map_err(|_| RequestBudgetExhausted)?;
        } else if wanted < self.taken {
            self.left().fetch_add(self.taken - wanted, Ordering::Relaxed);
        }
        self.taken = wanted;
        Ok(())
    }

    fn left(&self) -> &'static AtomicUsize {
        left(self.listener)
    }
}

impl Drop for PartialRequestBudget {
    fn drop(&mut self) {
        self.left().fetch_add(self.taken, Ordering::Relaxed);
    }
}

fn left(listener: ListenerKind) -> &'static AtomicUsize {
    match listener {
        ListenerKind::Http => &LEFT[0],
        ListenerKind::Resp => &LEFT[1],
        ListenerKind::Grpc => &LEFT[2],
    }
}

/// The budget of the listener is used up by other requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestBudgetExhausted;

impl RequestBudgetExhausted {
    /// The error as a RESP reply.
    pub(crate) const REPLY: &str =
        "ERR too many large requests in progress; retry, or send less at once";
}

impl fmt::Display for RequestBudgetExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many large requests in progress; retry, or send less at once")
    }
}

impl std::error::Error for RequestBudgetExhausted {}

/// A body that counts against the budget, and fails with [`RequestBudgetExhausted`].
#[derive(Debug)]
pub(crate) struct BudgetedBody<B> {
    body: B,
    len: usize,
    budget: PartialRequestBudget,
}

impl<B> BudgetedBody<B> {
    pub(crate) fn new(body: B, listener: ListenerKind) -> Self {
        Self { body, len: 0, budget: PartialRequestBudget::new(listener) }
    }
}

impl<B> Body for BudgetedBody<B>
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
                self.budget.set_len(len)?;
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
    fn long_requests_share_the_budget_and_short_ones_do_not_count() {
        let new = || PartialRequestBudget::new(ListenerKind::Resp);
        let mut all: Vec<PartialRequestBudget> = Vec::new();
        let mut full = new();
        assert_eq!(
            full.set_len(FREE + MAX_BYTES + 1),
            Err(RequestBudgetExhausted),
            "nothing is taken"
        );
        assert_eq!(full.set_len(FREE + MAX_BYTES), Ok(()));
        for _ in 0..1_000 {
            let mut short = new();
            assert_eq!(short.set_len(FREE), Ok(()));
            assert_eq!(short.set_len(FREE + 1), Err(RequestBudgetExhausted));
            all.push(short);
        }
        for other in [ListenerKind::Http, ListenerKind::Grpc] {
            assert_eq!(
                PartialRequestBudget::new(other).set_len(FREE + MAX_BYTES),
                Ok(()),
                "other listeners have their own budget"
            );
        }
        assert_eq!(full.set_len(FREE), Ok(()), "the request is complete, and the next one begins");
        assert_eq!(all[0].set_len(FREE + MAX_BYTES), Ok(()));
        drop(all);
        assert_eq!(full.set_len(FREE + MAX_BYTES), Ok(()), "a drop returns the budget");
        drop(full);
        assert_eq!(left(ListenerKind::Resp).load(Ordering::Relaxed), MAX_BYTES);
    }
}
