//! Our own mistakes: whoever asked is answered, is not let through, and the server lives on.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use tracing::error;

use super::seldom::Seldom;

/// Somebody's question ended in a panic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Panicked;

/// Does the work, or tells that it panicked.
///
/// What it leaves behind is sound: every lock of ours is taken whether it is poisoned or not, since nothing is written
/// under one that a panic could leave half done.
pub async fn caught<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    })
    .await
}

/// From now on panics are log lines like any other: one line each, without control characters, and not too many.
pub fn log_panics() {
    static SELDOM: Seldom = Seldom::new();
    std::panic::set_hook(Box::new(|panic| {
        if let Some(kept_back) = SELDOM.pass() {
            log(panic, kept_back);
        }
    }));
}

fn log(panic: &PanicHookInfo<'_>, kept_back: u64) {
    let place = panic.location().map(|place| format!("{}:{}", place.file(), place.line()));
    let place = place.unwrap_or_default();
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or(payload.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
    error!(place, text, kept_back, "panicked; this is a mistake in tidegate, please report it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_wherever_it_happens() {
        assert_eq!(caught(async { 5 }).await, Ok(5));
        let later = async {
            tokio::task::yield_now().await;
            panic!("on purpose");
        };
        assert_eq!(caught::<()>(later).await, Err(Panicked));
    }
}
