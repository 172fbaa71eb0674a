//! Polls futures that complete at once, without a runtime.

use std::future::IntoFuture;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The output of a future that is ready at once, as all calls of `Memory` are.
pub fn now_or_panic<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is not ready at once"),
    }
}
