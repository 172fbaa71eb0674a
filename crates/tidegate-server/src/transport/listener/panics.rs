//! Catches panics of single requests, and logs them in one line each.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use tracing::error;

use super::log_throttle::LogThrottle;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Panicked;

/// Runs `work`; a panic becomes an error.
///
/// The state after a panic is sound: no code that holds a lock can panic half way through a change,
/// so poisoned locks are used as they are.
pub(crate) async fn catch_panics<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
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

/// Logs panics of the process: one line each, without control characters, throttled.
pub fn log_panics() {
    static THROTTLE: LogThrottle = LogThrottle::new();
    std::panic::set_hook(Box::new(|panic| {
        if let Some(suppressed) = THROTTLE.allow() {
            log(panic, suppressed);
        }
    }));
}

fn log(panic: &PanicHookInfo<'_>, suppressed: u64) {
    let place = panic.location().map(|place| format!("{}:{}", place.file(), place.line()));
    let place = place.unwrap_or_default();
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or(payload.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
    error!(place, text, suppressed, "panicked; this is a bug in tidegate, please report it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_wherever_it_happens() {
        assert_eq!(catch_panics(async { 5 }).await, Ok(5));
        let later = async {
            tokio::task::yield_now().await;
            panic!("on purpose");
        };
        assert_eq!(catch_panics::<()>(later).await, Err(Panicked));
    }
}
