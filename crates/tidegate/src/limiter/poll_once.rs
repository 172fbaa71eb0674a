//! Futures that a synchronous engine completes at once.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The result of a future that is ready at its first poll. On an engine that has to wait, the poll
/// would send the call.
pub(super) fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
