//! Deadlines, jitter and combinators of futures.

use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::connection::error::CallError;

/// The instant `span` from now, or a year from now if that overflows.
pub(crate) fn deadline_after(span: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(span).unwrap_or(now + Duration::from_secs(86_400 * 365))
}

/// At random between half of `pause` and all of it.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    half + random_below(half)
}

/// At random from zero up to `span`.
pub(crate) fn random_below(span: Duration) -> Duration {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).max(1);
    // Each `RandomState` has its own keys, which is random enough for jitter.
    Duration::from_nanos(RandomState::new().hash_one(()) % nanos)
}

/// Outside a runtime there is no timer, and Tokio would panic.
pub(crate) fn require_runtime() -> Result<(), CallError> {
    if Handle::try_current().is_err() {
        let text = "not called on a tokio runtime; call it on one with time and io enabled";
        return Err(CallError::not_sent(text));
    }
    Ok(())
}

/// The output of the future that completes first.
pub(crate) async fn race<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Pending => other.as_mut().poll(cx),
        ready => ready,
    })
    .await
}

/// The outputs of all futures, in their order, once all have completed.
pub(crate) async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|cx| {
        for (future, output) in pending.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(cx) {
                *output = Some(ready);
            }
        }
        match pending.iter().all(|(_, output)| output.is_some()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    pending.into_iter().filter_map(|(_, output)| output).collect()
}
