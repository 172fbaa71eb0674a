//! The deadline of the caller of a decision.

use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use tidegate_core::Micros;
use tokio::task_local;

use crate::{Clock, EngineError};

task_local! {
    static DEADLINE: Micros;
}

/// Until when the caller of a request waits for its response. A [`Fallback`](crate::Fallback)
/// decides calls whose store has not replied by then.
#[derive(Clone, Copy, Debug)]
pub struct CallerDeadline(Micros);

impl CallerDeadline {
    /// At this time of the engine's clock, in terms of [`Clock::elapsed`].
    pub fn at(elapsed: Micros) -> Self {
        Self(elapsed)
    }

    /// Runs a future, and all decisions that it awaits, with this deadline.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        DEADLINE.scope(self.0, future).await
    }

    /// The result of a call, or an error once the deadline of the caller has passed: the call may
    /// have been charged.
    pub(super) async fn bound<T>(
        clock: &Arc<dyn Clock>,
        call: impl Future<Output = Result<T, EngineError>> + Unpin,
    ) -> Result<T, EngineError> {
        let Ok(deadline) = DEADLINE.try_with(|deadline| *deadline) else { return call.await };
        let (mut call, mut sleep) = (call, clock.sleep_until(deadline));
        poll_fn(|cx| match std::pin::Pin::new(&mut call).poll(cx) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => {
                let late = || Err(EngineError::Ambiguous(Arc::new(CallerTimedOut)));
                sleep.as_mut().poll(cx).map(|()| late())
            }
        })
        .await
    }
}

/// The store has not replied before the deadline of the caller.
#[derive(Debug)]
struct CallerTimedOut;

impl fmt::Display for CallerTimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no reply from the store before the deadline of the caller; raise its timeout")
    }
}

impl Error for CallerTimedOut {}
